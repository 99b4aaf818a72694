package interpret

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Catalog holds the interpretation of all kinds at one moment: the built-in table, the kinds that
// were added, and the customizations. It is a value: a change returns a new Catalog, so a decision
// that holds one uses a consistent state.
type Knowledge struct {
	order   []schema.GroupKind
	known   map[schema.GroupKind]Kind // without customizations
	lessons map[schema.GroupKind]Lesson
	kinds   map[schema.GroupKind]Kind // with customizations
}

// BuiltIn returns the built-in table.
func BuiltIn() Knowledge {
	return Knowledge{}.With(Kinds()...)
}

// With adds kinds, or replaces their interpretation. A new kind comes last in the order of
// applying. Existing customizations apply to it.
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

// Without removes kinds.
func (n Knowledge) Without(kinds ...schema.GroupKind) Knowledge {
	out := n.copied()
	for _, gk := range kinds {
		delete(out.known, gk)
		delete(out.kinds, gk)
		out.order = slices.DeleteFunc(out.order, func(o schema.GroupKind) bool { return o == gk })
	}
	return out
}

// WithCustomizations replaces all customizations: see Customizations.
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

// customize applies the customization of a kind, if there is one.
func (n Knowledge) teach(gk schema.GroupKind) {
	k := n.known[gk]
	if l, ok := n.lessons[gk]; ok {
		k = l.over(k)
	}
	n.kinds[gk] = k
}

// Find returns the interpretation of a kind. It returns false for kinds that are neither in the
// table nor were added: see Generic.
func (n Knowledge) Find(gk schema.GroupKind) (Kind, bool) {
	k, ok := n.kinds[gk]
	return k, ok
}

// Kinds returns all kinds, dependencies first.
func (n Knowledge) Kinds() []Kind {
	out := make([]Kind, len(n.order))
	for i, gk := range n.order {
		out[i] = n.kinds[gk]
	}
	return out
}

// StaysHome returns why an object is never placed, or "" if it may be.
func (n Knowledge) StaysHome(obj *unstructured.Unstructured) string {
	return staysHome(obj, n.Find)
}

// ForBinding returns the interpretation of a binding's kind, in the version that is bound. For an
// unknown kind, it is built from the binding alone, which is enough to find the object in a
// cluster. It returns false if the binding does not name the resource.
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
