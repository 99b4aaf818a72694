package placing

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra/change"
)

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
		Before:  change.WorkloadState{Clusters: replicasOf(b.Decided()), Object: before},
		After:   change.WorkloadState{Clusters: replicasOf(proposal.Clusters), Object: after},
		Removed: proposal.Remove || len(proposal.Clusters) == 0 && len(b.Decided()) > 0,
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

// precondition returns the value of the precondition with a prefix.
func precondition(all []string, prefix string) string {
	for _, one := range all {
		if text, is := strings.CutPrefix(one, prefix); is {
			return text
		}
	}
	return ""
}

// labelSets returns the labels that the object has, and those that it had when a plan last allowed it.
func (b *binding) labelSets() []labels.Set {
	sets := []labels.Set{labelsOf(b.object)}
	if b.Spec.Manual != nil && b.Spec.Manual.Content != "" {
		allowed := labels.Set(b.Spec.Manual.Labels)
		if allowed == nil {
			allowed = labels.Set{}
		}
		sets = append(sets, allowed)
	}
	return sets
}

// labelsOf never returns nil, which would mean any labels.
func labelsOf(o *unstructured.Unstructured) labels.Set {
	if set := o.GetLabels(); set != nil {
		return set
	}
	return labels.Set{}
}
