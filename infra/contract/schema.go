// Package contract says what a provider of infrastructure is to Atoll: which types
// of resources it has, what can be asked of it, and how it answers. It is the nouns
// of infra/: how providers are run is infra/provider's, how their types become kinds
// infra/schema's, and what to ask when infra/plan's.
//
// The words are those of the plug-in protocol of Terraform and OpenTofu, because
// everybody who wrote a provider knows them. Both versions of the protocol, 5 and 6,
// look the same from here.
package contract

import (
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// Catalog is what a provider of one version says that it has. It is safe for
// concurrent use. A large provider has 1,500 types and hundreds of megabytes of
// schemas, so a Catalog lists names cheaply and reads one schema at a time.
type Catalog interface {
	// Resources and DataSources are the names of types, sorted. Callers do not change
	// the lists.
	Resources() []string
	DataSources() []string
	// Resource and DataSource give the schema of one type. ErrUnknownType if the
	// provider has no such type. What they return is shared: nobody changes it.
	Resource(name string) (*Schema, error)
	DataSource(name string) (*Schema, error)
	// Config is the schema of the provider's own configuration.
	Config() *Schema
}

// Schema describes the values of one type. As JSON it goes to clients that make objects of what
// a state file has.
type Schema struct {
	// Version of the stored form. State of an older one is upgraded by the provider.
	Version int64 `json:"version"`
	Block   Block `json:"block"`
	// Identity is what the provider knows an object by, if it says.
	Identity []IdentityAttribute `json:"identity,omitempty"`
}

// Block is attributes, and blocks within, of which there is one or are several.
type Block struct {
	// Attributes and Blocks are sorted by name; no name is in both.
	Attributes  []Attribute   `json:"attributes,omitempty"`
	Blocks      []NestedBlock `json:"blocks,omitempty"`
	Description string        `json:"description,omitempty"`
	Markdown    bool          `json:"markdown,omitempty"`
	Deprecated  bool          `json:"deprecated,omitempty"`

	// implied and empty are there once Fix was called.
	implied *cty.Type
	empty   cty.Value
}

// Attribute is one value.
type Attribute struct {
	Name string `json:"name"`
	// Type of the value. Of an attribute with Nested it is the type that Nested implies.
	Type cty.Type `json:"type"`
	// Nested, if not nil, says more of an object, or of a list, set or map of objects.
	Nested *Object `json:"nested,omitempty"`
	// Required, Optional and Computed are as the provider says: Required alone, or one
	// or both of the others.
	Required bool `json:"required,omitempty"`
	Optional bool `json:"optional,omitempty"`
	Computed bool `json:"computed,omitempty"`
	// Sensitive values are shown to nobody who may not read Secrets.
	Sensitive bool `json:"sensitive,omitempty"`
	// WriteOnly values are passed to the provider and never come back, nor are stored.
	WriteOnly   bool   `json:"writeOnly,omitempty"`
	Deprecated  bool   `json:"deprecated,omitempty"`
	Description string `json:"description,omitempty"`
	Markdown    bool   `json:"markdown,omitempty"`
}

// Object is the type of an attribute that has attributes itself.
type Object struct {
	Attributes []Attribute `json:"attributes,omitempty"` // sorted by name
	Nesting    Nesting     `json:"nesting"`
}

// NestedBlock is a block within a block.
type NestedBlock struct {
	Name    string  `json:"name"`
	Block   Block   `json:"block"`
	Nesting Nesting `json:"nesting"`
	// Min and Max are how many there have to be; Max 0 is without a bound. Nothing
	// else says whether a block is required.
	Min int64 `json:"min,omitempty"`
	Max int64 `json:"max,omitempty"`
}

// Nesting is how often something is there, and what tells one from another.
type Nesting string

const (
	// NestingSingle is one object, or null.
	NestingSingle Nesting = "Single"
	// NestingGroup is one block that is never null: its attributes are.
	NestingGroup Nesting = "Group"
	// NestingList, NestingSet and NestingMap are several.
	NestingList Nesting = "List"
	NestingSet  Nesting = "Set"
	NestingMap  Nesting = "Map"
)

// IdentityAttribute is a part of what a provider knows an object by.
type IdentityAttribute struct {
	Name              string   `json:"name"`
	Type              cty.Type `json:"type"`
	RequiredForImport bool     `json:"requiredForImport,omitempty"`
	OptionalForImport bool     `json:"optionalForImport,omitempty"`
	Description       string   `json:"description,omitempty"`
}

// Attribute finds one by its name, nil if there is none.
func (b *Block) Attribute(name string) *Attribute { return findAttribute(b.Attributes, name) }

// Attribute finds one by its name, nil if there is none.
func (o *Object) Attribute(name string) *Attribute { return findAttribute(o.Attributes, name) }

func findAttribute(all []Attribute, name string) *Attribute {
	at, found := slices.BinarySearchFunc(all, name, func(a Attribute, name string) int { return compare(a.Name, name) })
	if !found {
		return nil
	}
	return &all[at]
}

// Nested finds a block by its name, nil if there is none.
func (b *Block) Nested(name string) *NestedBlock {
	at, found := slices.BinarySearchFunc(b.Blocks, name, func(n NestedBlock, name string) int { return compare(n.Name, name) })
	if !found {
		return nil
	}
	return &b.Blocks[at]
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// ImpliedType is the type of the values that the block describes: an object with
// each attribute and each block.
func (b *Block) ImpliedType() cty.Type {
	if b.implied != nil {
		return *b.implied
	}
	of := make(map[string]cty.Type, len(b.Attributes)+len(b.Blocks))
	for i := range b.Attributes {
		of[b.Attributes[i].Name] = b.Attributes[i].Type
	}
	for i := range b.Blocks {
		of[b.Blocks[i].Name] = b.Blocks[i].ImpliedType()
	}
	return cty.Object(of)
}

// Empty is the value of the block if nothing of it is written.
func (b *Block) Empty() cty.Value {
	if b.empty != cty.NilVal {
		return b.empty
	}
	of := make(map[string]cty.Value, len(b.Attributes)+len(b.Blocks))
	for i := range b.Attributes {
		of[b.Attributes[i].Name] = cty.NullVal(b.Attributes[i].Type)
	}
	for i := range b.Blocks {
		of[b.Blocks[i].Name] = b.Blocks[i].None()
	}
	return cty.ObjectVal(of)
}

// Fix works out the implied type of the block and its empty value, and those of the blocks within it, once and for all: they are asked for
// with each decision about a resource. Nobody changes the block afterwards.
func (b *Block) Fix() {
	for i := range b.Blocks {
		b.Blocks[i].Block.Fix()
	}
	implied := b.ImpliedType()
	b.implied, b.empty = &implied, b.Empty()
}

// None is the value where the block is not written. The protocol has no null for blocks that can be there several
// times, and none for a group.
func (n *NestedBlock) None() cty.Value {
	switch n.Nesting {
	case NestingGroup:
		return n.Block.Empty()
	case NestingSingle:
		return cty.NullVal(n.Block.ImpliedType())
	}
	one := n.Block.ImpliedType()
	free := n.ImpliedType() == cty.DynamicPseudoType
	switch {
	case n.Nesting == NestingSet:
		return cty.SetValEmpty(one)
	case n.Nesting == NestingMap && free:
		return cty.EmptyObjectVal
	case n.Nesting == NestingMap:
		return cty.MapValEmpty(one)
	case free:
		return cty.EmptyTupleVal
	}
	return cty.ListValEmpty(one)
}

// ImpliedType is the type of all blocks of the name together. A list of blocks
// with an attribute of any type is a tuple, a map of them an object: their elements
// need not be of one type.
func (n *NestedBlock) ImpliedType() cty.Type {
	return nest(n.Nesting, n.Block.ImpliedType())
}

// ImpliedType is the type of an attribute that the object describes.
func (o *Object) ImpliedType() cty.Type {
	of := make(map[string]cty.Type, len(o.Attributes))
	for i := range o.Attributes {
		of[o.Attributes[i].Name] = o.Attributes[i].Type
	}
	return nest(o.Nesting, cty.Object(of))
}

func nest(nesting Nesting, one cty.Type) cty.Type {
	switch nesting {
	case NestingList:
		if one.HasDynamicTypes() {
			return cty.DynamicPseudoType
		}
		return cty.List(one)
	case NestingSet:
		return cty.Set(one)
	case NestingMap:
		if one.HasDynamicTypes() {
			return cty.DynamicPseudoType
		}
		return cty.Map(one)
	}
	return one
}
