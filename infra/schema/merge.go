package schema

import (
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/atoll-dev/atoll/infra/contract"
)

// MergeTypes makes the types by which server-side apply merges objects. All types that it makes share what they have in
// common, so it is made once.
//
// A type only names what is merged otherwise than its form suggests: arguments that are sets, or sensitive. The rest
// is merged by what it is: objects field by field, lists as a whole. So whatever an argument may be, a string
// ${…} can stand for it, and an object with a field that the provider no longer has can still be applied
// and be told so.
type MergeTypes struct {
	schema *smd.Schema
	plain  typed.ParseableType
}

// Names that the library knows, and does not try to bring up to date when a type changes.
const (
	anyMerged = "__untyped_deduced_"
	anyAtomic = "__untyped_atomic_"
)

// Common types.
const (
	setType        = "set"
	atomicType     = "atomic"
	metaType       = "meta"
	statusType     = "status"
	lifecycleType  = "lifecycle"
	ownersType     = "owners"
	conditionsType = "conditions"
)

// NewMergeTypes makes what all types share.
func NewMergeTypes() *MergeTypes {
	m := &MergeTypes{schema: &smd.Schema{Types: []smd.TypeDef{
		{Name: anyMerged, Atom: anyForm(&smd.Map{ElementType: named(anyMerged)})},
		{Name: anyAtomic, Atom: atomicForm()},
		{Name: atomicType, Atom: atomicForm()},
		{Name: setType, Atom: listForm(&smd.List{ElementType: named(anyAtomic)})},
		{Name: ownersType, Atom: listForm(&smd.List{ElementType: named(anyAtomic), Keys: []string{"uid"}})},
		{Name: conditionsType, Atom: listForm(&smd.List{ElementType: named(anyMerged), Keys: []string{"type"}})},
		{Name: metaType, Atom: fields(merged("finalizers", named(setType)), merged("ownerReferences", named(ownersType)))},
		{Name: statusType, Atom: fields(merged("attributes", named(atomicType)), merged("conditions", named(conditionsType)))},
		{Name: lifecycleType, Atom: fields(merged(ignoreChanges, named(setType)), merged(replaceTriggeredBy, named(setType)))},
	}}}
	m.plain = m.parseable(nil)
	return m
}

// Of is the type of objects with the block for their spec.
func (m *MergeTypes) Of(block *contract.Block) typed.ParseableType {
	special := specialFields(block)
	if len(special) == 0 {
		return m.plain
	}
	return m.parseable(special)
}

func (m *MergeTypes) parseable(special []smd.StructField) typed.ParseableType {
	own := []smd.StructField{merged(ownDependsOn, named(setType)), merged(ownLifecycle, named(lifecycleType))}
	root := fields(
		merged("metadata", named(metaType)),
		merged("spec", smd.TypeRef{Inlined: fields(append(own, special...)...)}),
		merged("status", named(statusType)),
	)
	return typed.ParseableType{Schema: m.schema, TypeRef: smd.TypeRef{Inlined: root}}
}

// specialFields are the arguments that are merged otherwise than their form suggests. Within blocks and objects there are none: whoever
// owns a field that a type names does not own what is around it, and would lose it to an expression without a conflict.
func specialFields(b *contract.Block) []smd.StructField {
	var special []smd.StructField
	for i := range b.Attributes {
		switch a := &b.Attributes[i]; {
		case !settable(a):
		case isSensitive(a):
			// The name of a Secret by one hand and the key by another would be nobody's intention.
			special = append(special, merged(a.Name, named(atomicType)))
		case mergedAsSet(a):
			special = append(special, merged(a.Name, named(setType)))
		}
	}
	return special
}

// mergedAsSet: only elements that are one word each are told apart.
func mergedAsSet(a *contract.Attribute) bool {
	return a.Nested == nil && !isSensitive(a) && a.Type.IsSetType() && a.Type.ElementType().IsPrimitiveType()
}

func named(name string) smd.TypeRef { return smd.TypeRef{NamedType: &name} }

func merged(name string, ref smd.TypeRef) smd.StructField {
	return smd.StructField{Name: name, Type: ref}
}

// fields is an object of which some fields are named; it may be a string or a list, too.
func fields(special ...smd.StructField) smd.Atom {
	return anyForm(&smd.Map{Fields: special, ElementType: named(anyMerged)})
}

// anyForm is a scalar, a list that is taken as a whole, or the map.
func anyForm(m *smd.Map) smd.Atom {
	untyped := smd.Untyped
	return smd.Atom{Scalar: &untyped, List: &smd.List{ElementType: named(anyAtomic), ElementRelationship: smd.Atomic}, Map: m}
}

func atomicForm() smd.Atom {
	return anyForm(&smd.Map{ElementType: named(anyAtomic), ElementRelationship: smd.Atomic})
}

// listForm is the list, or whatever else somebody wrote in its place.
func listForm(list *smd.List) smd.Atom {
	list.ElementRelationship = smd.Associative
	atom := anyForm(&smd.Map{ElementType: named(anyMerged)})
	atom.List = list
	return atom
}
