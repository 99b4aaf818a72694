package aggregate

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// withdrawalGracePeriod is how long a member may still reach a withdrawn group while
// its API server announces it. A kind that is announced and refused blocks the member's
// garbage collector. The period is no longer than it takes to remove the APIServices
// from a member that responds.
const withdrawalGracePeriod = 10 * time.Second

// Directory watches a workspace's members and the groups that they share: the Clusters,
// the SharedAPIs, and the marked CRDs of shared groups. It implements Members.
type Directory struct {
	clock  clock.Clock
	client dynamic.Interface

	clusters, shared, crds cache.SharedIndexInformer

	rebuildSignal chan struct{} // capacity 1: rebuild the snapshot
	loaded        chan struct{} // closed after the first complete snapshot
	probeSignal   chan struct{} // capacity 1: probe the shared kinds again
	warm          chan struct{} // closed after the first probe of every shared kind
	snapshot      atomic.Pointer[snapshot]
}

// snapshot is the directory's state at one time. It is immutable.
type snapshot struct {
	roster   *Roster
	replaced chan struct{}
	members  []Member
	// refused maps each member that the roster rejects to the reason.
	refused map[string]error
	// specs of the SharedAPIs by member and group.
	specs map[string]map[string]*v1alpha1.SharedAPISpec
	// groups that are or were shared.
	groups map[string]bool
}

// NewDirectory returns a directory for the workspace that cfg connects to. It is empty
// until Run.
func NewDirectory(cfg *rest.Config, clk clock.Clock) (*Directory, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of the workspace: %w", err)
	}
	d := &Directory{
		clock: clk, client: client,
		rebuildSignal: make(chan struct{}, 1), loaded: make(chan struct{}),
		probeSignal: make(chan struct{}, 1), warm: make(chan struct{}),
	}
	d.snapshot.Store(&snapshot{replaced: make(chan struct{})})
	for _, f := range []struct {
		into      *cache.SharedIndexInformer
		resource  schema.GroupVersionResource
		only      func(*metav1.ListOptions)
		transform cache.TransformFunc
	}{
		{&d.clusters, v1alpha1.ClusterResource, nil, trimCluster},
		{&d.shared, v1alpha1.SharedAPIResource, nil, trimSharedAPI},
		{&d.crds, crdResource, func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.SharedLabel + "=true" }, trimCRD},
	} {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, f.resource, metav1.NamespaceAll, 0, cache.Indexers{}, f.only).Informer()
		if err := informer.SetTransform(f.transform); err != nil {
			return nil, err
		}
		look := func(any) {
			d.notify()
			d.notifyKinds()
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: look, DeleteFunc: look, UpdateFunc: func(was, is any) {
				// Most updates of a Cluster are heartbeats.
				if !reflect.DeepEqual(was, is) {
					look(is)
				}
			},
		}); err != nil {
			return nil, err
		}
		*f.into = informer
	}
	return d, nil
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Run watches the workspace until ctx ends. The workspace's CRDs may be installed
// later; until then no member is served.
func (d *Directory) Run(ctx context.Context) error {
	if err := d.awaitTypes(ctx); err != nil {
		return nil // ctx ended
	}
	var group wait.Group
	defer group.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{d.clusters, d.shared, d.crds} {
		group.StartWithContext(ctx, informer.RunWithContext)
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	group.StartWithContext(ctx, d.keepWarm)
	d.rebuildLoop(ctx)
	return nil
}

// awaitTypes waits until the CRDs are served. An informer would wait too, but with
// pauses of up to half a minute.
func (d *Directory) awaitTypes(ctx context.Context) error {
	const interval = 100 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		for _, resource := range []schema.GroupVersionResource{v1alpha1.ClusterResource, v1alpha1.SharedAPIResource} {
			if _, err := d.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
				if !apierrors.IsNotFound(err) {
					klog.V(2).InfoS("sharing resources not readable yet", "resource", resource.Resource, "err", err)
				}
				return false, nil
			}
		}
		return true, nil
	})
}

func (d *Directory) notify() {
	select {
	case d.rebuildSignal <- struct{}{}:
	default: // a rebuild is already pending
	}
}

// rebuildLoop rebuilds the snapshot after every change.
func (d *Directory) rebuildLoop(ctx context.Context) {
	parted := withdrawals{}
	for {
		again := d.rebuild(parted)
		var later <-chan time.Time
		var timer clock.Timer
		if again > 0 {
			timer = d.clock.NewTimer(again)
			later = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-d.rebuildSignal:
		case <-later:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// rebuild computes a new snapshot from the informers. It returns when the snapshot next
// changes without an event.
func (d *Directory) rebuild(parted withdrawals) (again time.Duration) {
	was := d.snapshot.Load()
	shared := cached[v1alpha1.SharedAPI](d.shared)
	next := &snapshot{
		roster: was.roster, replaced: was.replaced, refused: was.refused,
		specs:  map[string]map[string]*v1alpha1.SharedAPISpec{},
		groups: map[string]bool{},
	}
	for _, s := range shared {
		for _, group := range s.Spec.Groups {
			next.groups[group] = true
		}
	}
	for _, crd := range cached[sharedKind](d.crds) {
		if _, group, ok := strings.Cut(crd.Name, "."); ok {
			next.groups[group] = true
		}
	}
	clusters := cached[v1alpha1.Cluster](d.clusters)
	parted.forget(clusters)
	for _, c := range clusters {
		served := v1alpha1.SharedWith(c, shared)
		groups := map[string]bool{}
		next.specs[c.Name] = map[string]*v1alpha1.SharedAPISpec{}
		for group, by := range served {
			groups[group] = true
			next.specs[c.Name][group] = &by.Spec
		}
		for group, left := range parted.remaining(c.Name, served, announced(c.Name, shared), d.clock.Now()) {
			groups[group] = true
			if again == 0 || left < again {
				again = left
			}
		}
		if c.Status.FrontProxy == nil || len(groups) == 0 {
			continue
		}
		next.members = append(next.members, Member{Name: c.Name, FrontProxy: FrontProxy{
			CABundle:            c.Status.FrontProxy.CABundle,
			AllowedNames:        c.Status.FrontProxy.AllowedNames,
			UsernameHeaders:     c.Status.FrontProxy.UsernameHeaders,
			UIDHeaders:          c.Status.FrontProxy.UIDHeaders,
			GroupHeaders:        c.Status.FrontProxy.GroupHeaders,
			ExtraHeaderPrefixes: c.Status.FrontProxy.ExtraHeaderPrefixes,
		}, Groups: sortedKeys(groups)})
	}
	slices.SortFunc(next.members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	first := was.roster == nil
	replace := first || !reflect.DeepEqual(next.members, was.members)
	if replace {
		next.replaced = make(chan struct{})
		next.roster, next.refused = NewRoster(next.members, d.clock)
		for name, err := range next.refused {
			if before := was.refused[name]; before == nil || before.Error() != err.Error() {
				klog.ErrorS(err, "member cluster cannot be served", "cluster", name)
			}
		}
	}
	d.snapshot.Store(next)
	if replace {
		close(was.replaced)
	}
	if first {
		close(d.loaded)
	}
	return again
}

// Roster implements Members.
func (d *Directory) Roster() (*Roster, <-chan struct{}) {
	p := d.snapshot.Load()
	return p.roster, p.replaced
}

// SharedAPI returns the spec of the SharedAPI that exposes a group to a member, if one
// does.
func (d *Directory) SharedAPI(cluster, group string) (terms v1alpha1.SharedAPISpec, exposed bool) {
	spec, exposed := d.snapshot.Load().specs[cluster][group]
	if !exposed {
		return terms, false
	}
	return *spec, true
}

// SharedGroups waits until the directory knows which groups are or were shared. It
// returns a function that reports, at any later time, whether a group is one of them.
func (d *Directory) SharedGroups(ctx context.Context) (func(group string) bool, error) {
	select {
	case <-d.loaded:
		return func(group string) bool { return d.snapshot.Load().groups[group] }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// withdrawals records when each member lost a group. Each server uses its own clock,
// because servers need not agree on these times.
type withdrawals map[[2]string]*time.Time

// remaining returns the withdrawn groups that a member may still reach, and for how
// long.
func (p withdrawals) remaining(cluster string, served map[string]*v1alpha1.SharedAPI, announced map[string]bool, now time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	for group := range served {
		p[[2]string{cluster, group}] = nil
	}
	for key, since := range p {
		group := key[1]
		switch {
		case key[0] != cluster || served[group] != nil:
		case !announced[group]:
			delete(p, key)
		case since == nil:
			p[key] = &now
			out[group] = withdrawalGracePeriod
		default:
			if left := since.Add(withdrawalGracePeriod).Sub(now); left > 0 {
				out[group] = left
			}
		}
	}
	return out
}

// forget drops members that no longer exist.
func (p withdrawals) forget(but []*v1alpha1.Cluster) {
	for key := range p {
		if !slices.ContainsFunc(but, func(c *v1alpha1.Cluster) bool { return c.Name == key[0] }) {
			delete(p, key)
		}
	}
}

// announced returns the groups for which a member may still have APIServices.
func announced(cluster string, all []*v1alpha1.SharedAPI) map[string]bool {
	out := map[string]bool{}
	for _, s := range all {
		if entry, ok := s.Exposure(cluster); ok {
			for _, version := range entry.Versions {
				group, _, _ := strings.Cut(version, "/")
				out[group] = true
			}
		}
	}
	return out
}

func sortedKeys(set map[string]bool) []string {
	var out []string
	for key := range set {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

func cached[T any](informer cache.SharedIndexInformer) []*T {
	var out []*T
	for _, obj := range informer.GetStore().List() {
		if t, ok := obj.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// trimCluster keeps only the fields of a Cluster from which a roster is built.
func trimCluster(obj any) (any, error) {
	whole, ok := convert[v1alpha1.Cluster](obj)
	if !ok {
		return obj, nil
	}
	out := &v1alpha1.Cluster{}
	out.Name, out.Labels, out.DeletionTimestamp = whole.Name, whole.Labels, whole.DeletionTimestamp
	out.Status.FrontProxy = whole.Status.FrontProxy
	return out, nil
}

// trimSharedAPI keeps only the exposure and the versions that the members announce.
func trimSharedAPI(obj any) (any, error) {
	whole, ok := convert[v1alpha1.SharedAPI](obj)
	if !ok {
		return obj, nil
	}
	out := &v1alpha1.SharedAPI{Spec: whole.Spec}
	out.Name, out.CreationTimestamp, out.DeletionTimestamp = whole.Name, whole.CreationTimestamp, whole.DeletionTimestamp
	for _, entry := range whole.Status.Clusters {
		out.Status.Clusters = append(out.Status.Clusters, v1alpha1.ClusterExposure{Name: entry.Name, Versions: entry.Versions})
	}
	return out, nil
}

// convert returns the object as a T, decoding it if that has not happened yet. An
// object that cannot be decoded is logged and ignored.
func convert[T any](obj any) (*T, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		klog.ErrorS(err, "cannot decode object", "kind", u.GetKind(), "name", u.GetName())
		return nil, false
	}
	return out, true
}
