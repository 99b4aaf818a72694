package workspaces

import (
	"context"
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	clientrest "k8s.io/client-go/rest"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"github.com/atoll-dev/atoll/apiserver"
)

// withEvictions is the provider of the core group with evictions of its own.
type withEvictions struct {
	controlplaneapiserver.RESTStorageProvider
	chain *chain
}

func (p withEvictions) NewRESTStorage(rc serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(rc, opts)
	if err != nil {
		return info, err
	}
	core := info.VersionedResourcesStorageMap["v1"]
	core["pods/eviction"], err = apiserver.WithStoredEvictions(core["pods/eviction"], func(upstream *podstore.EvictionREST) rest.NamedCreater {
		return evictions{upstream, p.chain}
	})
	return info, err
}

// evictions are the evictions of pods. Upstream decides about them, and reads and writes PodDisruptionBudgets without the context of the request. So each
// request gets a storage of upstream's of its own, whose client of budgets is one of the request's workspace.
type evictions struct {
	*podstore.EvictionREST
	chain *chain
}

var _ rest.NamedCreater = evictions{}

// Create implements rest.NamedCreater.
func (e evictions) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	w := workspaceOf(ctx)
	if w == nil {
		return nil, errNoWorkspace
	}
	budgets, err := e.chain.newBudgets(ctx, w, name)
	if err != nil {
		return nil, err
	}
	pods, err := podstore.NewStorage(unmeasured{e.chain.generic.RESTOptionsGetter}, nil, nil, budgets, e.chain.generic.Authorization.Authorizer)
	if err != nil {
		return nil, fmt.Errorf("open the storage of pods: %w", err)
	}
	defer pods.Pod.Destroy()
	return pods.Eviction.Create(ctx, name, obj, validate, options)
}

// unmeasured are the options of a storage that counts its objects for no metric.
type unmeasured struct{ generic.RESTOptionsGetter }

func (u unmeasured) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := u.RESTOptionsGetter.GetRESTOptions(resource, example)
	opts.CountMetricPollPeriod = 0
	return opts, err
}

// budgets are the PodDisruptionBudgets of a workspace, as one eviction sees them. No controller of a workspace keeps the status of a budget. If no client does
// either, an eviction computes it from the pods that there are. Only the pods that evictions are about to delete are stored: so two of them cannot
// use the same disruption.
type budgets struct {
	ctx       context.Context
	of        policyclient.PodDisruptionBudgetsGetter
	pods      coreclient.PodInterface
	scales    *scales
	namespace string
	// pod is the name of the one that is evicted.
	pod string
	// stored are the statuses of the budgets whose status is computed.
	stored map[string]policyv1.PodDisruptionBudgetStatus
}

func (c *chain) newBudgets(ctx context.Context, w *Workspace, pod string) (*budgets, error) {
	config := c.clientConfig(w)
	config.Transport = loopback{chain: c, workspace: w, path: PathOf(ctx)}
	client, err := clientrest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	policies, err := policyclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	core, err := coreclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	scales, err := newScales(config, client)
	if err != nil {
		return nil, err
	}
	namespace := request.NamespaceValue(ctx)
	return &budgets{ctx: ctx, of: policies, pods: core.Pods(namespace), scales: scales, namespace: namespace, pod: pod, stored: map[string]policyv1.PodDisruptionBudgetStatus{}}, nil
}

// PodDisruptionBudgets implements policyclient.PodDisruptionBudgetsGetter.
func (b *budgets) PodDisruptionBudgets(namespace string) policyclient.PodDisruptionBudgetInterface {
	return &requestBudgets{b.of.PodDisruptionBudgets(namespace), b}
}

// requestBudgets replaces upstream's context by that of the request.
type requestBudgets struct {
	policyclient.PodDisruptionBudgetInterface
	of *budgets
}

// List returns the budgets. It computes the status of each budget for the evicted pod that no client keeps.
func (b *requestBudgets) List(_ context.Context, o metav1.ListOptions) (*policyv1.PodDisruptionBudgetList, error) {
	list, err := b.PodDisruptionBudgetInterface.List(b.of.ctx, o)
	if err != nil || len(list.Items) == 0 {
		return list, err
	}
	pod, err := b.of.pods.Get(b.of.ctx, b.of.pod, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		budget := &list.Items[i]
		if selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector); err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if err := b.of.complete(budget); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Get returns a budget, as List does.
func (b *requestBudgets) Get(_ context.Context, name string, o metav1.GetOptions) (*policyv1.PodDisruptionBudget, error) {
	budget, err := b.PodDisruptionBudgetInterface.Get(b.of.ctx, name, o)
	if err == nil {
		err = b.of.complete(budget)
	}
	return budget, err
}

// UpdateStatus writes the status of a budget, unless it is computed: then it writes the pods that evictions are about to delete.
func (b *requestBudgets) UpdateStatus(_ context.Context, budget *policyv1.PodDisruptionBudget, o metav1.UpdateOptions) (*policyv1.PodDisruptionBudget, error) {
	if stored, computed := b.of.stored[budget.Name]; computed {
		disrupted := budget.Status.DisruptedPods
		budget = budget.DeepCopy()
		budget.Status = stored
		budget.Status.DisruptedPods = disrupted
	}
	return b.PodDisruptionBudgetInterface.UpdateStatus(b.of.ctx, budget, o)
}

// complete computes the status of a budget that no client keeps. It reads the pods after the budget: a pod that another eviction deletes is either in the status
// or not there any more.
func (b *budgets) complete(budget *policyv1.PodDisruptionBudget) error {
	if budget.Status.ObservedGeneration > 0 {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return fmt.Errorf("the selector of the PodDisruptionBudget %s: %w", budget.Name, err)
	}
	pods, err := b.pods.List(b.ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return fmt.Errorf("list the pods of the PodDisruptionBudget %s: %w", budget.Name, err)
	}
	b.stored[budget.Name] = budget.Status
	expected, err := expectedPods(budget, pods.Items, func(owner metav1.OwnerReference) (int32, error) {
		return b.scales.of(b.ctx, b.namespace, owner)
	})
	budget.Status = budgetStatus(budget, pods.Items, expected, err, time.Now())
	return nil
}
