package statefile

import (
	"slices"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestOwnNames: what names a resource is found by the type's own words, by metadata, and not by others.
func TestOwnNames(t *testing.T) {
	text := func(name string) providerapi.Attribute {
		return providerapi.Attribute{Name: name, Type: cty.String, Optional: true, Computed: true}
	}
	metadata := providerapi.NestedBlock{Name: "metadata", Nesting: providerapi.NestingList, Block: providerapi.Block{Attributes: []providerapi.Attribute{text("name"), text("namespace")}}}
	for _, c := range []struct {
		typeName string
		block    providerapi.Block
		value    cty.Value
		want     string
	}{
		{"aws_s3_bucket", providerapi.Block{Attributes: []providerapi.Attribute{text("acl"), text("bucket")}}, cty.ObjectVal(map[string]cty.Value{"acl": cty.StringVal("some-acl"), "bucket": cty.StringVal("logs")}), ".bucket"},
		{"aws_lambda_function", providerapi.Block{Attributes: []providerapi.Attribute{text("function_name"), text("role_name")}}, cty.ObjectVal(map[string]cty.Value{"function_name": cty.StringVal("fn"), "role_name": cty.StringVal("fn-role")}), ".function_name"},
		{"kubernetes_namespace_v1", providerapi.Block{Blocks: []providerapi.NestedBlock{metadata}},
			cty.ObjectVal(map[string]cty.Value{"metadata": cty.ListVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("shop"), "namespace": cty.StringVal("around")})})}), ".metadata[0].name"},
	} {
		found := newCandidates()
		found.collect(0, &typeInfo{ResourceType: &ResourceType{Schema: &providerapi.Schema{Block: c.block}}, typeName: c.typeName}, c.value, nil)
		if !slices.Equal(found.paths, []string{c.want}) {
			t.Errorf("%s: %v", c.typeName, found.paths)
		}
	}
}

// TestMatchesType: the argument says which type it refers to.
func TestMatchesType(t *testing.T) {
	for _, c := range []struct {
		path     cty.Path
		typeName string
		want     bool
	}{
		{cty.GetAttrPath("namespace"), "kubernetes_namespace_v1", true},
		{cty.GetAttrPath("metadata").IndexInt(0).GetAttr("namespace"), "kubernetes_namespace", true},
		{cty.GetAttrPath("env_from").IndexInt(0).GetAttr("config_map_ref").IndexInt(0).GetAttr("name"), "kubernetes_config_map_v1", true},
		{cty.GetAttrPath("secret_key_ref").IndexInt(0).GetAttr("name"), "kubernetes_secret", true},
		{cty.GetAttrPath("secret_key_ref").IndexInt(0).GetAttr("key"), "kubernetes_secret", false},
		{cty.GetAttrPath("service_account_name"), "kubernetes_service_account_v1", true},
		{cty.GetAttrPath("subnet_ids").IndexInt(0), "aws_subnet", true},
		{cty.GetAttrPath("name"), "aws_subnet", false},
	} {
		if got := matchesType(c.path, &resourceInstance{typ: &typeInfo{typeName: c.typeName}}); got != c.want {
			t.Errorf("%s and %s: %v", providerapi.PathText(c.path), c.typeName, got)
		}
	}
}
