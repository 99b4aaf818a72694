package decide

import (
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestLeaks: values that contain a secret are secret, too, in whatever form, and others are not.
func TestLeaks(t *testing.T) {
	text := func(name, flags string) providerapi.Attribute {
		return providerapi.Attribute{Name: name, Type: cty.String, Optional: true, Computed: true, Sensitive: flags == "sensitive"}
	}
	block := providerapi.Block{
		Attributes: []providerapi.Attribute{
			{Name: "hosts", Type: cty.Map(cty.String), Computed: true},
			text("name", ""), text("password", "sensitive"), {Name: "tags", Type: cty.Set(cty.String), Computed: true}, text("token", ""), text("url", ""),
		},
		Blocks: []providerapi.NestedBlock{{Name: "login", Nesting: providerapi.NestingSet, Block: providerapi.Block{Attributes: []providerapi.Attribute{text("pass", "sensitive"), text("user", "")}}}},
	}
	null := cty.NullVal(cty.String)
	login := cty.Object(map[string]cty.Type{"user": cty.String, "pass": cty.String})
	value := func(changed map[string]cty.Value) cty.Value {
		all := map[string]cty.Value{"name": cty.StringVal("db"), "password": null, "token": null, "url": null, "hosts": cty.NullVal(cty.Map(cty.String)), "tags": cty.NullVal(cty.Set(cty.String)), "login": cty.SetValEmpty(login)}
		for name, v := range changed {
			all[name] = v
		}
		return cty.ObjectVal(all)
	}
	for _, c := range []struct {
		name   string
		config map[string]cty.Value
		secret []cty.Path
		value  map[string]cty.Value
		want   string
	}{
		{"declared by the schema", nil, nil, map[string]cty.Value{"password": cty.StringVal("s3cr3t!"), "url": cty.StringVal("pg://db:s3cr3t!@host")}, "url"},
		{"from a Secret", map[string]cty.Value{"token": cty.StringVal("abcd-1234")}, []cty.Path{cty.GetAttrPath("token")},
			map[string]cty.Value{"token": cty.StringVal("abcd-1234"), "url": cty.StringVal("https://host?t=abcd-1234")}, "url"},
		{"in base64 and escaped", nil, nil, map[string]cty.Value{"password": cty.StringVal("pass word/1"), "url": cty.StringVal("x=pass+word%2F1"), "token": cty.StringVal("cGFzcyB3b3JkLzE=")}, "token, url"},
		{"in a map", nil, nil, map[string]cty.Value{"password": cty.StringVal("s3cr3t!"), "hosts": cty.MapVal(map[string]cty.Value{"a": cty.StringVal("x"), "b": cty.StringVal("u:s3cr3t!@b")})}, `hosts["b"]`},
		{"in a set", nil, nil, map[string]cty.Value{"password": cty.StringVal("s3cr3t!"), "tags": cty.SetVal([]cty.Value{cty.StringVal("a"), cty.StringVal("p=s3cr3t!")})}, "tags"},
		{"of a block in a set, which has it itself", nil, nil, map[string]cty.Value{"login": cty.SetVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"user": cty.StringVal("me"), "pass": cty.StringVal("s3cr3t!")})}), "url": cty.StringVal("me:s3cr3t!")}, "url"},
		{"written in clear, too", map[string]cty.Value{"name": cty.StringVal("the-s3cr3t!-db")}, nil, map[string]cty.Value{"password": cty.StringVal("s3cr3t!"), "url": cty.StringVal("the-s3cr3t!-db.example")}, ""},
		{"too common to tell", nil, nil, map[string]cty.Value{"password": cty.StringVal("default"), "url": cty.StringVal("vpc-default")}, ""},
		{"no secret", nil, nil, map[string]cty.Value{"url": cty.StringVal("https://host")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDecider(Input{Schema: &providerapi.Schema{Block: block}, Config: value(c.config)})
			d.secret = c.secret
			var got []string
			for _, path := range d.sensitive(c.secret, value(c.value)) {
				if !hasPath(c.secret, path) {
					got = append(got, providerapi.PathText(path))
				}
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}
