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
	"github.com/atoll-dev/atoll/infra/plan"
)

const (
	// decidedWithin is how long a plan waits for the scheduler to have decided about what was written.
	decidedWithin = 10 * time.Second
	// lookAgain and lookSlowly are how soon what is waited for is looked at again, at first and later.
	lookAgain  = 20 * time.Millisecond
	lookSlowly = time.Second
)

// placements are workloads in member clusters, as their bindings say: what is proposed for them goes into plans, and what a plan
// allowed is written back. It knows the fleet by its API alone, for who decides may be another server.
type placements struct {
	dynamic   dynamic.Interface
	clock     clock.WithTicker
	knowledge interpret.Catalog
}

func newPlacements(client dynamic.Interface, c clock.WithTicker) *placements {
	return &placements{dynamic: client, clock: c, knowledge: interpret.BuiltIn()}
}

// bound is a binding with its object, which is nil if there is none.
type bound struct {
	*v1alpha1.ResourceBinding
	object *unstructured.Unstructured
	kind   interpret.KindInfo
}

func (b *bound) address() plan.Address {
	ref := b.Spec.Resource
	return plan.WorkloadAddress(b.Namespace, ref.APIVersion, ref.Kind, ref.Name)
}

// waits tells whether something is proposed that nobody has allowed yet.
func (b *bound) waits() bool {
	return b.Status.Proposal != nil && b.Spec.Approved != b.Status.Proposal.Digest
}

// decided tells whether the scheduler has decided about the object as it is now. manual says that plans decide
// about it.
func (b *bound) decided(manual bool) bool {
	proposal := b.Status.Proposal
	switch {
	case b.object == nil:
		return proposal != nil && proposal.Remove && b.waits() || b.Spec.Manual == nil || b.Spec.Manual.Removal
	case b.object.GetDeletionTimestamp() != nil:
		return true
	case b.Spec.Manual == nil:
		return !manual
	case proposal == nil:
		return b.Spec.Manual.Content == b.kind.Digest(b.object)
	case proposal.Remove:
		return true
	}
	return b.waits() && proposal.Object == b.kind.Digest(b.object)
}

// settled gives what there is of workloads in a namespace once the scheduler has decided about all that is written. undecided are
// those about which it has not after a while.
func (w *placements) settled(ctx context.Context, namespace string, manual func(labels.Set) bool) (all []*bound, undecided []string, err error) {
	deadline := w.clock.Now().Add(decidedWithin)
	for wait := lookAgain; ; wait = min(wait*2, lookSlowly) {
		if all, undecided, err = w.look(ctx, namespace, manual); err != nil {
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

func (w *placements) look(ctx context.Context, namespace string, manual func(labels.Set) bool) ([]*bound, []string, error) {
	all, err := w.bindings(ctx, namespace)
	if err != nil {
		return nil, nil, err
	}
	objects := map[kschema.GroupVersionResource]map[string]*unstructured.Unstructured{}
	of := func(k interpret.KindInfo) (map[string]*unstructured.Unstructured, error) {
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
		there, err := of(b.kind)
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
	// What has no binding yet is told by the table: what it places gets one.
	for _, k := range w.knowledge.Kinds() {
		if !k.Placed || k.ClusterScoped {
			continue
		}
		there, err := of(k)
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

// bindings are those of a namespace, by the addresses of what they are of. Without a fleet there are none.
func (w *placements) bindings(ctx context.Context, namespace string) ([]*bound, error) {
	list, err := w.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the ResourceBindings of namespace %s: %w", namespace, err)
	}
	var out []*bound
	for i := range list.Items {
		b, err := w.read(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *bound) int { return a.address().Compare(b.address()) })
	return out, nil
}

func (w *placements) read(u *unstructured.Unstructured) (*bound, error) {
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("the ResourceBinding %s cannot be read: %w", u.GetName(), err)
	}
	kind, _ := w.knowledge.ForBinding(b)
	return &bound{ResourceBinding: b, kind: kind}, nil
}

// withObject reads the object of a binding, if it was not read.
func (w *placements) withObject(ctx context.Context, b *bound) error {
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

// workloadAddress is KIND.GROUP/NAME.
func workloadAddress(ref v1alpha1.ObjectReference) string {
	if group := ref.GroupVersionKind().Group; group != "" {
		return ref.Kind + "." + group + "/" + ref.Name
	}
	return ref.Kind + "/" + ref.Name
}

// change is what a plan has of what is proposed.
func (b *bound) change(before, after map[string]any, note string) (*plan.Change, error) {
	proposal := b.Status.Proposal
	w := plan.Workload{
		Address: b.address(), Detail: strings.TrimPrefix(proposal.Message+note, "; "),
		Before:  plan.WorkloadState{Clusters: replicasOf(b.Spec.Clusters), Object: before},
		After:   plan.WorkloadState{Clusters: replicasOf(proposal.Clusters), Object: after},
		Removed: proposal.Remove || len(proposal.Clusters) == 0 && len(b.Spec.Clusters) > 0,
		Uses:    b.secrets(), Preconditions: b.preconditions(),
	}
	return w.Change()
}

// Preconditions of a workload's change: of which binding, which proposal, and of which object it is.
const (
	ofBinding  = "binding "
	ofProposal = "proposal "
	ofObject   = "object "
)

func (b *bound) preconditions() []string {
	return []string{ofBinding + string(b.UID), ofProposal + b.Status.Proposal.Digest, ofObject + cmp.Or(b.Status.Proposal.Object, "none")}
}

func replicasOf(shares []v1alpha1.ClusterShare) map[string]*int32 {
	out := map[string]*int32{}
	for _, c := range shares {
		out[c.Name] = c.Replicas
	}
	return out
}

// secrets are those that the object needs.
func (b *bound) secrets() []string {
	if b.object == nil {
		return nil
	}
	needs, err := b.kind.Needs(b.object)
	if err != nil {
		return nil // the scheduler says so on the object
	}
	names := map[string]bool{}
	for _, n := range needs {
		if n.Kind == "Secret" && n.Group == "" && cmp.Or(n.Namespace, b.Namespace) == b.Namespace {
			names[n.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// labelsOf are never nil: that would be of any.
func labelsOf(o *unstructured.Unstructured) labels.Set {
	if set := o.GetLabels(); set != nil {
		return set
	}
	return labels.Set{}
}

// ofWorkloads tells whether a plan is of workloads, too: of those that wait in its namespace, if plans decide about any. A plan that
// names what it is about, or that a policy makes by itself, is not: what waits for a person would hold up what does not.
func ofWorkloads(p *infrav1.Plan, s *scene) bool {
	return len(s.workloads) > 0 && modeOf(&p.Spec) == plan.Normal && !speculative(p) && len(p.Spec.Targets) == 0 && p.Labels[policyLabel] == ""
}

// manually tells whether workloads with these labels change by plans only; nil is of any.
func manually(policies []*policy, set labels.Set) bool {
	if set == nil {
		return slices.ContainsFunc(policies, func(p *policy) bool { return !p.auto() && len(p.spec.Providers) == 0 })
	}
	p := governing(policies, set, "")
	return p != nil && !p.auto()
}

// workloadChanges are what waits for a plan, as it has them, and what kept some from being planned.
func (d *desk) workloadChanges(ctx context.Context, p *infrav1.Plan, s *scene, selector labels.Selector) ([]*plan.Change, []infrav1.Problem, error) {
	if d.placements == nil || !ofWorkloads(p, s) {
		return nil, nil, nil
	}
	all, undecided, err := d.placements.settled(ctx, p.Namespace, func(set labels.Set) bool { return manually(s.workloads, set) })
	if err != nil {
		return nil, nil, err
	}
	var problems []infrav1.Problem
	for _, address := range undecided {
		problems = append(problems, infrav1.Problem{Address: address, Message: "the fleet's scheduler has not decided yet where it goes, or what becomes of it there: plan again, and look at its ResourceBinding if that does not help"})
	}
	past := &history{desk: d, namespace: p.Namespace}
	var out []*plan.Change
	for _, b := range all {
		if !b.waits() || slices.Contains(undecided, workloadAddress(b.Spec.Resource)) {
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

// proposed tells whether what a change names is still what is proposed.
func proposed(all []*bound, c *plan.Change) bool {
	return slices.ContainsFunc(all, func(b *bound) bool {
		return b.address() == c.Address && b.waits() && slices.Equal(b.preconditions(), c.Preconditions)
	})
}

// precondition is what one says.
func precondition(all []string, of string) string {
	for _, one := range all {
		if text, is := strings.CutPrefix(one, of); is {
			return text
		}
	}
	return ""
}
