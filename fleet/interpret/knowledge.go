package interpret

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Knowledge is all that is known of kinds at one moment: the table, and kinds
// that were added to it. It is a value: adding gives another one, so that who
// holds it while it changes still decides by one state of it.
type Knowledge struct {
	order []schema.GroupKind
	kinds map[schema.GroupKind]Kind
}

// BuiltIn gives the table.
func BuiltIn() Knowledge {
	return Knowledge{}.With(Kinds()...)
}

// With adds kinds, or replaces what was known of them. A kind that is new comes
// last in the order of applying.
func (n Knowledge) With(kinds ...Kind) Knowledge {
	out := Knowledge{order: slices.Clone(n.order), kinds: maps.Clone(n.kinds)}
	if out.kinds == nil {
		out.kinds = map[schema.GroupKind]Kind{}
	}
	for _, k := range kinds {
		if _, known := out.kinds[k.GroupKind()]; !known {
			out.order = append(out.order, k.GroupKind())
		}
		out.kinds[k.GroupKind()] = k
	}
	return out
}

// Without forgets kinds.
func (n Knowledge) Without(kinds ...schema.GroupKind) Knowledge {
	out := Knowledge{order: slices.Clone(n.order), kinds: maps.Clone(n.kinds)}
	for _, gk := range kinds {
		delete(out.kinds, gk)
		out.order = slices.DeleteFunc(out.order, func(o schema.GroupKind) bool { return o == gk })
	}
	return out
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
