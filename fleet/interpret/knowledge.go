package interpret

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Knowledge is all that is known of kinds at one moment: the table, and kinds
// that were added to it, and what people taught. It is a value: adding gives another one, so that who
// holds it while it changes still decides by one state of it.
type Knowledge struct {
	order   []schema.GroupKind
	known   map[schema.GroupKind]Kind // without lessons
	lessons map[schema.GroupKind]Lesson
	kinds   map[schema.GroupKind]Kind // with lessons
}

// BuiltIn gives the table.
func BuiltIn() Knowledge {
	return Knowledge{}.With(Kinds()...)
}

// With adds kinds, or replaces what was known of them. A kind that is new comes
// last in the order of applying. Lessons about it hold, whenever they were taught.
func (n Knowledge) With(kinds ...Kind) Knowledge {
	out := n.copied()
	for _, k := range kinds {
		gk := k.GroupKind()
		if _, known := out.known[gk]; !known {
			out.order = append(out.order, gk)
		}
		out.known[gk] = k
		out.teach(gk)
	}
	return out
}

// Without forgets kinds.
func (n Knowledge) Without(kinds ...schema.GroupKind) Knowledge {
	out := n.copied()
	for _, gk := range kinds {
		delete(out.known, gk)
		delete(out.kinds, gk)
		out.order = slices.DeleteFunc(out.order, func(o schema.GroupKind) bool { return o == gk })
	}
	return out
}

// Taught replaces all lessons: see Lessons.
func (n Knowledge) Taught(lessons ...Lesson) Knowledge {
	out := n.copied()
	out.lessons = map[schema.GroupKind]Lesson{}
	for _, l := range lessons {
		out.lessons[l.Target] = l
	}
	for _, gk := range out.order {
		out.teach(gk)
	}
	return out
}

func (n Knowledge) copied() Knowledge {
	out := Knowledge{order: slices.Clone(n.order), known: maps.Clone(n.known), kinds: maps.Clone(n.kinds), lessons: n.lessons}
	if out.known == nil {
		out.known, out.kinds = map[schema.GroupKind]Kind{}, map[schema.GroupKind]Kind{}
	}
	return out
}

// teach lays the lesson about a kind, if there is one, over what is known of it.
func (n Knowledge) teach(gk schema.GroupKind) {
	k := n.known[gk]
	if l, ok := n.lessons[gk]; ok {
		k = l.over(k)
	}
	n.kinds[gk] = k
}

// Find gives what is known of a kind. It is false for kinds that are neither in
// the table nor were added: see Generic.
func (n Knowledge) Find(gk schema.GroupKind) (Kind, bool) {
	k, ok := n.kinds[gk]
	return k, ok
}

// Kinds gives all kinds, those that others need first.
func (n Knowledge) Kinds() []Kind {
	out := make([]Kind, len(n.order))
	for i, gk := range n.order {
		out[i] = n.kinds[gk]
	}
	return out
}

// StaysHome tells why an object never goes to a member cluster, or "".
func (n Knowledge) StaysHome(obj *unstructured.Unstructured) string {
	return staysHome(obj, n.Find)
}

// Bound gives what is known of the kind that a binding is about, in the version that
// it is bound in. Of a kind that is not known that is what the binding itself says,
// which is enough to find the object in a cluster; it is false if that is nothing.
func (k Knowledge) Bound(b *v1alpha1.ResourceBinding) (Kind, bool) {
	ref := b.Spec.Resource
	gvk := ref.GroupVersionKind()
	kind, known := k.Find(gvk.GroupKind())
	if !known {
		return Generic(gvk, ref.Resource, b.Namespace == "", nil), ref.Resource != ""
	}
	kind.Version = gvk.Version
	if ref.Resource != "" {
		kind.Resource = ref.Resource
	}
	return kind, true
}
