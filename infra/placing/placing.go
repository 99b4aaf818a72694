// Package placing makes the workloads of member clusters part of plans: it turns the proposals of the fleet's
// scheduler into changes, approves proposals when a plan is applied, and says which workloads need a plan.
//
// It uses only the fleet's API, through ResourceBindings, because the scheduler may run in another server. Its
// only writes are approvals in bindings.
package placing

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infrav1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
)

const (
	// decisionTimeout is how long a plan waits for the scheduler's decision about recent writes. It takes
	// milliseconds; but a scheduler that is busy, or that has just been elected, must not make plans fail.
	decisionTimeout = time.Minute
	// pollMin and pollMax bound the polling interval, which doubles each time.
	pollMin = 20 * time.Millisecond
	pollMax = time.Second
)

// Workloads reads workloads in member clusters through their ResourceBindings. Plans contain the scheduler's
// proposals, and applies write approvals back. It implements infra.Workloads.
type Workloads struct {
	dynamic   dynamic.Interface
	clock     clock.WithTicker
	knowledge interpret.Catalog
}

// New returns Workloads that use the given client with full rights.
func New(client dynamic.Interface, c clock.WithTicker) *Workloads {
	return &Workloads{dynamic: client, clock: c, knowledge: interpret.BuiltIn()}
}

// Changes returns the changes of a namespace's workloads for a plan, once the scheduler has decided about recent
// writes, and problems for those that it has not decided about in time. policies are those that apply to
// workloads; a selector restricts the workloads.
func (w *Workloads) Changes(ctx context.Context, namespace string, policies []*approval.Policy, selector labels.Selector) ([]*change.Change, []infrav1.Problem, error) {
	all, undecided, err := w.waitDecided(ctx, namespace, func(set labels.Set) bool { return approval.RequiresPlan(policies, set) })
	if err != nil {
		return nil, nil, err
	}
	var problems []infrav1.Problem
	for _, address := range undecided {
		problems = append(problems, infrav1.Problem{Address: address, Message: fmt.Sprintf("the fleet's scheduler has not decided about it within %s: plan again, and check its ResourceBinding if that does not help", decisionTimeout)})
	}
	past := newHistory(w.dynamic, namespace)
	var out []*change.Change
	for _, b := range all {
		if !b.awaitsApproval() || slices.Contains(undecided, workloadAddress(b.Spec.Resource)) {
			continue
		}
		if selector != nil && (b.object == nil || !selector.Matches(labels.Set(b.object.GetLabels()))) {
			continue
		}
		change, err := b.change(past.content(ctx, b))
		if err != nil {
			return nil, nil, err
		}
		out = append(out, change)
	}
	return out, problems, nil
}

// waitDecided lists the workloads of a namespace once the scheduler has decided about all recent writes.
// undecided are those without a decision after decisionTimeout.
func (w *Workloads) waitDecided(ctx context.Context, namespace string, manual func(labels.Set) bool) (all []*binding, undecided []string, err error) {
	deadline := w.clock.Now().Add(decisionTimeout)
	for wait := pollMin; ; wait = min(wait*2, pollMax) {
		if all, undecided, err = w.list(ctx, namespace, manual); err != nil {
			return nil, nil, err
		}
		if len(undecided) == 0 || !w.clock.Now().Before(deadline) {
			return all, undecided, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-w.clock.After(wait):
		}
	}
}

func (w *Workloads) list(ctx context.Context, namespace string, manual func(labels.Set) bool) ([]*binding, []string, error) {
	all, err := w.bindings(ctx, namespace)
	if err != nil {
		return nil, nil, err
	}
	objects := map[kschema.GroupVersionResource]map[string]*unstructured.Unstructured{}
	objectsOf := func(k interpret.KindInfo) (map[string]*unstructured.Unstructured, error) {
		if had, there := objects[k.GVR()]; there {
			return had, nil
		}
		list, err := w.dynamic.Resource(k.GVR()).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("list %s of namespace %s: %w", k.Resource, namespace, err)
		}
		found := map[string]*unstructured.Unstructured{}
		if err == nil {
			for i := range list.Items {
				found[list.Items[i].GetName()] = &list.Items[i]
			}
		}
		objects[k.GVR()] = found
		return found, nil
	}
	var undecided []string
	known := map[types.UID]bool{}
	for _, b := range all {
		known[b.Spec.Resource.UID] = true
		there, err := objectsOf(b.kind)
		if err != nil {
			return nil, nil, err
		}
		if o := there[b.Spec.Resource.Name]; o != nil && o.GetUID() == b.Spec.Resource.UID {
			b.object = o
		}
		if !b.decided(b.object != nil && manual(labelsOf(b.object))) {
			undecided = append(undecided, workloadAddress(b.Spec.Resource))
		}
	}
	// Objects without a binding are found by the table of kinds: those that it places will get one.
	for _, k := range w.knowledge.Kinds() {
		if !k.Placed || k.ClusterScoped {
			continue
		}
		there, err := objectsOf(k)
		if err != nil {
			return nil, nil, err
		}
		for name, o := range there {
			if !known[o.GetUID()] && o.GetDeletionTimestamp() == nil && manual(labelsOf(o)) && w.knowledge.StaysHome(o) == "" {
				undecided = append(undecided, workloadAddress(v1alpha1.ObjectReference{APIVersion: k.GroupVersion().String(), Kind: k.GroupVersionKind.Kind, Name: name}))
			}
		}
	}
	slices.Sort(undecided)
	return all, undecided, nil
}

// bindings lists the bindings of a namespace, sorted by the addresses of their objects. Without a fleet there
// are none.
func (w *Workloads) bindings(ctx context.Context, namespace string) ([]*binding, error) {
	list, err := w.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the ResourceBindings of namespace %s: %w", namespace, err)
	}
	var out []*binding
	for i := range list.Items {
		b, err := w.read(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *binding) int { return a.address().Compare(b.address()) })
	return out, nil
}

func (w *Workloads) read(u *unstructured.Unstructured) (*binding, error) {
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("decode ResourceBinding %s: %w", u.GetName(), err)
	}
	kind, _ := w.knowledge.ForBinding(b)
	return &binding{ResourceBinding: b, kind: kind}, nil
}

// loadObject reads the object of a binding, if that was not done.
func (w *Workloads) loadObject(ctx context.Context, b *binding) error {
	if b.object != nil {
		return nil
	}
	o, err := w.dynamic.Resource(b.kind.GVR()).Namespace(b.Namespace).Get(ctx, b.Spec.Resource.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", workloadAddress(b.Spec.Resource), err)
	}
	if o.GetUID() == b.Spec.Resource.UID {
		b.object = o
	}
	return nil
}
