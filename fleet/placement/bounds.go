package placement

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ReasonOutOfBounds means that the bounds of a ClusterPlacement exclude the cluster.
const ReasonOutOfBounds = "OutOfBounds"

// bound is which clusters the objects of some namespaces may use at all.
type bound struct {
	ref        v1alpha1.PolicyReference
	namespaces labels.Selector // nil selects all, and cluster-scoped objects
	clusters   *selector
	err        error
}

// onlyBounds reports whether a policy has bounds and nothing else: it does not decide where objects run.
func onlyBounds(spec *v1alpha1.ClusterPlacementSpec) bool {
	return spec.Bounds != nil && isEmpty(&spec.PlacementSpec)
}

// newBound compiles the bounds of a policy. They are always those of its current spec: an edit of bounds waits for no
// approval and no step, because the content before it may allow more.
func newBound(s *Subject) *bound {
	b := &bound{ref: v1alpha1.PolicyReference{Kind: s.Kind, Name: s.Meta.Name, UID: s.Meta.UID, Generation: s.Meta.Generation}}
	var err error
	if s.Spec.NamespaceSelector != nil {
		if b.namespaces, err = metav1.LabelSelectorAsSelector(s.Spec.NamespaceSelector); err != nil {
			// Which namespaces are meant is not known: none of them gets another cluster.
			b.namespaces, b.err = nil, fmt.Errorf("spec.namespaceSelector: %w", err)
			return b
		}
	}
	if b.clusters, err = compileSelector(s.Spec.Bounds); err != nil {
		b.err = fmt.Errorf("spec.bounds.%w", err)
	}
	return b
}

// appliesTo reports whether a bound is for an object, whatever selects the object otherwise: its own labels must not
// lead out of the bounds.
func (b *bound) appliesTo(t *PolicyTarget) bool {
	if b.namespaces == nil {
		return true
	}
	switch {
	case isNamespace(t.GroupKind):
		return b.namespaces.Matches(labels.Set(t.Labels))
	case t.Namespace == "":
		return false
	}
	return b.namespaces.Matches(labels.Set(t.NamespaceLabels))
}

// boundsOf returns the policies whose bounds are for an object, by name.
func (p *Policies) boundsOf(t *PolicyTarget) (out []v1alpha1.PolicyReference) {
	for _, b := range p.bounds {
		if b.appliesTo(t) {
			out = append(out, b.ref)
		}
	}
	return out
}

// OutOfBounds returns the clusters that the bounds of all ClusterPlacements together exclude for an object. The object
// leaves such a cluster even if it can go nowhere else: a label that names the cluster must not keep it there. If the
// bounds are invalid, or exclude all clusters, that is rather a mistake: the object stays, and goes to no further cluster.
func (p *Policies) OutOfBounds(t PolicyTarget, f *Fleet) map[string]Obstacle {
	var out map[string]Obstacle
	for _, b := range p.bounds {
		if !b.appliesTo(&t) {
			continue
		}
		if out == nil {
			out = map[string]Obstacle{}
		}
		for name, o := range p.excluded(b, f) {
			if known, is := out[name]; !is || known.Keeps {
				out[name] = o
			}
		}
	}
	if len(out) == len(f.clusters) {
		for name, o := range out {
			o.Keeps, o.Leaves = true, false
			out[name] = o
		}
	}
	return out
}

// excluded returns the clusters that one bound excludes. The result is kept for the next objects.
func (p *Policies) excluded(b *bound, f *Fleet) map[string]Obstacle {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boundFleet != f {
		p.boundFleet, p.outOfBounds = f, map[*bound]map[string]Obstacle{}
	}
	if known, is := p.outOfBounds[b]; is {
		return known
	}
	out := map[string]Obstacle{}
	for i := range f.clusters {
		c := &f.clusters[i]
		if b.err != nil {
			out[c.Name] = Obstacle{Reason: ReasonOutOfBounds, Keeps: true, Message: fmt.Sprintf("gets no further objects: the bounds of ClusterPlacement %s are invalid (%v)", b.ref.Name, b.err)}
		} else if why := b.clusters.against(c, f.object(int32(i))); why != "" {
			out[c.Name] = Obstacle{Reason: ReasonOutOfBounds, Leaves: true, Message: fmt.Sprintf("is out of the bounds of ClusterPlacement %s: %s", b.ref.Name, why)}
		}
	}
	p.outOfBounds[b] = out
	return out
}
