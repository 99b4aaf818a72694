package statefile_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/statefile"
)

func read(text string) (*statefile.File, []*statefile.Instance, error) {
	var all []*statefile.Instance
	file, err := statefile.Read(strings.NewReader(text), int64(len(text)), func(i *statefile.Instance) error {
		all = append(all, i)
		return nil
	})
	return file, all, err
}

const everything = `{
  "version": 4, "terraform_version": "1.12.6", "serial": 7, "lineage": "0b5c",
  "outputs": {"password": {"value": "tell-nobody", "type": "string", "sensitive": true}, "id": {"value": 1, "type": "number"}},
  "resources": [
    {"module": "module.net[\"a\"].module.sub[0]", "mode": "managed", "type": "demo_server", "name": "web", "each": "map",
     "provider": "module.net.provider[\"registry.opentofu.org/atoll/demo\"].west", "instances": [
      {"index_key": "x \"y\" ${z}", "status": "tainted", "schema_version": 3, "attributes": { "id": "1", "n": 12345678901234567890.5, "h": "<&>" },
       "sensitive_attributes": [[{"type": "get_attr", "value": "a"}, {"type": "index", "value": {"value": "k", "type": "string"}}, {"type": "index", "value": {"value": 2, "type": "number"}}]],
       "private": "cHJpdmF0ZQ==", "identity_schema_version": 0, "identity": {"id": "1"},
       "dependencies": ["module.net.data.demo_x.y", "module.net[\"a\"].demo_network.main[0]", "module.net.demo_network.main"], "create_before_destroy": true, "skip_destroy": true},
      {"index_key": "x \"y\" ${z}", "deposed": "0011aabb", "schema_version": 2, "attributes_flat": {"id": "0", "tags.%": "0"}, "depends_on": ["demo_old.one"]}
    ]},
    {"mode": "data", "type": "demo_x", "name": "y", "provider": "provider.demo", "instances": [{"schema_version": 0, "attributes": null}]},
    {"mode": "managed", "type": "demo_server", "name": "many", "instances": [{"index_key": 0, "schema_version": 0, "attributes": {}, "instance_provider": "provider[\"registry.opentofu.org/atoll/demo\"].by[\"eu\"]"}]}
  ],
  "check_results": [{"object_kind": "output", "config_addr": "output.id", "status": "pass", "objects": [{"object_addr": "output.id", "status": "pass"}]}]
}`

func TestReadEverything(t *testing.T) {
	file, all, err := read(everything)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&statefile.File{Version: 4, TerraformVersion: "1.12.6", Serial: 7, Lineage: "0b5c", Outputs: []string{"id", "password"}}, file); diff != "" {
		t.Error(diff)
	}
	web := statefile.Address{
		Module: []statefile.Step{{Name: "net", Key: statefile.Key{Kind: statefile.EachKey, Text: "a"}}, {Name: "sub", Key: statefile.Key{Kind: statefile.CountKey}}},
		Type:   "demo_server", Name: "web", Key: statefile.Key{Kind: statefile.EachKey, Text: `x "y" ${z}`},
	}
	want := []*statefile.Instance{
		{
			Address: web, Provider: `module.net.provider["registry.opentofu.org/atoll/demo"].west`, Tainted: true, SchemaVersion: 3,
			Attributes: []byte(`{"id":"1","n":12345678901234567890.5,"h":"<&>"}`), Sensitive: []cty.Path{cty.GetAttrPath("a").IndexString("k").IndexInt(2)},
			Private: []byte("private"), Identity: []byte(`{"id":"1"}`), Dependencies: []string{"module.net.data.demo_x.y", "module.net.demo_network.main"},
			CreateBeforeDestroy: true, SkipDestroy: true,
		},
		{
			Address: web, Provider: `module.net.provider["registry.opentofu.org/atoll/demo"].west`, Deposed: "0011aabb", SchemaVersion: 2,
			Flat: map[string]string{"id": "0", "tags.%": "0"}, Dependencies: []string{"demo_old.one"},
		},
		{Address: statefile.Address{Data: true, Type: "demo_x", Name: "y"}, Provider: "provider.demo", Attributes: []byte("{}")},
		{
			Address:  statefile.Address{Type: "demo_server", Name: "many", Key: statefile.Key{Kind: statefile.CountKey}},
			Provider: `provider["registry.opentofu.org/atoll/demo"].by["eu"]`, Attributes: []byte("{}"),
		},
	}
	if diff := cmp.Diff(want, all, cmp.Comparer(func(a, b cty.Path) bool { return a.Equals(b) })); diff != "" {
		t.Error(diff)
	}
	if got, want := all[0].Address.String(), `module.net["a"].module.sub[0].demo_server.web["x \"y\" $${z}"]`; got != want {
		t.Errorf("address %s, want %s", got, want)
	}
	for _, i := range all {
		if back, err := statefile.ParseAddress(i.Address.String()); err != nil || back.String() != i.Address.String() {
			t.Errorf("%s is read as %s: %v", i.Address, back, err)
		}
	}
}

// Some tools sort fields. Then the instances come before the fields that identify the resource.
func TestReadSortedFields(t *testing.T) {
	_, all, err := read(`{"lineage": "l", "resources": [
		{"instances" : [{"attributes": {"id": "1"}, "index_key": 0, "schema_version": 0}, {"attributes": {"id": "2"}, "index_key": 1}], "mode": "managed", "module": "module.m", "name": "n", "provider": "provider.p", "type": "t"},
		{"instances": null, "mode": "managed", "name": "n", "provider": "provider.p", "type": "t"}], "serial": 1, "version": 4}`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range all {
		got = append(got, i.Address.String()+string(i.Attributes))
	}
	if want := []string{`module.m.t.n[0]{"id":"1"}`, `module.m.t.n[1]{"id":"2"}`}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestReadErrors(t *testing.T) {
	instance := func(fields string) string {
		return `{"version": 4, "resources": [{"mode": "managed", "type": "t", "name": "n", "provider": "provider.p", "instances": [{` + fields + `}]}]}`
	}
	tests := []struct{ name, text, want string }{
		{"nothing", ``, "the file ends within the file"},
		{"no JSON", `resource "a" "b" {}`, "the file is not JSON"},
		{"a list", `[]`, "does not begin with {"},
		{"another document", `{"kind": "Pod"}`, "it is not a state file; tofu state pull prints one"},
		{"version 3", `{"version": 3, "modules": [{"path": ["root"]}]}`, "version 3, from before Terraform 0.12; run tofu apply -refresh-only once"},
		{"version 3 with sorted fields", `{"modules": [{"path": ["root"]}], "version": 3}`, "version 3, from before Terraform 0.12"},
		{"version 5", `{"version": 5}`, "version 5, which this release does not support (4)"},
		{"encrypted", `{"serial": 1, "lineage": "l", "meta": {"key_provider.pbkdf2.k": "eyJ"}, "encrypted_data": "c2VjcmV0", "encryption_version": "v0"}`, "is encrypted; import the output of tofu state pull"},
		{"cut off", everything[:len(everything)/2], "it is truncated: fetch it again"},
		{"two files in one", `{"version": 4, "resources": [], "resources": []}`, "the file has resources twice"},
		{"mode", `{"version": 4, "resources": [{"mode": "ephemeral", "type": "t", "name": "n", "provider": "provider.p", "instances": [{}]}]}`, `mode "ephemeral", which is neither managed nor data`},
		{"module", `{"version": 4, "resources": [{"module": "net", "mode": "managed", "type": "t", "name": "n", "provider": "provider.p", "instances": []}]}`, `"net" is not a module address`},
		{"module too late", `{"version": 4, "resources": [{"mode": "managed", "type": "t", "name": "n", "provider": "provider.p", "instances": [], "module": "module.m"}]}`, "comes after its instances"},
		{"type", `{"version": 4, "resources": [{"mode": "managed", "type": "t u", "name": "n", "provider": "provider.p", "instances": []}]}`, `"t u.n" is not a resource address`},
		{"no provider", `{"version": 4, "resources": [{"mode": "managed", "type": "t", "name": "n", "instances": [{"schema_version": 0}]}]}`, "t.n: no provider; add"},
		{"status", instance(`"status": "planned"`), `t.n: status "planned" is neither`},
		{"key", instance(`"index_key": true`), "t.n: index_key is neither a string nor a whole number"},
		{"negative key", instance(`"index_key": -1`), "index_key is neither"},
		{"attributes", instance(`"attributes": ["tell-nobody"]`), "t.n: attributes is not an object"},
		{"schema version", instance(`"schema_version": "tell-nobody"`), "schema_version has the wrong type (want int64)"},
		{"dependency", instance(`"dependencies": ["x"]`), `"x" is not a resource address`},
		{"sensitive paths", instance(`"sensitive_attributes": [[{"type": "get_attr", "value": 1}]]`), "sensitive_attributes: the name in a path is not a string"},
		{"key of a sensitive path", instance(`"sensitive_attributes": [[{"type": "index", "value": {"value": true, "type": "bool"}}]]`), "neither a string nor a number"},
		{"an instance of another form", `{"version": 4, "resources": [{"mode": "managed", "type": "t", "name": "n", "provider": "provider.p", "instances": ["tell-nobody"]}]}`, "an instance of t.n: the value has the wrong type"},
		{"too large", instance(`"attributes": {"a": "` + strings.Repeat("x", 17<<20) + `"}`), "is larger than 16 MiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := read(tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "tell-nobody") {
				t.Errorf("the error quotes a value: %v", err)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	for _, text := range []string{"", "a", "a.", "a.b.", "a.b[", "a.b[]", "a.b[-1]", `a.b["x]`, "module.a", "module.a.b", "data.a", "a.b.c", "module.a.module", "a b.c", "a.b[1]]"} {
		if a, err := statefile.ParseAddress(text); err == nil {
			t.Errorf("%q is read as %s", text, a)
		}
	}
	for _, text := range []string{"a.b", "data.a.b", "a.b-c", `a.b["é\n\"%%{"]`, "module.x.module.y[3].data.a.b[0]"} {
		if a, err := statefile.ParseAddress(text); err != nil || a.String() != text {
			t.Errorf("%q is read as %q: %v", text, a, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte(`{"version":4,"resources":[{"instances":[{"index_key":0}],"type":"a","mode":"data","name":"b","provider":"p"}]}`))
	f.Add([]byte(`{"resources":[{"instances":[[[[`))
	f.Add([]byte(`{"version":4,"resources":[{"mode":"managed","type":"t","name":"n","provider":"p","instances":[{"sensitive_attributes":[[{"type":"index","value":{"value":1e999,"type":"number"}}]]}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var first, second []string
		note := func(to *[]string) func(*statefile.Instance) error {
			return func(i *statefile.Instance) error {
				if back, err := statefile.ParseAddress(i.Address.String()); err != nil || back.String() != i.Address.String() {
					t.Errorf("address %s is read as %s: %v", i.Address, back, err)
				}
				line := fmt.Sprintf("%s %s %s %s %q %v", i.Address, i.Provider, i.Deposed, i.Attributes, i.Private, i.Dependencies)
				for _, path := range i.Sensitive {
					line += " " + providerapi.PathText(path)
				}
				*to = append(*to, line)
				return nil
			}
		}
		_, err := statefile.Read(bytes.NewReader(text), int64(len(text)), note(&first))
		_, again := statefile.Read(bytes.NewReader(text), int64(len(text)), note(&second))
		if (err == nil) != (again == nil) || !slices.Equal(first, second) {
			t.Errorf("reading twice gives different results")
		}
	})
}
