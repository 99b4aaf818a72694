package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin5"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

func convertSchema(from *tfplugin6.Schema) (*providerapi.Schema, error) {
	block, err := convertBlock(from.GetBlock())
	if err != nil {
		return nil, err
	}
	return &providerapi.Schema{Version: from.GetVersion(), Block: block}, nil
}

func convertBlock(from *tfplugin6.Schema_Block) (providerapi.Block, error) {
	to := providerapi.Block{
		Description: from.GetDescription(),
		Markdown:    from.GetDescriptionKind() == tfplugin6.StringKind_MARKDOWN,
		Deprecated:  from.GetDeprecated(),
	}
	var err error
	if to.Attributes, err = convertAttributes(from.GetAttributes()); err != nil {
		return to, err
	}
	for _, nested := range from.GetBlockTypes() {
		block, err := convertNested(nested)
		if err != nil {
			return to, fmt.Errorf("block %q: %w", nested.GetTypeName(), err)
		}
		if to.Attribute(block.Name) != nil {
			return to, fmt.Errorf("%q is both an attribute and a block", block.Name)
		}
		to.Blocks = append(to.Blocks, block)
	}
	slices.SortFunc(to.Blocks, func(a, b providerapi.NestedBlock) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(to.Blocks); i++ {
		if to.Blocks[i].Name == to.Blocks[i-1].Name {
			return to, fmt.Errorf("block %q is defined twice", to.Blocks[i].Name)
		}
	}
	return to, nil
}

func convertNested(from *tfplugin6.Schema_NestedBlock) (providerapi.NestedBlock, error) {
	to := providerapi.NestedBlock{Name: from.GetTypeName(), Min: from.GetMinItems(), Max: from.GetMaxItems()}
	switch from.GetNesting() {
	case tfplugin6.Schema_NestedBlock_SINGLE:
		to.Nesting = providerapi.NestingSingle
	case tfplugin6.Schema_NestedBlock_GROUP:
		to.Nesting = providerapi.NestingGroup
	case tfplugin6.Schema_NestedBlock_LIST:
		to.Nesting = providerapi.NestingList
	case tfplugin6.Schema_NestedBlock_SET:
		to.Nesting = providerapi.NestingSet
	case tfplugin6.Schema_NestedBlock_MAP:
		to.Nesting = providerapi.NestingMap
	default:
		return to, fmt.Errorf("nesting %s is unknown", from.GetNesting())
	}
	var err error
	to.Block, err = convertBlock(from.GetBlock())
	return to, err
}

func convertAttributes(from []*tfplugin6.Schema_Attribute) ([]providerapi.Attribute, error) {
	to := make([]providerapi.Attribute, 0, len(from))
	for _, a := range from {
		attribute, err := convertAttribute(a)
		if err != nil {
			return nil, fmt.Errorf("attribute %q: %w", a.GetName(), err)
		}
		to = append(to, attribute)
	}
	slices.SortFunc(to, func(a, b providerapi.Attribute) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(to); i++ {
		if to[i].Name == to[i-1].Name {
			return nil, fmt.Errorf("attribute %q is defined twice", to[i].Name)
		}
	}
	return to, nil
}

func convertAttribute(from *tfplugin6.Schema_Attribute) (providerapi.Attribute, error) {
	to := providerapi.Attribute{
		Name:        from.GetName(),
		Required:    from.GetRequired(),
		Optional:    from.GetOptional(),
		Computed:    from.GetComputed(),
		Sensitive:   from.GetSensitive(),
		WriteOnly:   from.GetWriteOnly(),
		Deprecated:  from.GetDeprecated(),
		Description: from.GetDescription(),
		Markdown:    from.GetDescriptionKind() == tfplugin6.StringKind_MARKDOWN,
	}
	var err error
	if nested := from.GetNestedType(); nested != nil {
		if to.Nested, err = convertObject(nested); err == nil {
			to.Type = to.Nested.ImpliedType()
		}
		return to, err
	}
	to.Type, err = readType(from.GetType())
	return to, err
}

func convertObject(from *tfplugin6.Schema_Object) (*providerapi.Object, error) {
	to := &providerapi.Object{}
	switch from.GetNesting() {
	case tfplugin6.Schema_Object_SINGLE:
		to.Nesting = providerapi.NestingSingle
	case tfplugin6.Schema_Object_LIST:
		to.Nesting = providerapi.NestingList
	case tfplugin6.Schema_Object_SET:
		to.Nesting = providerapi.NestingSet
	case tfplugin6.Schema_Object_MAP:
		to.Nesting = providerapi.NestingMap
	default:
		return nil, fmt.Errorf("nesting %s is unknown", from.GetNesting())
	}
	var err error
	to.Attributes, err = convertAttributes(from.GetAttributes())
	return to, err
}

// readType decodes a type in a schema, which is in cty's JSON encoding.
func readType(from []byte) (t cty.Type, err error) {
	if len(from) == 0 {
		return cty.NilType, errors.New("it has no type")
	}
	if t, err = ctyjson.UnmarshalType(from); err != nil {
		return cty.NilType, fmt.Errorf("invalid type: %w", err)
	}
	return t, nil
}

// fromVersion5 converts a schema to protocol version 6. Attributes have some other field numbers in
// version 5, and no nested attributes.
func fromVersion5(from *tfplugin5.Schema) *tfplugin6.Schema {
	return &tfplugin6.Schema{Version: from.GetVersion(), Block: blockFromVersion5(from.GetBlock())}
}

func blockFromVersion5(from *tfplugin5.Schema_Block) *tfplugin6.Schema_Block {
	to := &tfplugin6.Schema_Block{
		Description:     from.GetDescription(),
		DescriptionKind: tfplugin6.StringKind(from.GetDescriptionKind()),
		Deprecated:      from.GetDeprecated(),
	}
	for _, a := range from.GetAttributes() {
		to.Attributes = append(to.Attributes, &tfplugin6.Schema_Attribute{
			Name: a.GetName(), Type: a.GetType(), Description: a.GetDescription(),
			Required: a.GetRequired(), Optional: a.GetOptional(), Computed: a.GetComputed(),
			Sensitive: a.GetSensitive(), WriteOnly: a.GetWriteOnly(), Deprecated: a.GetDeprecated(),
			DescriptionKind: tfplugin6.StringKind(a.GetDescriptionKind()),
		})
	}
	for _, nested := range from.GetBlockTypes() {
		to.BlockTypes = append(to.BlockTypes, &tfplugin6.Schema_NestedBlock{
			TypeName: nested.GetTypeName(), Block: blockFromVersion5(nested.GetBlock()),
			Nesting:  tfplugin6.Schema_NestedBlock_NestingMode(nested.GetNesting()),
			MinItems: nested.GetMinItems(), MaxItems: nested.GetMaxItems(),
		})
	}
	return to
}

// attributesAlong returns the attributes on the path of a value, as far as the schema has them.
func attributesAlong(block *providerapi.Block, path cty.Path) (found []*providerapi.Attribute) {
	var nested *providerapi.Object
	for _, step := range path {
		name, ok := step.(cty.GetAttrStep)
		if !ok {
			continue
		}
		var attribute *providerapi.Attribute
		switch {
		case nested != nil:
			attribute = nested.Attribute(name.Name)
		case block != nil:
			if inner := block.Nested(name.Name); inner != nil {
				block = &inner.Block
				continue
			}
			attribute = block.Attribute(name.Name)
		}
		if attribute == nil {
			return found
		}
		found = append(found, attribute)
		block, nested = nil, attribute.Nested
	}
	return found
}

// isWriteOnly reports whether the path ends at a write-only attribute.
func (k *typeSchema) isWriteOnly(path cty.Path) bool {
	if _, ok := path[len(path)-1].(cty.GetAttrStep); !ok {
		return false
	}
	along := attributesAlong(&k.schema.Block, path)
	return len(along) > 0 && along[len(along)-1].WriteOnly
}

func hasWriteOnly(block *providerapi.Block) bool {
	return anyWriteOnly(block.Attributes) ||
		slices.ContainsFunc(block.Blocks, func(n providerapi.NestedBlock) bool { return hasWriteOnly(&n.Block) })
}

func anyWriteOnly(attributes []providerapi.Attribute) bool {
	return slices.ContainsFunc(attributes, func(a providerapi.Attribute) bool {
		return a.WriteOnly || a.Nested != nil && anyWriteOnly(a.Nested.Attributes)
	})
}
