package providerapi

// Level is the common part of a block and of an attribute with nested attributes.
type Level struct {
	Attributes []Attribute
	Blocks     []NestedBlock
}

// BlockLevel returns the attributes and blocks of a block.
func BlockLevel(b *Block) Level { return Level{b.Attributes, b.Blocks} }

// ObjectLevel returns the attributes of an object.
func ObjectLevel(o *Object) Level { return Level{Attributes: o.Attributes} }
