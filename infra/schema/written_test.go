package schema

import (
	"reflect"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestWritten: a spec for an import has what people wrote, as far as a value shows it.
func TestWritten(t *testing.T) {
	metadata := providerapi.Block{Attributes: []providerapi.Attribute{
		{Name: "name", Type: cty.String, Optional: true, Computed: true},
		{Name: "generate_name", Type: cty.String, Optional: true},
		{Name: "uid", Type: cty.String, Computed: true},
	}}
	kind := Kind{Name: Name{Kind: "ConfigMap"}, Schema: &providerapi.Schema{Block: providerapi.Block{
		Attributes: []providerapi.Attribute{
			{Name: "id", Type: cty.String, Optional: true, Computed: true},
			{Name: "data", Type: cty.Map(cty.String), Optional: true},
			{Name: "subnet", Type: cty.String, Optional: true, Computed: true},
			{Name: "subnets", Type: cty.Set(cty.String), Optional: true, Computed: true},
			{Name: "old_subnet", Type: cty.String, Optional: true, Computed: true, Deprecated: true},
			{Name: "immutable", Type: cty.Bool, Optional: true},
			{Name: "comment", Type: cty.String, Required: true},
		},
		Blocks: []providerapi.NestedBlock{{Name: "metadata", Nesting: providerapi.NestingList, Min: 1, Max: 1, Block: metadata}},
	}}}
	v := cty.ObjectVal(map[string]cty.Value{
		"id": cty.StringVal("default/a"), "data": cty.MapValEmpty(cty.String), "subnet": cty.StringVal("s-1"),
		"subnets": cty.SetVal([]cty.Value{cty.StringVal("s-1")}), "old_subnet": cty.StringVal("s-1"), "immutable": cty.False, "comment": cty.StringVal(""),
		"metadata": cty.ListVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("a"), "generate_name": cty.StringVal(""), "uid": cty.StringVal("u")})}),
	})
	for _, tt := range []struct {
		options SpecOptions
		want    map[string]any
	}{
		{SpecOptions{Computed: true, Written: true}, map[string]any{"subnet": "s-1", "subnets": []any{"s-1"}, "comment": "", "metadata": map[string]any{"name": "a"}}},
		{SpecOptions{Computed: true, Written: true, Omit: map[string]bool{"subnets": true, "comment": true}}, map[string]any{"subnet": "s-1", "comment": "", "metadata": map[string]any{"name": "a"}}},
		{SpecOptions{Written: true}, map[string]any{"comment": "", "metadata": map[string]any{}}},
	} {
		if got, _ := kind.Spec(v, tt.options); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%+v: got %v, want %v", tt.options, got, tt.want)
		}
	}
}
