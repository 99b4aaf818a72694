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

// Manual knows which workloads change in clusters only by plans that somebody applies.
type Manual interface {
	// Ready returns when all policies are known that there were when it was called, or with an error when ctx ends.
	Ready(ctx context.Context) error
	// Manual tells whether that is so of objects of a namespace with these labels; if they are nil,
	// whether it is so of any. It answers at once.
	Manual(namespace string, labels map[string]string) bool
	// OnChange calls notify, which does not block, whenever it may answer otherwise than before,
	// until it is cancelled.
	OnChange(notify func()) (cancel func())
}

// ReasonAwaitsPlan: the decision is another one than clusters have, and a plan has to be
// applied before they get it.
const ReasonAwaitsPlan = "AwaitsPlan"

// manually tells whether an object changes in clusters only by plans. One in a namespace that is on its way out
// does not: nobody could apply one there.
func (s *scheduler) manually(namespace string, labels map[string]string) bool {
	if s.manual == nil || namespace == "" {
		return false
	}
	ns, known := s.Namespace(namespace)
	return known && ns.GetDeletionTimestamp() == nil && s.manual.Manual(namespace, labels)
}

// gate holds back, of what a binding should say, what no plan has allowed yet. own says that the
// object stands where it does by its own decision: what merely follows goes along with
// what it follows, and only a change of what is in it is held.
//
// What there was when a policy began to hold counts as allowed.
func (s *scheduler) gate(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, spec v1alpha1.ResourceBindingSpec, own bool) (v1alpha1.ResourceBindingSpec, *v1alpha1.BindingProposal) {
	if b != nil {
		spec.Approved = b.Spec.Approved
	}
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{} // it has none, which is not to ask about any
	}
	if !s.manually(obj.GetNamespace(), labels) {
		spec.Manual, spec.Approved = nil, ""
		return spec, nil
	}
	content := interpret.ContentDigest(obj)
	var was v1alpha1.ResourceBindingSpec
	switch {
	case b != nil && b.Spec.Manual != nil:
		was = b.Spec
		was.Manual = &v1alpha1.ManualBinding{Content: b.Spec.Manual.Content}
	case b != nil || !own:
		was = spec
		if b != nil {
			was = b.Spec
		}
		was.Manual = &v1alpha1.ManualBinding{Content: content}
	default:
		was.Manual = &v1alpha1.ManualBinding{}
	}
	changed := was.Manual.Content != content
	moved := own && !sameDecision(was, spec)
	if !changed && !moved {
		spec.Manual = was.Manual
		return spec, nil
	}
	p := &v1alpha1.BindingProposal{Digest: proposalDigest(content, spec), Object: content, Content: changed, Clusters: plain(spec.Clusters)}
	if spec.Approved == p.Digest {
		// Allowed once, and no licence for the next time.
		spec.Manual, spec.Approved = &v1alpha1.ManualBinding{Content: content}, ""
		return spec, nil
	}
	p.Message = describeProposal(was, spec, p)
	spec.Manual = was.Manual
	if own {
		spec.Clusters, spec.RequiredBy, spec.ScaledBy = was.Clusters, was.RequiredBy, was.ScaledBy
		spec.Policy, spec.Overrides, spec.Suspend, spec.Drift = was.Policy, was.Overrides, was.Suspend, was.Drift
		spec.RequestedRemovals = was.RequestedRemovals
	}
	return spec, p
}

// gateRemoval is gate for an object that is to leave all clusters: because it was deleted, or
// because it is to stay in the control plane from now on.
func (s *scheduler) gateRemoval(b *v1alpha1.ResourceBinding, labels map[string]string, why string) *v1alpha1.BindingProposal {
	if b.Spec.Manual == nil || b.Spec.Manual.Removal || !s.manually(b.Namespace, labels) || len(b.Spec.Clusters) == 0 && len(b.Status.Clusters) == 0 {
		return nil
	}
	p := &v1alpha1.BindingProposal{Digest: proposalDigest("removal of "+string(b.Spec.Resource.UID), v1alpha1.ResourceBindingSpec{}), Remove: true}
	if b.Spec.Approved == p.Digest {
		return nil
	}
	p.Message = fmt.Sprintf("%s: it would leave %s", why, describe(b.Spec.Clusters))
	return p
}

// sameDecision tells whether two decisions say the same of clusters, in whatever words.
func sameDecision(a, b v1alpha1.ResourceBindingSpec) bool {
	return a.Suspend == b.Suspend && a.Drift == b.Drift && equality.Semantic.DeepEqual(a.Overrides, b.Overrides) &&
		equality.Semantic.DeepEqual(plain(a.Clusters), plain(b.Clusters))
}

// plain gives shares without the words that explain them, in order of their names.
func plain(shares []v1alpha1.ClusterShare) []v1alpha1.ClusterShare {
	out := make([]v1alpha1.ClusterShare, 0, len(shares))
	for _, c := range shares {
		c.Reason, c.Message = "Proposed", ""
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b v1alpha1.ClusterShare) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func proposalDigest(content string, spec v1alpha1.ResourceBindingSpec) string {
	data, err := json.Marshal([]any{content, plain(spec.Clusters), spec.Overrides, spec.Suspend, spec.Drift})
	if err != nil {
		return "" // these are plain values
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func describeProposal(was, is v1alpha1.ResourceBindingSpec, p *v1alpha1.BindingProposal) string {
	var parts []string
	if from, to := describe(was.Clusters), describe(is.Clusters); from != to {
		parts = append(parts, fmt.Sprintf("%s → %s", from, to))
	} else if !sameDecision(was, is) {
		parts = append(parts, "what a policy says of the clusters changes")
	}
	if p.Content && len(was.Clusters) > 0 {
		parts = append(parts, "the object changes")
	}
	return strings.Join(parts, "; ")
}

// letGo sees to it that what is to leave all clusters may: it gives the binding that says so, or nil if that
// waits for a plan.
func (s *scheduler) letGo(ctx context.Context, b *v1alpha1.ResourceBinding, labels map[string]string, why string) (*v1alpha1.ResourceBinding, error) {
	if b.Spec.Manual == nil || b.Spec.Manual.Removal {
		return b, nil
	}
	if p := s.gateRemoval(b, labels, why); p != nil {
		return nil, s.applyCondition(ctx, nil, b, await(metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue}, p), p)
	}
	spec := b.Spec
	spec.Manual, spec.Approved = &v1alpha1.ManualBinding{Content: b.Spec.Manual.Content, Removal: true}, ""
	return s.updateSpec(ctx, b, spec)
}

// await says in the condition that a proposal waits, and for what.
func await(c metav1.Condition, p *v1alpha1.BindingProposal) metav1.Condition {
	if p == nil {
		return c
	}
	c.Reason, c.Message = ReasonAwaitsPlan, p.Message+": waits for a plan of the namespace to be applied (atoll plan)"
	return c
}

// heedManual looks again at everything when policies have changed, until it is cancelled.
func (s *scheduler) heedManual() (cancel func()) {
	if s.manual == nil {
		return func() {}
	}
	return s.manual.OnChange(func() {
		for _, k := range s.Kinds() {
			for _, b := range s.BindingsOf(k.GroupKind()) {
				s.queue.Add(boundBy(b))
			}
			for obj := range s.Objects(k.GroupKind(), "") {
				s.queue.Add(refOf(k.GroupKind(), obj))
			}
		}
	})
}
