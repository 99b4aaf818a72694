package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Manual knows which workloads change in clusters only by applied plans.
type Manual interface {
	// Ready returns once all policies that existed when it was called are known, or with an
	// error when ctx ends.
	Ready(ctx context.Context) error
	// Manual reports whether that applies to objects of a namespace with these labels; with nil
	// labels, whether it applies to any object. It does not block.
	Manual(namespace string, labels map[string]string) bool
	// OnChange calls notify, which must not block, whenever a result may have changed, until
	// cancelled.
	OnChange(notify func()) (cancel func())
}

// ReasonAwaitsPlan means that the decision differs from the clusters' current one, and a plan
// has to be applied before it takes effect.
const ReasonAwaitsPlan = "AwaitsPlan"

// isManual reports whether an object changes in clusters only by plans. That does not apply in
// a namespace that is being deleted: no plan could be applied there.
func (s *scheduler) isManual(namespace string, labels map[string]string) bool {
	if s.Manual == nil || namespace == "" {
		return false
	}
	ns, known := s.Namespaces.Get(namespace)
	return known && ns.GetDeletionTimestamp() == nil && s.Manual.Manual(namespace, labels)
}

// isHeld is isManual for an object with its binding, which may be nil. It also applies to the labels that the
// object had when a plan last allowed it: otherwise a change that drops a label would not wait for the plan.
func (s *scheduler) isHeld(namespace string, labels map[string]string, b *v1alpha1.ResourceBinding) bool {
	if s.isManual(namespace, labels) {
		return true
	}
	if b == nil || b.Spec.Manual == nil || b.Spec.Manual.Content == "" {
		return false
	}
	allowed := b.Spec.Manual.Labels
	if allowed == nil {
		allowed = map[string]string{} // not nil, which would mean any object
	}
	return s.isManual(namespace, allowed)
}

// mayAwaitPlan reports whether an object may have new content that waits for a plan, which the cache
// does not hold: of an opaque kind it has only the metadata.
func (s *scheduler) mayAwaitPlan(k interpret.KindInfo, was, is metav1.Object) bool {
	return k.Opaque && was.GetResourceVersion() != is.GetResourceVersion() && s.isManual(is.GetNamespace(), nil)
}

// holdForPlan holds back the parts of a binding's spec that no plan has allowed yet. own
// reports that the object is placed by its own decision. A follower goes along with its users,
// and only a change of its content is held.
//
// The state that exists when a policy starts to apply counts as allowed.
func (s *scheduler) holdForPlan(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, spec v1alpha1.ResourceBindingSpec, own bool) (v1alpha1.ResourceBindingSpec, *v1alpha1.BindingProposal) {
	if b != nil {
		spec.Approved = b.Spec.Approved
	}
	if !s.isHeld(obj.GetNamespace(), labelsOrNone(obj), b) {
		spec.Manual, spec.Approved = nil, ""
		return spec, nil
	}
	content := interpret.ContentDigest(obj)
	var was v1alpha1.ResourceBindingSpec
	switch {
	case b != nil && b.Spec.Manual != nil:
		was = decidedSpec(b)
		was.Manual = &v1alpha1.ManualBinding{Content: b.Spec.Manual.Content, Labels: b.Spec.Manual.Labels}
		if b.Spec.Manual.Content == content {
			was.Manual.Labels = obj.GetLabels() // an earlier version did not record them
		}
	case b != nil || !own:
		was = spec
		if b != nil {
			was = decidedSpec(b)
		}
		was.Manual = &v1alpha1.ManualBinding{Content: content, Labels: obj.GetLabels()}
	default:
		was.Manual = &v1alpha1.ManualBinding{}
	}
	changed := was.Manual.Content != content
	moved := own && !sameDecision(was, spec)
	if !changed && !moved {
		spec.Manual = was.Manual
		return spec, nil
	}
	p := &v1alpha1.BindingProposal{Digest: proposalDigest(content, spec), Object: content, Content: changed, Clusters: normalized(spec.Clusters)}
	if spec.Approved == p.Digest {
		// The approval is consumed: it does not apply to the next change.
		spec.Manual, spec.Approved = &v1alpha1.ManualBinding{Content: content, Labels: obj.GetLabels()}, ""
		return spec, nil
	}
	p.Message = describeProposal(was, spec, p)
	spec.Manual = was.Manual
	if own {
		spec.Clusters, spec.RequiredBy, spec.ScaledBy = was.Clusters, was.RequiredBy, was.ScaledBy
		spec.Dependencies, spec.Keep = was.Dependencies, was.Keep
		spec.Policy, spec.Overrides, spec.Suspend, spec.Drift, spec.Inputs = was.Policy, was.Overrides, was.Suspend, was.Drift, was.Inputs
		spec.RequestedRemovals, spec.Adopted, spec.ObjectGeneration = was.RequestedRemovals, was.Adopted, was.ObjectGeneration
		spec.Home = was.Home
	}
	return spec, p
}

// holdRemovalForPlan is holdForPlan for an object that is to leave all clusters: because it was
// deleted, or because it is to stay in the control plane from now on.
func (s *scheduler) holdRemovalForPlan(b *v1alpha1.ResourceBinding, labels map[string]string, why string) *v1alpha1.BindingProposal {
	if b.Spec.Manual == nil || b.Spec.Manual.Removal || !s.isHeld(b.Namespace, labels, b) || len(b.Spec.Clusters) == 0 && len(b.Status.Clusters) == 0 {
		return nil
	}
	p := &v1alpha1.BindingProposal{Digest: proposalDigest("removal of "+string(b.Spec.Resource.UID), v1alpha1.ResourceBindingSpec{}), Remove: true}
	if b.Spec.Approved == p.Digest {
		return nil
	}
	p.Message = fmt.Sprintf("%s: it would leave %s", why, describe(b.Decided()))
	return p
}

// sameDecision reports whether two decisions are equal for the clusters, apart from messages.
func sameDecision(a, b v1alpha1.ResourceBindingSpec) bool {
	return a.Suspend == b.Suspend && a.Drift == b.Drift && a.Dependencies == b.Dependencies && a.Keep == b.Keep && equality.Semantic.DeepEqual(a.Overrides, b.Overrides) &&
		equality.Semantic.DeepEqual(normalized(a.Clusters), normalized(b.Clusters))
}

// decidedSpec returns the spec of a binding as if the decision were in effect.
func decidedSpec(b *v1alpha1.ResourceBinding) v1alpha1.ResourceBindingSpec {
	out := b.Spec
	out.Clusters, out.Goal, out.Transition = b.Decided(), nil, nil
	return out
}

// normalized returns shares without their reasons and messages, sorted by name.
func normalized(shares []v1alpha1.ClusterShare) []v1alpha1.ClusterShare {
	out := make([]v1alpha1.ClusterShare, 0, len(shares))
	for _, c := range shares {
		c.Reason, c.Message, c.Revision = "Proposed", "", 0
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b v1alpha1.ClusterShare) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func proposalDigest(content string, spec v1alpha1.ResourceBindingSpec) string {
	data, err := json.Marshal([]any{content, normalized(spec.Clusters), spec.Overrides, spec.Suspend, spec.Drift, spec.Dependencies, spec.Keep})
	if err != nil {
		return "" // plain values can always be encoded
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func describeProposal(was, is v1alpha1.ResourceBindingSpec, p *v1alpha1.BindingProposal) string {
	var parts []string
	if from, to := describe(was.Clusters), describe(is.Clusters); from != to {
		parts = append(parts, fmt.Sprintf("%s → %s", from, to))
	} else if !sameDecision(was, is) {
		parts = append(parts, "the policy's settings for the clusters change")
	}
	if p.Content && len(was.Clusters) > 0 {
		parts = append(parts, "the object changes")
	}
	return strings.Join(parts, "; ")
}

// allowRemoval returns a binding whose object may leave all clusters, or nil if that waits for
// a plan.
func (s *scheduler) allowRemoval(ctx context.Context, b *v1alpha1.ResourceBinding, labels map[string]string, why string) (*v1alpha1.ResourceBinding, error) {
	if b.Spec.Manual == nil || b.Spec.Manual.Removal {
		return b, nil
	}
	if p := s.holdRemovalForPlan(b, labels, why); p != nil {
		return nil, s.applyCondition(ctx, nil, b, withAwaitsPlan(metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue}, p), p, b.Status.Transition, nil)
	}
	spec := b.Spec
	spec.Manual, spec.Approved = &v1alpha1.ManualBinding{Content: b.Spec.Manual.Content, Labels: b.Spec.Manual.Labels, Removal: true}, ""
	return s.updateSpec(ctx, b, spec)
}

// withAwaitsPlan sets the reason and message of a condition if a proposal waits for a plan.
func withAwaitsPlan(c metav1.Condition, p *v1alpha1.BindingProposal) metav1.Condition {
	if p == nil {
		return c
	}
	c.Reason, c.Message = ReasonAwaitsPlan, p.Message+": waiting for a plan of the namespace to be applied (see atoll plan)"
	return c
}

// watchManual queues everything when manual policies have changed, until cancelled.
func (s *scheduler) watchManual() (cancel func()) {
	if s.Manual == nil {
		return func() {}
	}
	return s.Manual.OnChange(func() {
		for _, k := range s.Kinds.All() {
			for _, b := range s.Bindings.Of(k.GroupKind()) {
				s.queue.Add(boundBy(b))
			}
			for obj := range s.Objects.All(k.GroupKind(), "") {
				s.queue.Add(refOf(k.GroupKind(), obj))
			}
		}
	})
}
