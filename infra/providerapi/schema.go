// Package providerapi defines what a provider of infrastructure is to Atoll: the types it has, the calls it
// takes, and its answers. It contains the nouns of infra/: infra/plugin runs providers, infra/schema maps
// their types to kinds, and infra/decide decides what to call.
//
// The terms are those of the plug-in protocol of Terraform and OpenTofu, because provider authors know them.
// Versions 5 and 6 of the protocol look the same from here.
package providerapi

import (
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// Catalog lists the types of one version of a provider. It is safe for concurrent use. A large provider has
// 1,500 types and hundreds of megabytes of schemas, so a Catalog lists names cheaply and decodes one schema
// at a time.
type Catalog interface {
	// Resources and DataSources return the names of types, sorted. Callers must not modify the slices.
	Resources() []string
	DataSources() []string
	// Resource and DataSource return the schema of one type, or ErrUnknownType. The result is shared and must
	// not be modified.
	Resource(name string) (*Schema, error)
	DataSource(name string) (*Schema, error)
	// Config returns the schema of the provider's own configuration.
	Config() *Schema
	// Functions returns the names of the provider's functions, sorted, and Function the signature of one, or
	// ErrUnknownFunction.
	Functions() []string
	Function(name string) (*Function, error)
}

// Function is the signature of a provider's function.
type Function struct {
	Parameters []Parameter
	// Variadic, if not nil, accepts any number of further arguments.
	Variadic *Parameter
	Result   cty.Type
	// Description is Markdown or plain text.
	Description string
}

// Parameter is a parameter of a function.
type Parameter struct {
	Name      string
	Type      cty.Type
	AllowNull bool
}

// Schema describes the values of one type. Clients that create objects from a state file receive it as JSON.
type Schema struct {
	// Version of the stored form. The provider upgrades state of an older version.
	Version int64 `json:"version"`
	Block   Block `json:"block"`
	// Identity lists the attributes that identify a resource to the provider, if it declares them.
	Identity []IdentityAttribute `json:"identity,omitempty"`
}

// Block consists of attributes and nested blocks.
type Block struct {
	// Attributes and Blocks are sorted by name; no name is in both.
	Attributes  []Attribute   `json:"attributes,omitempty"`
	Blocks      []NestedBlock `json:"blocks,omitempty"`
	Description string        `json:"description,omitempty"`
	Markdown    bool          `json:"markdown,omitempty"`
	Deprecated  bool          `json:"deprecated,omitempty"`

	// implied and empty are cached by Precompute.
	implied *cty.Type
	empty   cty.Value
}

// Attribute is a value of a block or an object.
type Attribute struct {
	Name string `json:"name"`
	// Type of the value. If Nested is set, it is the type that Nested implies.
	Type cty.Type `json:"type"`
	// Nested, if not nil, describes an object, or a list, set or map of objects.
	Nested *Object `json:"nested,omitempty"`
	// Required, Optional and Computed are as the provider declares them: Required alone, or one or both of
	// the others.
	Required bool `json:"required,omitempty"`
	Optional bool `json:"optional,omitempty"`
	Computed bool `json:"computed,omitempty"`
	// Sensitive values are shown only to users who may read Secrets.
	Sensitive bool `json:"sensitive,omitempty"`
	// WriteOnly values are sent to the provider. They are never returned or stored.
	WriteOnly   bool   `json:"writeOnly,omitempty"`
	Deprecated  bool   `json:"deprecated,omitempty"`
	Description string `json:"description,omitempty"`
	Markdown    bool   `json:"markdown,omitempty"`
}

// Object describes an attribute that has attributes itself.
type Object struct {
	Attributes []Attribute `json:"attributes,omitempty"` // sorted by name
	Nesting    Nesting     `json:"nesting"`
}

// NestedBlock is a block within a block.
type NestedBlock struct {
	Name    string  `json:"name"`
	Block   Block   `json:"block"`
	Nesting Nesting `json:"nesting"`
	// Min and Max bound the number of blocks; Max 0 means no limit. Only they state whether a block is
	// required.
	Min int64 `json:"min,omitempty"`
	Max int64 `json:"max,omitempty"`
}

// Nesting is the collection that an object or block is nested in.
type Nesting string

const (
	// NestingSingle is one object, or null.
	NestingSingle Nesting = "Single"
	// NestingGroup is one block that is never null; its attributes may be.
	NestingGroup Nesting = "Group"
	// NestingList, NestingSet and NestingMap are collections.
	NestingList Nesting = "List"
	NestingSet  Nesting = "Set"
	NestingMap  Nesting = "Map"
)

// IdentityAttribute is an attribute of a resource's identity.
type IdentityAttribute struct {
	Name              string   `json:"name"`
	Type              cty.Type `json:"type"`
	RequiredForImport bool     `json:"requiredForImport,omitempty"`
	OptionalForImport bool     `json:"optionalForImport,omitempty"`
	Description       string   `json:"description,omitempty"`
}

// Attribute returns the attribute with a name, or nil.
func (b *Block) Attribute(name string) *Attribute { return findAttribute(b.Attributes, name) }

// Attribute returns the attribute with a name, or nil.
func (o *Object) Attribute(name string) *Attribute { return findAttribute(o.Attributes, name) }

func findAttribute(all []Attribute, name string) *Attribute {
	at, found := slices.BinarySearchFunc(all, name, func(a Attribute, name string) int { return compare(a.Name, name) })
	if !found {
		return nil
	}
	return &all[at]
}

// Nested returns the nested block with a name, or nil.
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

// ImpliedType returns the type of the block's values: an object with each attribute and each nested block.
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

// Empty returns the value of a block whose arguments are all absent.
func (b *Block) Empty() cty.Value {
	if b.empty != cty.NilVal {
		return b.empty
	}
	of := make(map[string]cty.Value, len(b.Attributes)+len(b.Blocks))
	for i := range b.Attributes {
		of[b.Attributes[i].Name] = cty.NullVal(b.Attributes[i].Type)
	}
	for i := range b.Blocks {
		of[b.Blocks[i].Name] = b.Blocks[i].Absent()
	}
	return cty.ObjectVal(of)
}

// Precompute caches the implied type and the empty value of the block and of its nested blocks. Every
// decision about a resource needs them. The block must not be modified afterwards.
func (b *Block) Precompute() {
	for i := range b.Blocks {
		b.Blocks[i].Block.Precompute()
	}
	implied := b.ImpliedType()
	b.implied, b.empty = &implied, b.Empty()
}

// Absent returns the value of an absent block. The protocol has no null for repeated blocks, and none for a
// group.
func (n *NestedBlock) Absent() cty.Value {
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

// ImpliedType returns the type of all blocks of the name together. A list of blocks with a dynamically typed
// attribute is a tuple, and a map of them an object, because their elements may differ in type.
func (n *NestedBlock) ImpliedType() cty.Type {
	return nest(n.Nesting, n.Block.ImpliedType())
}

// ImpliedType returns the type of an attribute that the object describes.
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
