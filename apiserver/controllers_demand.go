package apiserver

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

// DemandControllers are the controllers that finish what the requests to a workspace have begun: the deletion of namespaces and of
// dependents, the rules of aggregated roles, the types of policies, and the objects that every namespace has. They run on demand, while something is left
// to finish; those of this workspace run all the time.
type DemandControllers struct {
	leadership *leadership
	runners    []runner
}

// ServedKind is a kind whose objects the controllers see.
type ServedKind struct {
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// GroupKind returns its group and kind.
func (k ServedKind) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: k.Resource.Group, Kind: k.Kind}
}

// DemandConfig configures NewDemandControllers.
type DemandConfig struct {
	// Client reaches the workspace, with all permissions.
	Client *rest.Config
	// RootCA has the certificates that each namespace gets; none if it is nil.
	RootCA []byte
	// Used returns discovery without the kinds that the controllers need not see; nil omits none.
	Used func(discovery.DiscoveryInterface) discovery.DiscoveryInterface
	// Turn waits until the controllers may use processor time that users determine, and returns the function that ends the use; nil if they always may.
	Turn func(context.Context) (end func(), err error)
}

// NewDemandControllers returns the controllers of a workspace. ctx bounds them.
func NewDemandControllers(ctx context.Context, cfg DemandConfig) (*DemandControllers, error) {
	l, err := (&controllerManager{config: cfg.Client, rootCA: cfg.RootCA, turn: cfg.Turn}).newLeadership(ctx)
	if err != nil {
		return nil, err
	}
	if cfg.Used != nil {
		l.discovery = cfg.Used(l.discovery)
	}
	makers := []maker{
		{"namespace", l.namespaces},
		{"garbage-collector", l.garbageCollector},
		{"service-account", l.serviceAccounts},
		{"cluster-role-aggregation", l.clusterRoleAggregation},
		{"validating-policy-types", l.validatingPolicyTypes},
	}
	if len(cfg.RootCA) > 0 {
		makers = append(makers, maker{"root-ca-publisher", l.rootCAPublisher})
	}
	runners, err := create(quiet(ctx), makers)
	if err != nil {
		return nil, err
	}
	return &DemandControllers{l, runners}, nil
}

// quiet returns a context whose logger omits that each controller starts and stops: they do so often.
func quiet(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.FromContext(ctx).V(2))
}

// Run runs the controllers until ctx ends, and returns when they have stopped.
func (c *DemandControllers) Run(ctx context.Context) { c.leadership.run(quiet(ctx), c.runners) }

// Kinds returns the kinds whose objects the controllers see. It asks the API.
func (c *DemandControllers) Kinds() ([]ServedKind, error) {
	lists, err := c.leadership.discovery.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("discover the kinds: %w", err)
	}
	ignored := garbagecollector.DefaultIgnoredResources()
	var all []ServedKind
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete", "list", "watch"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discover the kinds: %w", err)
		}
		for _, r := range list.APIResources {
			if _, no := ignored[version.WithResource(r.Name).GroupResource()]; !no {
				all = append(all, ServedKind{version.WithResource(r.Name), r.Kind, r.Namespaced})
			}
		}
	}
	return all, nil
}

// Objects returns the objects of a kind, by their metadata at least, from the controllers' cache. It reports false while the cache
// does not have all of them. ctx is that of Run.
func (c *DemandControllers) Objects(ctx context.Context, kind ServedKind) ([]runtime.Object, bool) {
	informer, err := c.leadership.caches.ForResource(kind.Resource)
	if err != nil {
		return nil, false
	}
	if !informer.Informer().HasSynced() {
		c.leadership.caches.Start(ctx.Done())
		return nil, false
	}
	return objects(informer.Informer().GetStore().List()), true
}

// RootCAs returns the ConfigMaps of certificate authorities, as Objects does.
func (c *DemandControllers) RootCAs() ([]runtime.Object, bool) {
	informer := c.leadership.caches.rootCAs.Core().V1().ConfigMaps().Informer()
	return objects(informer.GetStore().List()), informer.HasSynced()
}

// pageSize is how many objects one request reads.
const pageSize = 500

// Read reads the objects of a kind from the API, as Objects returns them: a cache may be late.
func (c *DemandControllers) Read(ctx context.Context, kind ServedKind) ([]runtime.Object, error) {
	switch kind.Resource {
	case rbacv1.SchemeGroupVersion.WithResource("clusterroles"):
		return read(ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.leadership.client.RbacV1().ClusterRoles().List(ctx, o)
		})
	case PoliciesResource:
		return read(ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.leadership.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, o)
		})
	}
	return read(ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.leadership.metadata.Resource(kind.Resource).List(ctx, o)
	})
}

// ReadRootCAs reads the ConfigMaps of certificate authorities from the API.
func (c *DemandControllers) ReadRootCAs(ctx context.Context) ([]runtime.Object, error) {
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName)
	return read(ctx, metav1.ListOptions{FieldSelector: named.String()}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.leadership.client.CoreV1().ConfigMaps("").List(ctx, o)
	})
}

func read(ctx context.Context, o metav1.ListOptions, list pager.ListPageFunc) (all []runtime.Object, err error) {
	pages := pager.New(list)
	pages.PageSize = pageSize
	err = pages.EachListItem(ctx, o, func(object runtime.Object) error {
		all = append(all, object)
		return nil
	})
	return all, err
}

func objects(all []any) []runtime.Object {
	out := make([]runtime.Object, 0, len(all))
	for _, o := range all {
		if object, ok := o.(runtime.Object); ok {
			out = append(out, object)
		}
	}
	return out
}
