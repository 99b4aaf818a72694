package placement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// An edit of a policy may take effect later than it is stored: when it is approved, in steps, or when the
// objects change. Until then the policy has several contents in effect. Which one an object follows depends on
// the policy (spec, status and approval) and on the object's binding, so every leader computes the same.

// Subject is a Placement or a ClusterPlacement.
type Subject struct {
	Kind   string
	Meta   *metav1.ObjectMeta
	Spec   v1alpha1.ClusterPlacementSpec // of a Placement without a namespaceSelector
	Status *v1alpha1.PlacementStatus
}

// SubjectOf returns a Placement as a Subject.
func SubjectOf(p *v1alpha1.Placement) Subject {
	return Subject{"Placement", &p.ObjectMeta, v1alpha1.ClusterPlacementSpec{PlacementSpec: p.Spec}, &p.Status}
}

// SubjectOfCluster returns a ClusterPlacement as a Subject.
func SubjectOfCluster(p *v1alpha1.ClusterPlacement) Subject {
	return Subject{"ClusterPlacement", &p.ObjectMeta, p.Spec, &p.Status}
}

// Content is a policy's content at one generation. An object follows exactly one.
type Content struct {
	Generation int64
	Spec       v1alpha1.ClusterPlacementSpec
	Err        error // why a recorded content cannot be read
}

// InEffect returns the contents of a policy that are in effect, oldest first, and the rule for its edits. It
// returns one content if all objects follow the same.
func (s *Subject) InEffect() ([]Content, v1alpha1.ChangeMode) {
	spec := Content{Generation: s.Meta.Generation, Spec: s.Spec}
	if s.Status.Active == nil {
		return []Content{spec}, spec.Spec.Changes.Mode()
	}
	active := decodeContent(s.Status.Active)
	mode := active.Spec.Changes.Mode()
	switch {
	case s.Meta.Annotations[v1alpha1.ApprovedAnnotation] == strconv.FormatInt(s.Meta.Generation, 10):
		return []Content{spec}, mode
	case active.Err == nil && mode == v1alpha1.ChangeImmediate:
		return []Content{spec}, mode
	case active.Err == nil && len(s.Status.Later) == 0 && SameContent(&active.Spec, &s.Spec):
		return []Content{spec}, mode
	}
	contents := []Content{active}
	for i := range s.Status.Later {
		contents = append(contents, decodeContent(&s.Status.Later[i]))
	}
	return contents, mode
}

// Inputs identifies what InEffect depends on, within one policy.
func (s *Subject) Inputs() string {
	out := fmt.Sprintf("%d approved %s", s.Meta.Generation, s.Meta.Annotations[v1alpha1.ApprovedAnnotation])
	if s.Status.Active != nil {
		out += fmt.Sprintf(" active %d", s.Status.Active.Generation)
	}
	for _, c := range s.Status.Later {
		out += fmt.Sprintf(" later %d", c.Generation)
	}
	return out
}

// IsSettled reports whether all objects follow the policy's current spec.
func (s *Subject) IsSettled() bool {
	contents, _ := s.InEffect()
	return len(contents) == 1 && contents[0].Generation == s.Meta.Generation
}

// Approved returns the policy as if its current spec were approved.
func (s *Subject) Approved() Subject {
	meta := s.Meta.DeepCopy()
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[v1alpha1.ApprovedAnnotation] = strconv.FormatInt(meta.Generation, 10)
	return Subject{s.Kind, meta, s.Spec, s.Status}
}

// SameContent reports whether two specs are equal.
func SameContent(a, b *v1alpha1.ClusterPlacementSpec) bool {
	one, err := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(one, other)
}

// Record returns a spec as the status of a policy keeps it.
func Record(generation int64, spec *v1alpha1.ClusterPlacementSpec) (v1alpha1.PolicyContent, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return v1alpha1.PolicyContent{}, fmt.Errorf("encode the content of generation %d: %w", generation, err)
	}
	out := v1alpha1.PolicyContent{Generation: generation}
	out.Spec.Raw = raw
	return out, nil
}

func decodeContent(c *v1alpha1.PolicyContent) Content {
	out := Content{Generation: c.Generation}
	if err := json.Unmarshal(c.Spec.Raw, &out.Spec); err != nil {
		out.Err = fmt.Errorf("read the content of generation %d in the status: %w", c.Generation, err)
	}
	return out
}

// Following is what determines which contents an object follows.
type Following struct {
	// Adopted are the later contents that it follows, where others follow the active one.
	Adopted []v1alpha1.PolicyVersion
	// Changed: it is new, it changed since its last decision, or a rebalance is requested, so it follows the
	// newest content of policies that change lazily.
	Changed bool
}

// edition is a policy with several contents in effect, or with an edit that waits.
type edition struct {
	mode     v1alpha1.ChangeMode
	versions []*rule // oldest first
}

// of returns the version that an object follows.
func (e *edition) of(f *Following) *rule {
	newest := e.versions[len(e.versions)-1]
	if e.mode == v1alpha1.ChangeLazy && f.Changed {
		return newest
	}
	for _, r := range slices.Backward(e.versions) {
		if slices.ContainsFunc(f.Adopted, func(v v1alpha1.PolicyVersion) bool { return v.UID == r.ref.UID && v.Generation == r.ref.Generation }) {
			return r
		}
	}
	return e.versions[0]
}

// HasFollowing reports whether choices depend on what objects follow.
func (p *Policies) HasFollowing() bool { return len(p.editions) > 0 || len(p.lazy) > 0 }

// follow adds to a choice the contents that the object follows by it.
func (p *Policies) follow(out *PolicyChoice, t *PolicyTarget) {
	for _, namespace := range []string{"", t.Namespace} {
		for _, e := range p.editions[namespace] {
			if !slices.ContainsFunc(e.versions, func(r *rule) bool { return r.matches(t) }) {
				continue
			}
			if r := e.of(&t.Following); r != e.versions[0] {
				out.Adopted = append(out.Adopted, v1alpha1.PolicyVersion{Kind: r.ref.Kind, Name: r.ref.Name, UID: r.ref.UID, Generation: r.ref.Generation})
			}
		}
		out.Lazy = out.Lazy || slices.ContainsFunc(p.lazy[namespace], func(r *rule) bool { return r.matches(t) })
		if t.Namespace == "" {
			break
		}
	}
}

// Suspends reports whether the policy of a reference exists and suspends the objects that follow it.
func (p *Policies) Suspends(ref *v1alpha1.PolicyReference, namespace string, f Following) bool {
	if ref.Kind == "ClusterPlacement" {
		namespace = ""
	}
	return slices.ContainsFunc(p.all(), func(r *rule) bool {
		return r.ref.Kind == ref.Kind && r.ref.Name == ref.Name && r.in == namespace && (r.edition == nil || r.edition.of(&f) == r) && r.suspends
	})
}
