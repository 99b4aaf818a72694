package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
)

const (
	// countDelay is how long a count waits for more changes.
	countDelay = 100 * time.Millisecond
	// countInterval is how long after a count the next one follows. Another server may have charged a quota for an object that the
	// first count did not see yet.
	countInterval = 3 * time.Second
	// countShare is how many times as long as a count took the next one waits: a large namespace that always changes is not counted all
	// the time.
	countShare = 5
	// countTimeout bounds one count.
	countTimeout = 30 * time.Second
	// maxFailedCounts is after how many failures in a row counting ends. The next change begins again.
	maxFailedCounts = 5
)

// measured are the resources whose objects quotas measure. They count the objects of all others.
var measured = []schema.GroupResource{{Resource: "pods"}, {Resource: "services"}, {Resource: "persistentvolumeclaims"}}

// counted is what a count did.
type counted struct {
	// quotas is how many quotas there are. settled is set if the count changed none, and each has the usage that was counted.
	quotas  int
	settled bool
}

// recount counts the objects of a namespace for its quotas. The caller has locked the state, so this process charges nothing
// meanwhile. If another server charges a quota meanwhile, the write conflicts, and the count is repeated.
func (q *quotas) recount(ctx context.Context, w *Workspace, state *quotaState) (counted, error) {
	for range maxAttempts {
		out, err := q.count(ctx, w, state)
		if apierrors.IsConflict(err) {
			continue
		}
		state.counted = state.counted || err == nil
		return out, err
	}
	return counted{}, errors.New("other servers change the quotas")
}

func (q *quotas) count(ctx context.Context, w *Workspace, state *quotaState) (counted, error) {
	running := state.charges() // before the objects are read: a request that ends later may not be among them
	all, err := q.list(ctx, state.namespace)
	out := counted{quotas: len(all), settled: true}
	if err != nil {
		return out, err
	}
	objects := &quotaObjects{q: q, ctx: ctx, w: w}
	for i := range all {
		of := &all[i]
		registry, err := objects.registry(of)
		if err != nil {
			return out, err
		}
		found, err := quota.CalculateUsage(state.namespace, of.Spec.Scopes, of.Spec.Hard, registry, of.Spec.ScopeSelector)
		if err != nil {
			return out, fmt.Errorf("count the objects for resource quota %q: %w", of.Name, err)
		}
		status, exact := countedStatus(*of, found, running[of.UID])
		changed := !equality.Semantic.DeepEqual(status, of.Status)
		out.settled = out.settled && exact && !changed
		if !changed {
			continue
		}
		of.Status = status
		if err := q.update(ctx, of); err != nil && !apierrors.IsNotFound(err) {
			return out, err
		}
	}
	return out, nil
}

// lockedRecount counts the objects of a namespace, as the server itself.
func (q *quotas) lockedRecount(ctx context.Context, w *Workspace, state *quotaState) (counted, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	if err := state.lock(ctx); err != nil {
		return counted{}, err
	}
	defer state.unlock()
	return q.recount(withWorkspace(ctx, w, ""), w, state)
}

// countNow counts the objects of a namespace whose quotas have changed. An error does not fail the request: it has
// written the quota. The count is repeated.
func (q *quotas) countNow(ctx context.Context, w *Workspace, namespace string) {
	if _, err := q.lockedRecount(ctx, w, w.quotas.of(namespace)); err != nil {
		q.log.Warn("count of the objects for resource quotas failed; retrying", "workspace", w.uid, "namespace", namespace, "err", err)
	}
	q.countSoon(w, namespace)
}

// countSoon counts the objects of a namespace in a goroutine, which ends when the counts agree.
func (q *quotas) countSoon(w *Workspace, namespace string) {
	state := w.quotas.of(namespace)
	w.quotas.start(state, true, func(ctx context.Context) { q.settle(ctx, w, state) })
}

// countRefused counts after a quota has refused a request: a server may have ended after it charged the quota. Many refusals do not
// make counts more frequent.
func (q *quotas) countRefused(w *Workspace, state *quotaState) {
	w.quotas.start(state, false, func(ctx context.Context) { q.settle(ctx, w, state) })
}

// settle counts until nothing changes any more. At least two counts agree then.
func (q *quotas) settle(ctx context.Context, w *Workspace, state *quotaState) {
	for first, failed, took := true, 0, time.Duration(0); ; {
		delay := countInterval
		if state.takeAgain() {
			first, delay = true, max(countDelay, countShare*took)
		}
		select {
		case <-ctx.Done():
			state.end(true)
			return
		case <-time.After(delay):
		}
		begun := time.Now()
		out, err := q.lockedRecount(ctx, w, state)
		took = time.Since(begun)
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil:
			q.log.Warn("count of the objects for resource quotas failed", "workspace", w.uid, "namespace", state.namespace, "err", err)
			if failed++; failed >= maxFailedCounts {
				state.end(true)
				return
			}
			continue
		case (out.quotas == 0 || out.settled && !first) && state.end(false):
			return
		}
		first, failed = false, 0
	}
}

// quotaObjects lists the objects of one workspace for upstream's evaluators.
type quotaObjects struct {
	q   *quotas
	ctx context.Context //nolint:containedctx // it is the argument of one call, which upstream's interface does not pass on
	w   *Workspace
}

// registry returns the evaluators for a quota: upstream's, and one for each other resource that it counts. A custom resource need not
// exist yet.
func (o *quotaObjects) registry(of *corev1.ResourceQuota) (quota.Registry, error) {
	list := func(resource schema.GroupVersionResource) (cache.GenericLister, error) {
		return quotaLister{o, resource.GroupResource()}, nil
	}
	evaluators, err := core.NewEvaluators(list, nil, o.q.chain.resources.ResourceEnabled)
	if err != nil {
		return nil, err
	}
	registry := generic.NewRegistry(evaluators)
	for name := range of.Spec.Hard {
		counts, ok := strings.CutPrefix(string(name), "count/")
		if resource := schema.ParseGroupResource(counts); ok && registry.Get(resource) == nil && o.q.evaluator(resource) != nil {
			registry.Add(generic.NewObjectCountEvaluator(resource, func(namespace string) ([]runtime.Object, error) { return o.list(resource, namespace) }, ""))
		}
	}
	return registry, nil
}

// list returns the objects of a resource in a namespace. They are nil unless quotas measure them.
func (o *quotaObjects) list(resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	if !slices.Contains(measured, resource) {
		number, err := o.q.chain.count(o.ctx, o.w, resource, namespace)
		return make([]runtime.Object, number), err
	}
	lister, ok := o.q.opened[resource.Resource].(rest.Lister)
	if !ok {
		return nil, nil // the server has no such resource
	}
	found, err := lister.List(asServer(o.ctx, namespace), &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	return meta.ExtractList(found)
}

// count returns the number of objects of a resource in a namespace.
func (c *chain) count(ctx context.Context, w *Workspace, resource schema.GroupResource, namespace string) (int64, error) {
	prefix := resource.Group + "/" + resource.Resource // of custom resources
	if resource.Group == "" || legacyscheme.Scheme.IsGroupRegistered(resource.Group) {
		prefix = c.factory.ResourcePrefix(resource)
	}
	found, err := w.client.KV.Get(ctx, "/registry/"+prefix+"/"+namespace+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count the %s: %w", resource, err)
	}
	return found.Count, nil
}

// quotaLister is the lister of one resource, for upstream's evaluators.
type quotaLister struct {
	*quotaObjects
	resource schema.GroupResource
}

// ByNamespace implements cache.GenericLister.
func (l quotaLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return quotaNamespaceLister{l, namespace}
}

// List implements cache.GenericLister. Upstream's evaluators list one namespace.
func (quotaLister) List(labels.Selector) ([]runtime.Object, error) { return nil, errors.ErrUnsupported }

// Get implements cache.GenericLister.
func (quotaLister) Get(string) (runtime.Object, error) { return nil, errors.ErrUnsupported }

type quotaNamespaceLister struct {
	quotaLister
	namespace string
}

// List implements cache.GenericNamespaceLister. The selector is that of all objects.
func (l quotaNamespaceLister) List(labels.Selector) ([]runtime.Object, error) {
	return l.list(l.resource, l.namespace)
}

// countedStore is the storage of one resource whose writes are followed by counts where they change usage.
type countedStore struct {
	*requestStore
	quotas *quotas
}

// Create implements storage.Interface.
func (s countedStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	err := s.requestStore.Create(ctx, key, obj, out, ttl)
	if err == nil {
		s.wrote(ctx)
	}
	return err
}

// GuaranteedUpdate implements storage.Interface.
func (s countedStore) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object,
) error {
	err := s.requestStore.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached)
	if err == nil {
		s.wrote(ctx)
		if slices.Contains(measured, s.group) {
			s.gaveBack(ctx)
		}
	}
	return err
}

// Delete implements storage.Interface.
func (s countedStore) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions,
) error {
	err := s.requestStore.Delete(ctx, key, out, preconditions, validate, cached, opts)
	if err == nil {
		s.gaveBack(ctx)
	}
	return err
}

// wrote follows a write: its charge is kept, and the objects for a new or changed quota are counted.
func (s countedStore) wrote(ctx context.Context) {
	if ctx.Value(ownQuotaKey{}) != nil {
		return
	}
	if charges, _ := ctx.Value(chargesKey{}).(*requestCharges); charges != nil {
		charges.wrote(s.group)
	}
	if w := s.workspace(ctx); w != nil && s.group == resourceQuotas {
		s.quotas.countNow(ctx, w, request.NamespaceValue(ctx))
	}
}

// gaveBack follows a deletion, or another change that may give usage back.
func (s countedStore) gaveBack(ctx context.Context) {
	w, namespace := s.workspace(ctx), request.NamespaceValue(ctx)
	if w == nil || namespace == "" || s.quotas.evaluator(s.group) == nil {
		return
	}
	if w.quotas.known(namespace) == nil {
		number, err := s.quotas.chain.count(ctx, w, resourceQuotas, namespace)
		if err == nil && number == 0 {
			return
		}
	}
	s.quotas.countSoon(w, namespace)
}
