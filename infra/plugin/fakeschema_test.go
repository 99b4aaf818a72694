package plugin

import (
	"context"

	"github.com/atoll-dev/atoll/infra/tfplugin5"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

func (f *fake) schema(_ context.Context, decode func(any) error) (any, error) {
	if err := decode(&tfplugin6.GetProviderSchema_Request{}); err != nil {
		return nil, err
	}
	f.asked.Store(true)
	if f.version == 5 {
		return fakeSchema5(), nil
	}
	return f.schema6(), nil
}

func (f *fake) identities(context.Context, *tfplugin6.GetResourceIdentitySchemas_Request) (*tfplugin6.GetResourceIdentitySchemas_Response, error) {
	return &tfplugin6.GetResourceIdentitySchemas_Response{IdentitySchemas: map[string]*tfplugin6.ResourceIdentitySchema{
		"fake_thing": {IdentityAttributes: []*tfplugin6.ResourceIdentitySchema_IdentityAttribute{
			{Name: "id", Type: []byte(`"string"`), RequiredForImport: true, Description: "What it is known by."},
		}},
	}}, nil
}

func (f *fake) schema6() *tfplugin6.GetProviderSchema_Response {
	attribute := func(name, t string, more ...func(*tfplugin6.Schema_Attribute)) *tfplugin6.Schema_Attribute {
		a := &tfplugin6.Schema_Attribute{Name: name, Type: []byte(t)}
		for _, m := range more {
			m(a)
		}
		return a
	}
	optional := func(a *tfplugin6.Schema_Attribute) { a.Optional = true }
	computed := func(a *tfplugin6.Schema_Attribute) { a.Computed = true }
	required := func(a *tfplugin6.Schema_Attribute) { a.Required = true }
	sensitive := func(a *tfplugin6.Schema_Attribute) { a.Sensitive = true }
	writeOnly := func(a *tfplugin6.Schema_Attribute) { a.WriteOnly = true }
	nested := func(mode tfplugin6.Schema_Object_NestingMode) func(*tfplugin6.Schema_Attribute) {
		return func(a *tfplugin6.Schema_Attribute) {
			a.Type, a.NestedType = nil, &tfplugin6.Schema_Object{Nesting: mode, Attributes: []*tfplugin6.Schema_Attribute{
				attribute("port", `"number"`, required), attribute("key", `"string"`, optional, sensitive),
			}}
		}
	}
	ports := &tfplugin6.Schema_Block{Attributes: []*tfplugin6.Schema_Attribute{attribute("port", `"number"`, optional)}}
	block := func(name string, mode tfplugin6.Schema_NestedBlock_NestingMode, least, most int64) *tfplugin6.Schema_NestedBlock {
		return &tfplugin6.Schema_NestedBlock{TypeName: name, Block: ports, Nesting: mode, MinItems: least, MaxItems: most}
	}
	return &tfplugin6.GetProviderSchema_Response{
		Provider: &tfplugin6.Schema{Block: &tfplugin6.Schema_Block{Attributes: []*tfplugin6.Schema_Attribute{
			attribute("token", `"string"`, optional, sensitive), attribute("fail", `"string"`, optional),
		}}},
		ResourceSchemas: map[string]*tfplugin6.Schema{
			"fake_bare": {},
			"fake_thing": {Version: 2, Block: &tfplugin6.Schema_Block{
				Description: "A *thing*.", DescriptionKind: tfplugin6.StringKind_MARKDOWN,
				Attributes: []*tfplugin6.Schema_Attribute{
					attribute("name", `"string"`, optional), attribute("id", `"string"`, computed), attribute("behave", `"string"`, optional),
					attribute("tags", `["map","string"]`, optional, computed), attribute("number", `"number"`, optional),
					attribute("any", `"dynamic"`, optional, computed), attribute("token", `"string"`, optional, sensitive),
					attribute("once", `"string"`, optional, writeOnly), attribute("pid", `"number"`, computed),
				},
				BlockTypes: []*tfplugin6.Schema_NestedBlock{block("rule", tfplugin6.Schema_NestedBlock_LIST, 0, 4)},
			}},
			"fake_nested": {Block: &tfplugin6.Schema_Block{
				Deprecated: true,
				Attributes: []*tfplugin6.Schema_Attribute{
					attribute("one", "", optional, nested(tfplugin6.Schema_Object_SINGLE)), attribute("list", "", optional, nested(tfplugin6.Schema_Object_LIST)),
					attribute("set", "", optional, nested(tfplugin6.Schema_Object_SET)), attribute("map", "", optional, nested(tfplugin6.Schema_Object_MAP)),
					attribute("tuple", `["tuple",["string",["object",{"a":"bool"}]]]`, computed),
				},
				BlockTypes: []*tfplugin6.Schema_NestedBlock{
					block("single_block", tfplugin6.Schema_NestedBlock_SINGLE, 0, 0), block("set_block", tfplugin6.Schema_NestedBlock_SET, 1, 0),
					block("map_block", tfplugin6.Schema_NestedBlock_MAP, 0, 0), block("group_block", tfplugin6.Schema_NestedBlock_GROUP, 1, 1),
				},
			}},
		},
		DataSourceSchemas: map[string]*tfplugin6.Schema{"fake_process": {Block: &tfplugin6.Schema_Block{Attributes: []*tfplugin6.Schema_Attribute{
			attribute("environment", `["list","string"]`, computed), attribute("directory", `"string"`, computed), attribute("status", `"string"`, computed),
			attribute("uid", `"number"`, computed), attribute("group", `"number"`, computed), attribute("pid", `"number"`, computed), attribute("most", `"number"`, computed),
		}}}},
		ServerCapabilities: &tfplugin6.ServerCapabilities{PlanDestroy: f.is("plandestroy")},
	}
}

// fakeSchema5 is the schema in protocol version 5, with fewer types.
func fakeSchema5() *tfplugin5.GetProviderSchema_Response {
	six := (&fake{}).schema6()
	a := &tfplugin5.GetProviderSchema_Response{
		Provider:          schemaTo5(six.Provider),
		ResourceSchemas:   map[string]*tfplugin5.Schema{},
		DataSourceSchemas: map[string]*tfplugin5.Schema{},
	}
	for _, name := range []string{"fake_bare", "fake_thing"} {
		a.ResourceSchemas[name] = schemaTo5(six.ResourceSchemas[name])
	}
	for name, s := range six.DataSourceSchemas {
		a.DataSourceSchemas[name] = schemaTo5(s)
	}
	return a
}

func schemaTo5(from *tfplugin6.Schema) *tfplugin5.Schema {
	return &tfplugin5.Schema{Version: from.Version, Block: blockTo5(from.Block)}
}

func blockTo5(from *tfplugin6.Schema_Block) *tfplugin5.Schema_Block {
	to := &tfplugin5.Schema_Block{Description: from.GetDescription(), DescriptionKind: tfplugin5.StringKind(from.GetDescriptionKind())}
	for _, a := range from.GetAttributes() {
		to.Attributes = append(to.Attributes, &tfplugin5.Schema_Attribute{
			Name: a.Name, Type: a.Type, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive, WriteOnly: a.WriteOnly,
		})
	}
	for _, n := range from.GetBlockTypes() {
		to.BlockTypes = append(to.BlockTypes, &tfplugin5.Schema_NestedBlock{
			TypeName: n.TypeName, Block: blockTo5(n.Block), Nesting: tfplugin5.Schema_NestedBlock_NestingMode(n.Nesting), MinItems: n.MinItems, MaxItems: n.MaxItems,
		})
	}
	return to
}
