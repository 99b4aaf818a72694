package scheduler

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Edit is an edit of a policy that does not take effect at once for all objects.
type Edit struct {
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	// Objects is how many objects the edit changes.
	Objects int    `json:"objects"`
	Invalid bool   `json:"invalid,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Moves are the changes once it is in effect for all objects.
	Moves []Move `json:"moves"`
}

func (s *State) following(o object, obj metav1.Object) placement.Following {
	return following(s.bindings[KeyOf(o.GroupKind, o.Namespace, o.Name)], obj)
}

// subjects returns all policies.
func (s *State) subjects() (out []placement.Subject) {
	for _, p := range s.Placements {
		out = append(out, placement.SubjectOf(p))
	}
	for _, p := range s.ClusterPlacements {
		out = append(out, placement.SubjectOfCluster(p))
	}
	return out
}

// Settle puts the edits of some policies into effect that do not wait, as the scheduler will, and returns the others.
func (s *State) Settle(edited func(*placement.Subject) bool) (edits []Edit) {
	for _, p := range s.subjects() {
		if p.IsSettled() || !edited(&p) {
			continue
		}
		edit, atOnce := s.Edit(&p)
		if atOnce {
			*s = *s.approved(&p)
			continue
		}
		edits = append(edits, edit)
	}
	return edits
}

// Edit returns the edit of a policy that is not settled, and whether the scheduler puts it into effect at once.
func (s *State) Edit(p *placement.Subject) (edit Edit, atOnce bool) {
	before, next := s.Snapshot(), s.approved(p)
	invalid := error(nil)
	for _, i := range before.Policies.Invalid {
		if i.Reference.Kind == p.Kind && i.Reference.Name == p.Meta.Name && i.Namespace == p.Meta.Namespace {
			invalid = i.Err
		}
	}
	var changes []object
	if invalid == nil {
		after := next.Snapshot()
		before.Pending, after.Pending = nil, nil
		changes = changing(before, after, s.candidates())
	}
	v := judgeEdit(p, len(changes), invalid)
	return Edit{Kind: p.Kind, Namespace: p.Meta.Namespace, Name: p.Meta.Name, Generation: p.Meta.Generation, Objects: len(changes),
		Invalid: invalid != nil, Reason: v.reason, Message: v.message, Moves: next.Moves(next.Snapshot())}, v.atOnce
}

// approved returns the state as if the spec of a policy were in effect for all objects.
func (s *State) approved(p *placement.Subject) *State {
	out := *s
	out.Placements, out.ClusterPlacements = approvedIn(p, s.Placements), approvedClusterIn(p, s.ClusterPlacements)
	return &out
}

// candidates returns the placed objects, the followers and the Namespaces. Of followers, a State has the names and not the labels.
func (s *State) candidates() (out []candidate) {
	placed := map[string]bool{}
	for _, p := range s.Placed {
		placed[p.Key()] = true
		out = append(out, candidate{kind: p.Kind, meta: p.Object, binding: s.bindings[p.Key()], object: func() (*unstructured.Unstructured, bool) {
			return p.Object, s.bindings[p.Key()] != nil || s.Home(p.Object) == ""
		}})
	}
	for key, b := range s.bindings {
		if k, known := s.knowledge.Find(b.Spec.Resource.GroupVersionKind().GroupKind()); known && !k.Placed && !placed[key] {
			obj := &metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
			out = append(out, candidate{kind: k, meta: obj, binding: b})
		}
	}
	used := s.clustersWithObjects(nil)
	for name, labels := range s.Namespaces {
		if k := interpret.NamespaceKind(); !s.terminating[name] {
			out = append(out, candidate{kind: k, meta: &metav1.ObjectMeta{Name: name, Labels: labels}, binding: s.bindings[KeyOf(k.GroupKind(), "", name)], used: used[name]})
		}
	}
	return slices.Clip(out)
}

// Policy returns a policy of the state, if it exists.
func (s *State) Policy(kind, namespace, name string) (placement.Subject, bool) {
	all := s.subjects()
	i := slices.IndexFunc(all, func(p placement.Subject) bool {
		return p.Kind == kind && p.Meta.Namespace == namespace && p.Meta.Name == name
	})
	if i < 0 {
		return placement.Subject{}, false
	}
	return all[i], true
}
