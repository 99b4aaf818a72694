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
type Catalog struct {
	order          []schema.GroupKind
	base           map[schema.GroupKind]KindInfo // without customizations
	customizations map[schema.GroupKind]Customization
	kinds          map[schema.GroupKind]KindInfo // with customizations
	answers        Answers
}

// BuiltIn returns the built-in table.
func BuiltIn() Catalog {
	return Catalog{}.With(Kinds()...)
}

// With adds kinds, or replaces their interpretation. A new kind comes last in the order of
// applying. Existing customizations apply to it.
func (c Catalog) With(kinds ...KindInfo) Catalog {
	out := c.copied()
	for _, k := range kinds {
		gk := k.GroupKind()
		if _, known := out.base[gk]; !known {
			out.order = append(out.order, gk)
		}
		out.base[gk] = k
		out.customize(gk)
	}
	return out
}

// Without removes kinds.
func (c Catalog) Without(kinds ...schema.GroupKind) Catalog {
	out := c.copied()
	for _, gk := range kinds {
		delete(out.base, gk)
		delete(out.kinds, gk)
		out.order = slices.DeleteFunc(out.order, func(o schema.GroupKind) bool { return o == gk })
	}
	return out
}

// WithCustomizations replaces all customizations: see Customizations.
func (c Catalog) WithCustomizations(customizations ...Customization) Catalog {
	out := c.copied()
	out.customizations = map[schema.GroupKind]Customization{}
	for _, l := range customizations {
		out.customizations[l.Target] = l
	}
	for _, gk := range out.order {
		out.customize(gk)
	}
	return out
}

// AnsweredBy returns a Catalog whose customizations have the answers of their webhooks from answers.
func (c Catalog) AnsweredBy(answers Answers) Catalog {
	out := c.copied()
	out.answers = answers
	for _, gk := range out.order {
		out.customize(gk)
	}
	return out
}

func (c Catalog) copied() Catalog {
	out := Catalog{order: slices.Clone(c.order), base: maps.Clone(c.base), kinds: maps.Clone(c.kinds), customizations: c.customizations, answers: c.answers}
	if out.base == nil {
		out.base, out.kinds = map[schema.GroupKind]KindInfo{}, map[schema.GroupKind]KindInfo{}
	}
	return out
}

// customize applies the customization of a kind, if there is one.
func (c Catalog) customize(gk schema.GroupKind) {
	k := c.base[gk]
	if l, ok := c.customizations[gk]; ok {
		k = l.applyTo(k, c.answers)
	}
	c.kinds[gk] = k
}

// Find returns the interpretation of a kind. It returns false for kinds that are neither in the
// table nor were added: see Generic.
func (c Catalog) Find(gk schema.GroupKind) (KindInfo, bool) {
	k, ok := c.kinds[gk]
	return k, ok
}

// Kinds returns all kinds, dependencies first.
func (c Catalog) Kinds() []KindInfo {
	out := make([]KindInfo, len(c.order))
	for i, gk := range c.order {
		out[i] = c.kinds[gk]
	}
	return out
}

// StaysHome returns why an object is never placed, or "" if it may be.
func (c Catalog) StaysHome(obj *unstructured.Unstructured) string {
	return staysHome(obj, c.Find)
}

// ForBinding returns the interpretation of a binding's kind, in the version that is bound. For an
// unknown kind, it is built from the binding alone, which is enough to find the object in a
// cluster. It returns false if the binding does not name the resource.
func (c Catalog) ForBinding(b *v1alpha1.ResourceBinding) (KindInfo, bool) {
	ref := b.Spec.Resource
	gvk := ref.GroupVersionKind()
	if IsNamespace(gvk.GroupKind()) {
		return NamespaceKind(), true
	}
	kind, known := c.Find(gvk.GroupKind())
	if !known {
		return Generic(gvk, ref.Resource, b.Namespace == "", nil), ref.Resource != ""
	}
	kind.Version = gvk.Version
	if ref.Resource != "" {
		kind.Resource = ref.Resource
	}
	return kind, true
}
