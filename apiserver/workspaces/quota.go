package workspaces

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/endpoints/request"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	apiv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

// quotas enforces ResourceQuotas. As an admission plugin it charges them before an object is written, as upstream's plugin does.
// Upstream's reads a cache of one workspace; this one reads the quotas of the request's namespace each time. It also does what
// upstream's controller does: it counts objects, when something changed that may give usage back (quota_count.go).
type quotas struct {
	chain *chain
	log   *slog.Logger
	// opened is the storage of the core group. It is set before the first request.
	opened map[string]rest.Storage
	// registry measures the objects of requests.
	registry quota.Registry
}

var _ admission.ValidationInterface = &quotas{}

func newQuotas(c *chain, log *slog.Logger) (*quotas, error) {
	evaluators, err := core.NewEvaluators(nil, nil, c.resources.ResourceEnabled)
	if err != nil {
		return nil, fmt.Errorf("measure objects for resource quotas: %w", err)
	}
	return &quotas{chain: c, log: log, registry: generic.NewRegistry(evaluators)}, nil
}

// Handles implements admission.Interface.
func (*quotas) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Validate implements admission.ValidationInterface.
func (q *quotas) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	w, namespace := workspaceOf(ctx), a.GetNamespace()
	if w == nil || namespace == "" || a.GetKind().GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		return nil
	}
	evaluator := q.evaluator(a.GetResource().GroupResource())
	if evaluator == nil || !evaluator.Handles(a) {
		return nil
	}
	state := w.quotas.known(namespace)
	if state == nil {
		found, err := q.list(ctx, namespace)
		if err != nil || len(found) == 0 {
			return err
		}
		state = w.quotas.of(namespace)
	}
	if err := state.lock(ctx); err != nil {
		return err
	}
	defer state.unlock()
	return q.charge(ctx, w, state, a, evaluator)
}

// evaluator returns the evaluator of a resource, nil if quotas ignore it.
func (q *quotas) evaluator(resource schema.GroupResource) quota.Evaluator {
	if _, ignored := quotainstall.DefaultIgnoredResources()[resource]; ignored {
		return nil
	}
	if evaluator := q.registry.Get(resource); evaluator != nil {
		return evaluator
	}
	return generic.NewObjectCountEvaluator(resource, nil, "")
}

// maxAttempts bounds how often a quota is read and written again because another server changed it.
const maxAttempts = 10

// charge adds the usage of a request to the quotas of its namespace, or returns the error of one that it would exceed. The caller has
// locked the state. A quota that is charged already is not charged again if another one has to be read again.
func (q *quotas) charge(ctx context.Context, w *Workspace, state *quotaState, a admission.Attributes, evaluator quota.Evaluator) error {
	charged := newCharge(a.GetResource().GroupResource())
	for range maxAttempts {
		all, err := q.listCounted(ctx, w, state)
		if err != nil {
			return err
		}
		before := slices.DeleteFunc(all, charged.has)
		after, err := resourcequota.CheckRequest(before, a, evaluator, nil)
		if err != nil && !a.IsDryRun() {
			q.countRefused(w, state)
		}
		if err != nil || a.IsDryRun() {
			return err
		}
		err = q.write(ctx, state, charged, before, after)
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("the resource quotas of namespace %q are being changed by other servers: retry", state.namespace), 1)
}

// write writes the usage of the quotas that a request changes. Its error is a conflict if another server has changed one.
func (q *quotas) write(ctx context.Context, state *quotaState, charged *charge, before, after []corev1.ResourceQuota) error {
	for i := range after {
		if quota.Equals(before[i].Status.Used, after[i].Status.Used) {
			continue
		}
		// First: the write may succeed also if it returns an error.
		state.begin(ctx, q, charged, after[i].UID, quota.Subtract(after[i].Status.Used, before[i].Status.Used))
		if err := q.update(ctx, &after[i]); err != nil {
			if apierrors.IsConflict(err) {
				state.revoke(charged, after[i].UID)
			}
			return err
		}
	}
	return nil
}

// listCounted returns the quotas of a namespace. It counts first what this process has not counted yet, since the workspace woke:
// another process may have ended between a charge and its object.
func (q *quotas) listCounted(ctx context.Context, w *Workspace, state *quotaState) ([]corev1.ResourceQuota, error) {
	all, err := q.list(ctx, state.namespace)
	if err != nil || state.counted && !slices.ContainsFunc(all, uncounted) {
		return all, err
	}
	if _, err := q.recount(ctx, w, state); err != nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the objects for the resource quotas of namespace %q cannot be counted now: retry: %v", state.namespace, err))
	}
	return q.list(ctx, state.namespace)
}

// uncounted reports whether the status of a quota is of another specification.
func uncounted(of corev1.ResourceQuota) bool {
	return !quota.Equals(of.Spec.Hard, of.Status.Hard)
}

type ownQuotaKey struct{}

// asServer returns the context of a call of the storage by the server itself, for a namespace of the workspace of ctx.
func asServer(ctx context.Context, namespace string) context.Context {
	ctx = request.WithUser(request.WithNamespace(ctx, namespace), serverIdentity)
	return context.WithValue(context.WithValue(ctx, serversKey{}, true), ownQuotaKey{}, true)
}

// list reads the quotas of a namespace.
func (q *quotas) list(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	found, err := q.opened[resourceQuotas.Resource].(rest.Lister).List(asServer(ctx, namespace), &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	list, ok := found.(*api.ResourceQuotaList)
	if !ok {
		return nil, fmt.Errorf("the storage of resource quotas returned a %T: this is a bug, please report it", found)
	}
	out := make([]corev1.ResourceQuota, len(list.Items))
	for i := range list.Items {
		if err := apiv1.Convert_core_ResourceQuota_To_v1_ResourceQuota(&list.Items[i], &out[i], nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// update writes the status of a quota, unless it was changed since it was read: then the error is a conflict.
func (q *quotas) update(ctx context.Context, changed *corev1.ResourceQuota) error {
	object := &api.ResourceQuota{}
	if err := apiv1.Convert_v1_ResourceQuota_To_core_ResourceQuota(changed, object, nil); err != nil {
		return err
	}
	_, _, err := q.opened["resourcequotas/status"].(rest.Updater).Update(asServer(ctx, changed.Namespace), changed.Name, rest.DefaultUpdatedObjectInfo(object),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

// countedStatus returns the status of a quota after its objects were counted. Usage does not become less than what requests have
// charged that are still running: their objects may be missing in the count. exact reports that the count is the usage.
func countedStatus(of corev1.ResourceQuota, counted, running corev1.ResourceList) (status corev1.ResourceQuotaStatus, exact bool) {
	used := maps.Clone(counted)
	for name, now := range counted {
		highest := now.DeepCopy()
		highest.Add(running[name])
		before, known := of.Status.Used[name]
		if known && before.Cmp(now) > 0 {
			used[name] = before
			if before.Cmp(highest) > 0 {
				used[name] = highest
			}
		}
	}
	return corev1.ResourceQuotaStatus{Hard: of.Spec.Hard.DeepCopy(), Used: used}, quota.Equals(used, counted)
}
