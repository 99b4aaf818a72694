package plans

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// workloadStore reads workloads in member clusters through their ResourceBindings. Plans contain the
// scheduler's proposals, and applies write approvals back. It uses only the fleet's API, because the
// scheduler may run in another server.
type workloadStore struct {
	dynamic   dynamic.Interface
	clock     clock.WithTicker
	knowledge interpret.Catalog
}

func newWorkloadStore(client dynamic.Interface, c clock.WithTicker) *workloadStore {
	return &workloadStore{dynamic: client, clock: c, knowledge: interpret.BuiltIn()}
}

// binding is a ResourceBinding with its object, or nil if that does not exist.
type binding struct {
	*v1alpha1.ResourceBinding
	object *unstructured.Unstructured
	kind   interpret.KindInfo
}

func (b *binding) address() change.Address {
	ref := b.Spec.Resource
	return change.WorkloadAddress(b.Namespace, ref.APIVersion, ref.Kind, ref.Name)
}

// awaitsApproval reports whether there is a proposal that is not approved.
func (b *binding) awaitsApproval() bool {
	return b.Status.Proposal != nil && b.Spec.Approved != b.Status.Proposal.Digest
}

// decided reports whether the scheduler has decided about the current object. manual is true if a policy
// requires plans for it.
func (b *binding) decided(manual bool) bool {
	proposal := b.Status.Proposal
	switch {
	case b.object == nil:
		return proposal != nil && proposal.Remove && b.awaitsApproval() || b.Spec.Manual == nil || b.Spec.Manual.Removal
	case b.object.GetDeletionTimestamp() != nil:
		return true
	case b.Spec.Manual == nil:
		return !manual
	case proposal == nil:
		return b.Spec.Manual.Content == b.kind.Digest(b.object)
	case proposal.Remove:
		return true
	}
	return b.awaitsApproval() && proposal.Object == b.kind.Digest(b.object)
}

// waitDecided lists the workloads of a namespace once the scheduler has decided about all recent writes.
// undecided are those without a decision after decisionTimeout.
func (w *workloadStore) waitDecided(ctx context.Context, namespace string, manual func(labels.Set) bool) (all []*binding, undecided []string, err error) {
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

func (w *workloadStore) list(ctx context.Context, namespace string, manual func(labels.Set) bool) ([]*binding, []string, error) {
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
func (w *workloadStore) bindings(ctx context.Context, namespace string) ([]*binding, error) {
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

func (w *workloadStore) read(u *unstructured.Unstructured) (*binding, error) {
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("decode ResourceBinding %s: %w", u.GetName(), err)
	}
	kind, _ := w.knowledge.ForBinding(b)
	return &binding{ResourceBinding: b, kind: kind}, nil
}

// loadObject reads the object of a binding, if that was not done.
func (w *workloadStore) loadObject(ctx context.Context, b *binding) error {
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

// workloadAddress returns KIND.GROUP/NAME.
func workloadAddress(ref v1alpha1.ObjectReference) string {
	if group := ref.GroupVersionKind().Group; group != "" {
		return ref.Kind + "." + group + "/" + ref.Name
	}
	return ref.Kind + "/" + ref.Name
}

// change returns the proposal as a change of a plan.
func (b *binding) change(before, after map[string]any, note string) (*change.Change, error) {
	proposal := b.Status.Proposal
	w := change.Workload{
		Address: b.address(), Detail: strings.TrimPrefix(proposal.Message+note, "; "),
		Before:  change.WorkloadState{Clusters: replicasOf(b.Spec.Clusters), Object: before},
		After:   change.WorkloadState{Clusters: replicasOf(proposal.Clusters), Object: after},
		Removed: proposal.Remove || len(proposal.Clusters) == 0 && len(b.Spec.Clusters) > 0,
		Uses:    b.secrets(), Preconditions: b.preconditions(),
	}
	return w.Change()
}

// Prefixes of the preconditions of a workload's change: its binding, its proposal and its object.
const (
	bindingPrefix  = "binding "
	proposalPrefix = "proposal "
	objectPrefix   = "object "
)

func (b *binding) preconditions() []string {
	return []string{bindingPrefix + string(b.UID), proposalPrefix + b.Status.Proposal.Digest, objectPrefix + cmp.Or(b.Status.Proposal.Object, "none")}
}

func replicasOf(shares []v1alpha1.ClusterShare) map[string]*int32 {
	out := map[string]*int32{}
	for _, c := range shares {
		out[c.Name] = c.Replicas
	}
	return out
}

// secrets returns the names of the Secrets that the object needs.
func (b *binding) secrets() []string {
	if b.object == nil {
		return nil
	}
	needs, err := b.kind.Needs(b.object)
	if err != nil {
		return nil // the scheduler reports this on the object
	}
	names := map[string]bool{}
	for _, n := range needs {
		if n.Kind == "Secret" && n.Group == "" && cmp.Or(n.Namespace, b.Namespace) == b.Namespace {
			names[n.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// labelsOf never returns nil, which would mean any labels.
func labelsOf(o *unstructured.Unstructured) labels.Set {
	if set := o.GetLabels(); set != nil {
		return set
	}
	return labels.Set{}
}

// includesWorkloads reports whether a plan includes the waiting workloads of its namespace. A plan with
// targets, or one that a policy created, does not: a workload that waits for a user's approval would hold up
// the rest.
func includesWorkloads(p *infrav1.Plan, s *snapshot) bool {
	return len(s.workloads) > 0 && modeOf(&p.Spec) == change.Normal && !isSpeculative(p) && len(p.Spec.Targets) == 0 && p.Labels[policyLabel] == ""
}

// workloadChanges returns the changes of workloads for a plan, and problems for those that are undecided.
func (r *reconciler) workloadChanges(ctx context.Context, p *infrav1.Plan, s *snapshot, selector labels.Selector) ([]*change.Change, []infrav1.Problem, error) {
	if r.workloads == nil || !includesWorkloads(p, s) {
		return nil, nil, nil
	}
	all, undecided, err := r.workloads.waitDecided(ctx, p.Namespace, func(set labels.Set) bool { return approval.RequiresPlan(s.workloads, set) })
	if err != nil {
		return nil, nil, err
	}
	var problems []infrav1.Problem
	for _, address := range undecided {
		problems = append(problems, infrav1.Problem{Address: address, Message: fmt.Sprintf("the fleet's scheduler has not decided about it within %s: plan again, and check its ResourceBinding if that does not help", decisionTimeout)})
	}
	past := &history{api: r.api.plans, dynamic: r.dynamic, namespace: p.Namespace}
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

// isProposed reports whether a change still matches the current proposal.
func isProposed(all []*binding, c *change.Change) bool {
	return slices.ContainsFunc(all, func(b *binding) bool {
		return b.address() == c.Address && b.awaitsApproval() && slices.Equal(b.preconditions(), c.Preconditions)
	})
}

// precondition returns the value of the precondition with a prefix.
func precondition(all []string, prefix string) string {
	for _, one := range all {
		if text, is := strings.CutPrefix(one, prefix); is {
			return text
		}
	}
	return ""
}
