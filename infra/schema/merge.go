package schema

import (
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// MergeTypes creates the types by which server-side apply merges objects. They share their common
// parts, so create it once.
//
// A type only names fields that are not merged by their form: arguments that are sets, or
// sensitive. All other fields have deduced types: objects are merged by field, lists are atomic. So
// an expression ${…}, which is a string, can stand for any argument. And an object with a field
// that the provider has removed can still be applied, so that validation can report the field.
type MergeTypes struct {
	schema *smd.Schema
	plain  typed.ParseableType
}

// Names that the merge library knows, and does not try to update when a type changes.
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

// NewMergeTypes creates the parts that all types share.
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

// Of returns the merge type of objects whose spec has the block.
func (m *MergeTypes) Of(block *providerapi.Block) typed.ParseableType {
	special := specialFields(block)
	if len(special) == 0 {
		return m.plain
	}
	return m.parseable(special)
}

func (m *MergeTypes) parseable(special []smd.StructField) typed.ParseableType {
	meta := []smd.StructField{merged(metaDependsOn, named(setType)), merged(metaLifecycle, named(lifecycleType))}
	root := fields(
		merged("metadata", named(metaType)),
		merged("spec", smd.TypeRef{Inlined: fields(append(meta, special...)...)}),
		merged("status", named(statusType)),
	)
	return typed.ParseableType{Schema: m.schema, TypeRef: smd.TypeRef{Inlined: root}}
}

// specialFields returns the arguments that are not merged by their form. It returns none within
// blocks and objects: the owner of a named field does not meta the object around it, and would lose
// the field to an expression without a conflict.
func specialFields(b *providerapi.Block) []smd.StructField {
	var special []smd.StructField
	for i := range b.Attributes {
		switch a := &b.Attributes[i]; {
		case !settable(a):
		case isSensitive(a):
			// One manager's Secret name with another's key is never intended.
			special = append(special, merged(a.Name, named(atomicType)))
		case mergedAsSet(a):
			special = append(special, merged(a.Name, named(setType)))
		}
	}
	return special
}

// mergedAsSet reports whether elements are merged individually, which requires scalar elements.
func mergedAsSet(a *providerapi.Attribute) bool {
	return a.Nested == nil && !isSensitive(a) && a.Type.IsSetType() && a.Type.ElementType().IsPrimitiveType()
}

func named(name string) smd.TypeRef { return smd.TypeRef{NamedType: &name} }

func merged(name string, ref smd.TypeRef) smd.StructField {
	return smd.StructField{Name: name, Type: ref}
}

// fields returns an object with some named fields. It may also be a string or a list.
func fields(special ...smd.StructField) smd.Atom {
	return anyForm(&smd.Map{Fields: special, ElementType: named(anyMerged)})
}

// anyForm returns a scalar, an atomic list, or the given map.
func anyForm(m *smd.Map) smd.Atom {
	untyped := smd.Untyped
	return smd.Atom{Scalar: &untyped, List: &smd.List{ElementType: named(anyAtomic), ElementRelationship: smd.Atomic}, Map: m}
}

func atomicForm() smd.Atom {
	return anyForm(&smd.Map{ElementType: named(anyAtomic), ElementRelationship: smd.Atomic})
}

// listForm returns the given list, or any other form in its place.
func listForm(list *smd.List) smd.Atom {
	list.ElementRelationship = smd.Associative
	atom := anyForm(&smd.Map{ElementType: named(anyMerged)})
	atom.List = list
	return atom
}
