package statefile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/statefile"
)

// line is a resource of a state file with the given instances.
func line(address, provider string, instances ...string) string {
	a, err := statefile.ParseAddress(address)
	if err != nil {
		panic(err)
	}
	whole := statefile.Address{Type: a.Type, Name: a.Name}
	module := strings.TrimSuffix(strings.TrimSuffix(address, whole.String()), ".")
	return fmt.Sprintf(`{"module": %q, "mode": "managed", "type": %q, "name": %q, "provider": %q, "instances": [%s]}`, module, a.Type, a.Name, provider, strings.Join(instances, ","))
}

func stateFile(resources ...string) []byte {
	return []byte(`{"version": 4, "serial": 3, "lineage": "l", "outputs": {"o": {"value": "x", "type": "string"}}, "resources": [` + strings.Join(resources, ",\n") + `]}`)
}

func network(key, id, cidr string) string {
	return fmt.Sprintf(`{%s "schema_version": 1, "attributes": {"id": %q, "name": "net-%s", "cidr": %q, "gateway": "gw-%s.example", "number": 7700%s, "hosts": ["h-%s-0", "h-%s-1"], "region": "eu-west-1", "tags": null}}`,
		key, id, id, cidr, id, strings.TrimLeft(id, "abcdefghijklmnopqrstuvwxyz-"), id, id)
}

// server is an instance with the given attributes that are not null.
func server(key string, attributes map[string]any, rest string) string {
	all := map[string]any{}
	for _, name := range []string{"name", "id", "network_id", "network_number", "peers", "labels", "ports", "region", "image", "size", "address", "enabled", "password", "user_data", "extra", "login", "timeouts"} {
		all[name] = nil
	}
	all["disk"], all["rule"] = []any{}, []any{}
	for name, value := range attributes {
		all[name] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{%s "schema_version": 0, "attributes": %s%s}`, key, text, rest)
}

func language(t testing.TB) *expr.Language {
	l, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func show(t *testing.T, spec map[string]any) string {
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const marked = `, "sensitive_attributes": [[{"type": "get_attr", "value": "user_data"}], [{"type": "get_attr", "value": "labels"}, {"type": "index", "value": {"value": "token", "type": "string"}}], [{"type": "get_attr", "value": "password"}]]`

// A server with references to other resources, and the complete resulting object.
func TestReferencesAndSecrets(t *testing.T) {
	text := stateFile(
		line("module.net.demo_network.main", demoProvider, network(`"index_key": "a",`, "n-1001", "10.0.0.0/16"), network(`"index_key": "b",`, "n-1002", "10.1.0.0/16")),
		line("demo_password.pw", demoProvider, `{"schema_version": 0, "attributes": {"id": "none", "length": 12, "result": "hunter2hunter2"}}`),
		line("demo_server.web", demoProvider+".west", server("", map[string]any{
			"id": "i-1", "name": "web", "network_id": "n-1001", "network_number": 77001002, "peers": []string{"n-1002", "n-9999", "gw-n-1001.example"},
			"labels":   map[string]any{"host": "h-n-1002-1", "env": "production", "token": "s3cr3t-label", "template": "${x}"},
			"ports":    []int{80, 77001001},
			"region":   "eu-west-1",
			"password": "hunter2hunter2", "user_data": "hunter2hunter2", "image": "ubuntu", "size": "large", "address": "10.0.0.9", "enabled": true,
			"login": []any{map[string]any{"user": "root", "secret": "tell-nobody", "network": "n-1002"}, map[string]any{"user": "ops", "secret": nil, "network": nil}},
			"disk":  []any{map[string]any{"network": "n-1001", "size": 10, "serial": "x"}},
			"rule":  []any{map[string]any{"source": "n-1002", "port": 22}},
			"extra": map[string]any{"value": map[string]any{"net": "n-1001", "deep": []any{"n-1002"}}, "type": []any{"object", map[string]any{"net": "string", "deep": []any{"tuple", []any{"string"}}}}},
		}, marked+`, "create_before_destroy": true, "dependencies": ["data.demo_network.other", "demo_password.pw", "module.net.demo_network.main"]`)),
	)
	d := newDemo(t)
	all, report := run(t, d, text, options())
	web := all[3]
	want := `depends_on: null
disk:
  network: ${demo_network["net-main-a"].id}
  size: 10
enabled: true
extra:
  deep:
  - ${demo_network["net-main-b"].id}
  net: ${demo_network["net-main-a"].id}
image: ubuntu
labels:
  env: production
  host: ${demo_network["net-main-b"].hosts[1]}
  template: $${x}
  token: ${base64decode(k8s["v1"].Secret["servers.demo.web"].data["labels__token__-` + `DIGEST"])}
lifecycle:
  create_before_destroy: true
login:
- network: ${demo_network["net-main-b"].id}
  secret:
    secretKeyRef:
      key: login.0.secret
      name: servers.demo.web
  user: root
- user: ops
name: web
network_id: ${demo_network["net-main-a"].id}
network_number: 77001002
password: ${demo_password["pw"].result}
peers:
- ${demo_network["net-main-a"].gateway}
- ${demo_network["net-main-b"].id}
- n-9999
ports:
- 80
- 77001001
provider: west
region: eu-west-1
rule:
- port: 22
  source: ${demo_network["net-main-b"].id}
size: large
user_data: ${demo_password["pw"].result}
`
	want = strings.Replace(want, "depends_on: null\n", "", 1)
	got := show(t, web.Object.Spec)
	if at := strings.Index(got, "labels__token__-"); at >= 0 {
		want = strings.Replace(want, "DIGEST", got[at+16:at+24], 1)
	}
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if strings.Contains(got, "hunter2") || strings.Contains(got, "s3cr3t") || strings.Contains(fmt.Sprintf("%v %+v %#v", web.Secret, web.Secret, web.Secret), "tell-nobody") {
		t.Error("a secret is printed")
	}
	if _, err := json.Marshal(web); err == nil {
		t.Error("a secret is marshalled with the rest")
	}
	if len(web.Secret.Data) != 2 || string(web.Secret.Data["login.0.secret"]) != "tell-nobody" {
		t.Errorf("the Secret has %d keys", len(web.Secret.Data))
	}
	if got := web.Object.Annotations[statefile.DependenciesAnnotation]; got != "data.demo_network.other" {
		t.Errorf("dependencies that are not adopted: %q", got)
	}
	if got := web.State.Current.Dependencies; !slices.Equal(got, []string{"networks.demo.net-main-a", "networks.demo.net-main-b", "passwords.demo.pw"}) {
		t.Errorf("its dependencies: %v", got)
	}
	if web.State.ProviderConfig != "west" || all[0].State.ProviderConfig != "demo" || web.Object.APIVersion != "demo.providers.atoll.dev/v1" {
		t.Errorf("its ProviderConfig is %s, its group version %s", web.State.ProviderConfig, web.Object.APIVersion)
	}
	if report.Resources != 4 || report.References != 11 || report.Secrets != 1 || report.DependsOn != 0 || len(report.Names) != 4 {
		t.Errorf("the report: %+v", report)
	}
	if _, err := json.Marshal(report); err != nil {
		t.Error(err)
	}
	e := evaluate(t, d, language(t), all)
	for _, one := range all {
		if decision := e.firstPlan(one); decision.Action != change.NoOp {
			t.Errorf("%s: the first plan is %s (%s)", one.Address, decision.Action, decision.Reason)
		}
	}
}

// Accidentally equal values stay literals; depends_on keeps the order.
func TestNoReference(t *testing.T) {
	on := `, "dependencies": ["demo_network.main"]`
	tests := []struct {
		name       string
		network    string
		attributes map[string]any
		rest       string
		want       string
	}{
		{"not a dependency", network("", "n-1001", "c"), map[string]any{"network_id": "n-1001"}, "", `n-1001`},
		{"short", network("", "n-1", "c"), map[string]any{"network_id": "80"}, on, `80`},
		{"short, but an ID", network("", "n-1", "c"), map[string]any{"network_id": "n-1"}, on, `${demo_network["main"].id}`},
		{"an argument of both", network("", "n-1001", "10.0.0.0/16"), map[string]any{"network_id": "10.0.0.0/16"}, on, `10.0.0.0/16`},
		{"a region", network("", "n-1001", "c"), map[string]any{"network_id": "eu-west-1"}, on, `eu-west-1`},
		{"a name", network("", "n-1001", "c"), map[string]any{"network_id": "net-n-1001"}, on, `${demo_network["main"].name}`},
		{"a word", strings.Replace(network("", "n-1001", "c"), "net-n-1001", "backbone", 1), map[string]any{"image": "x", "network_id": "n", "user_data": "backbone"}, on, "n"},
		{"a word where the type is meant", strings.Replace(network("", "n-1001", "c"), "net-n-1001", "backbone", 1), map[string]any{"network_id": "backbone"}, on, `${demo_network["main"].name}`},
		{"a short name where the type is meant", strings.Replace(network("", "n-1001", "c"), "net-n-1001", "db", 1), map[string]any{"network_id": "db"}, on, `${demo_network["main"].name}`},
		{"a short name elsewhere", strings.Replace(network("", "n-1001", "c"), "net-n-1001", "db", 1), map[string]any{"image": "db", "network_id": "n"}, on, "n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.attributes["name"] = "web"
			all, _ := run(t, newDemo(t), stateFile(line("demo_network.main", demoProvider, tt.network), line("demo_server.web", demoProvider, server("", tt.attributes, tt.rest))), options())
			spec := all[1].Object.Spec
			if spec["network_id"] != tt.want {
				t.Errorf("got %v", spec["network_id"])
			}
			if text, _ := spec["user_data"].(string); strings.Contains(text, "${") {
				t.Errorf("user_data is %s", text)
			}
			on, _ := spec["depends_on"].([]any)
			if named := strings.Contains(tt.want, "${"); tt.rest != "" && (named && len(on) != 0 || !named && !slices.Equal(on, []any{`demo_network["main"]`})) {
				t.Errorf("depends_on is %v", on)
			}
		})
	}
}

func TestNames(t *testing.T) {
	var resources []string
	for i, address := range []string{`demo_network.a`, `demo_network.b_c`, `demo_network.b-c`, `module.x["Köln/1"].demo_network.d`, `demo_network.` + strings.Repeat("long_", 30), `demo_network._`} {
		resources = append(resources, line(address, demoProvider, network("", fmt.Sprintf("n-%d", i), "c")))
	}
	resources = append(resources,
		line("demo_network.e", demoProvider, network(`"index_key": 0,`, "n-10", "c"), network(`"index_key": "",`, "n-11", "c")),
		line("demo_server.a", demoProvider, server("", map[string]any{"name": "a", "network_id": "x"}, "")))
	first, report := run(t, newDemo(t), stateFile(resources...), options())
	slices.Reverse(resources)
	second, _ := run(t, newDemo(t), stateFile(resources...), options())
	names := map[string]string{}
	for _, one := range first {
		names[one.Address] = one.Object.Name
	}
	for _, one := range second {
		if names[one.Address] != one.Object.Name {
			t.Errorf("the name of %s is %s or %s, depending on the order of the file", one.Address, names[one.Address], one.Object.Name)
		}
	}
	for address, want := range map[string]string{
		"demo_network.a": "a", "demo_server.a": "a", `module.x["Köln/1"].demo_network.d`: "x-k-ln-1-d", "demo_network.e[0]": "e-0", `demo_network.e[""]`: "e",
	} {
		if names[address] != want {
			t.Errorf("%s is called %s, want %s", address, names[address], want)
		}
	}
	for address, begins := range map[string]string{"demo_network.b_c": "b-c-", "demo_network.b-c": "b-c-", "demo_network._": "resource-", "demo_network." + strings.Repeat("long_", 30): "long-long-"} {
		if name := names[address]; !strings.HasPrefix(name, begins) || len(name) > 63 {
			t.Errorf("%s is called %s", address, name)
		}
	}
	// Given names are kept.
	o := options()
	o.Prefix = "eu"
	o.Names = map[string]string{report.Names[0].Address: "mine"}
	again, _ := run(t, newDemo(t), stateFile(reversed(resources)...), o)
	if again[0].Object.Name != "mine" || again[6].Object.Name != "eu-e-0" {
		t.Errorf("their names: %s and %s", again[0].Object.Name, again[6].Object.Name)
	}
}

func reversed(of []string) []string {
	out := slices.Clone(of)
	slices.Reverse(out)
	return out
}

func TestAdoptErrors(t *testing.T) {
	fine := line("demo_network.main", demoProvider, network("", "n-1001", "c"))
	server := line("demo_server.web", demoProvider, server("", map[string]any{"name": "web", "network_id": "x"}, ""))
	tests := []struct {
		name   string
		text   []byte
		change func(*statefile.Options)
		want   string
	}{
		{"no namespace", stateFile(fine), func(o *statefile.Options) { o.Namespace = "" }, "no namespace; set"},
		{"providers", stateFile(fine, line("module.m.demo_network.x", "module.m."+demoProvider+".east", network("", "n-1", "c")), line("demo_other.x", "provider.other", network("", "n-1", "c"))),
			nil, `no Provider is given for module.m.provider["registry.opentofu.org/atoll/demo"].east, provider.other; name for each the Provider`},
		{"types", stateFile(fine, line("demo_b.x", demoProvider, network("", "n-1", "c")), line("demo_a.x", demoProvider, network("", "n-1", "c"))), nil,
			"some types are not served: demo_a: there is no such type; demo_b: there is no such type; install their Providers"},
		{"twice", stateFile(fine, fine), nil, "demo_network.main is in the state file twice"},
		{"an old form", bytes.Replace(stateFile(fine), []byte(`"schema_version": 1`), []byte(`"schema_version": 0`), 1), nil, "demo_network.main: its state has schema version 0"},
		{"not of the schema", bytes.Replace(stateFile(fine), []byte(`"number": 77001001`), []byte(`"number": "tell-nobody"`), 1), nil, "only the provider can upgrade it"},
		{"names", stateFile(fine), func(o *statefile.Options) { o.Names = map[string]string{"demo_network.main": "A"} }, `demo_network.main: "A" is not a valid object name`},
		{"the same names", stateFile(fine, line("demo_network.b", demoProvider, network("", "n-2", "c"))), func(o *statefile.Options) {
			o.Names = map[string]string{"demo_network.main": "a", "demo_network.b": "a"}
		}, "another demo_network has the name a"},
		{"an upgrade that fails", bytes.Replace(stateFile(fine, server), []byte(`"schema_version": 1`), []byte(`"schema_version": 0`), 1), func(o *statefile.Options) { o.Literals = true }, "demo_network.main"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options()
			if tt.change != nil {
				tt.change(&o)
			}
			_, err := statefile.Adopt(bytes.NewReader(tt.text), int64(len(tt.text)), newDemo(t), o, func(one *statefile.Adopted) error {
				t.Errorf("%s is adopted", one.Address)
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "tell-nobody") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	stop := errors.New("full")
	text := stateFile(fine)
	if _, err := statefile.Adopt(bytes.NewReader(text), int64(len(text)), newDemo(t), options(), func(*statefile.Adopted) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// The provider converts old formats. Deposed objects are adopted, even without a current one.
func TestUpgradeAndDeposed(t *testing.T) {
	text := stateFile(
		line("demo_network.flat", demoProvider, `{"schema_version": 0, "attributes_flat": {"id": "n-1001", "name": "old"}, "private": "cA=="}`),
		line("demo_network.left", demoProvider, strings.Replace(network("", "n-1002", "c"), `"schema_version"`, `"deposed": "0011aabb", "schema_version"`, 1)),
		line("demo_network.both", demoProvider, strings.Replace(network("", "n-1003", "c"), `"schema_version"`, `"deposed": "0011aabb", "schema_version"`, 1), strings.Replace(network("", "n-1004", "c"), `"schema_version"`, `"status": "tainted", "schema_version"`, 1)),
		line("demo_seed.s", demoProvider, `{"schema_version": 0, "attributes": {"id": "s-1001", "seed_wo": null}, "skip_destroy": true}`),
	)
	d := newDemo(t)
	d.upgrade = func(typeName string, stored providerapi.StoredState) (cty.Value, error) {
		if typeName != "demo_network" || stored.Version != 0 || stored.Flat["id"] != "n-1001" {
			t.Errorf("asked to upgrade %s %+v", typeName, stored)
		}
		return cty.ObjectVal(map[string]cty.Value{
			"id": cty.StringVal(stored.Flat["id"]), "name": cty.StringVal(stored.Flat["name"]), "cidr": cty.StringVal("c"), "tags": cty.NullVal(cty.Map(cty.String)),
			"gateway": cty.StringVal("g"), "number": cty.NumberIntVal(1), "hosts": cty.NullVal(cty.List(cty.String)), "region": cty.NullVal(cty.String),
		}), nil
	}
	all, report := run(t, d, text, options())
	flat, left, both, seed := all[0], all[1], all[2], all[3]
	if flat.State.Current.SchemaVersion != 1 || string(flat.State.Current.Private) != "p" || !strings.Contains(string(flat.State.Current.Value), `"name":"old"`) {
		t.Errorf("flat: %+v", flat.State.Current)
	}
	if left.Object != nil || left.State.Current != nil || len(left.State.Deposed) != 1 || left.State.Deposed[0].Key != "0011aabb" {
		t.Errorf("left: %+v", left)
	}
	if both.Object == nil || !both.State.Current.Tainted || len(both.State.Deposed) != 1 {
		t.Errorf("both: %+v", both)
	}
	if seed.Secret == nil || !slices.Equal(seed.Secret.Missing, []string{"seed_wo"}) || !slices.Equal(report.MissingSecrets, []string{"demo_seed.s"}) {
		t.Errorf("seed: %+v", seed.Secret)
	}
	if seed.Object.Annotations[statefile.DeletionAnnotation] != "Forget" {
		t.Errorf("seed: %v", seed.Object.Annotations)
	}
}

// A Checker reports arguments that are missing, and those that the provider rejects together.
func TestChecker(t *testing.T) {
	one := func(key int, name string) string {
		return server(fmt.Sprintf(`"index_key": %d,`, key), map[string]any{"name": name, "network_id": "x", "image": "ubuntu", "size": "small", "enabled": false}, "")
	}
	text := stateFile(line("demo_server.web", demoProvider, one(0, "web"), one(1, "exclusive"), one(2, "bad"), one(3, "moved")))
	o := options()
	o.Checker = checker(func(one *statefile.Adopted, v cty.Value) ([]string, error) {
		switch spec := one.Object.Spec; {
		case spec["name"] == "exclusive" && spec["image"] != nil:
			return nil, errors.New("\"image\": conflicts with network_id")
		case spec["name"] == "bad":
			return nil, errors.New("the provider is gone")
		case spec["name"] == "moved":
			return []string{"address"}, nil
		case spec["name"] == "web" && spec["enabled"] == nil:
			return []string{"enabled"}, nil // to its default, true
		}
		return nil, nil
	})
	all, report := run(t, newDemo(t), text, o)
	for i, want := range []struct {
		image, size, enabled any
		rejected             bool
	}{{"ubuntu", "small", false, false}, {nil, "small", nil, false}, {nil, nil, nil, true}, {"ubuntu", "small", nil, false}} {
		if spec := all[i].Object.Spec; spec["image"] != want.image || spec["size"] != want.size || spec["enabled"] != want.enabled || (all[i].Rejected != nil) != want.rejected {
			t.Errorf("%d: got %v, %v", i, spec, all[i].Rejected)
		}
	}
	if !slices.Equal(all[3].Changes, []string{"address"}) || !slices.Equal(report.Changing, []string{"demo_server.web[2]", "demo_server.web[3]"}) {
		t.Errorf("changes %v, changing: %v", all[3].Changes, report.Changing)
	}
}

type checker func(one *statefile.Adopted, v cty.Value) ([]string, error)

func (c checker) Changes(one *statefile.Adopted, v cty.Value) ([]string, error) { return c(one, v) }

func TestDataSources(t *testing.T) {
	data := `{"mode": "data", "type": "demo_network", "name": "other", "provider": ` + fmt.Sprintf("%q", demoProvider) + `, "instances": [{"schema_version": 0, "attributes": {"id": "n-5555", "name": "other", "zone": "a"}}]}`
	text := stateFile(data, line("demo_server.web", demoProvider, server("", map[string]any{"name": "web", "network_id": "n-5555"}, `, "dependencies": ["data.demo_network.other"]`)))
	all, report := run(t, newDemo(t), text, options())
	if len(all) != 1 || all[0].Object.Spec["network_id"] != "n-5555" || report.SkippedData != 1 || report.OmittedDependencies != 0 {
		t.Errorf("without data sources: %v", all[0].Object.Spec)
	}
	o := options()
	o.Data = true
	all, report = run(t, newDemo(t), text, o)
	if len(all) != 2 || all[0].State != nil || all[0].Object.Kind != "DataNetwork" || all[0].Object.Spec["zone"] != "a" || report.DataSources != 1 {
		t.Fatalf("with data sources: %+v", all[0])
	}
	if got := all[1].Object.Spec["network_id"]; got != `${data.demo_network["other"].id}` {
		t.Errorf("it refers to %v", got)
	}
	if len(all[1].State.Current.Dependencies) != 0 || all[1].Annotations[statefile.DependenciesAnnotation] != "data.demo_network.other" {
		t.Errorf("its dependencies: %+v", all[1])
	}
}

// A thousand resources that depend on a thousand do not result in a million dependencies.
func TestManyDependencies(t *testing.T) {
	var networks, servers []string
	for i := range 200 {
		networks = append(networks, network(fmt.Sprintf(`"index_key": %d,`, i), fmt.Sprintf("n-%d", 1000+i), "c"))
		servers = append(servers, server(fmt.Sprintf(`"index_key": %d,`, i), map[string]any{"name": "s", "network_id": "x"}, `, "dependencies": ["demo_network.n"]`))
	}
	odd := line("demo_server.odd", demoProvider, server("", map[string]any{"name": "s", "network_id": "x"}, `, "dependencies": ["demo_network.n", "demo_network.gone"]`))
	inner := line(`module.m["a"].demo_network.in`, demoProvider, network("", "n-1", "c")) + "," + line(`module.m["b"].demo_network.in`, demoProvider, network("", "n-2", "c")) + "," +
		line(`module.m["b"].demo_server.in`, demoProvider, server("", map[string]any{"name": "s", "network_id": "x"}, `, "dependencies": ["module.m.demo_network.in"]`))
	all, report := run(t, newDemo(t), stateFile(line("demo_network.n", demoProvider, networks...), line("demo_server.s", demoProvider, servers...), odd, inner), options())
	if got := all[207].Object.Spec["depends_on"]; fmt.Sprint(got) != `[demo_network["n-7"]]` {
		t.Errorf("the eighth depends on %v", got)
	}
	if got := all[400]; got.OmittedDependencies != 1 || got.Object.Spec["depends_on"] != nil || got.Annotations[statefile.DependenciesAnnotation] != "demo_network.gone\ndemo_network.n" {
		t.Errorf("the odd one: %+v", got)
	}
	if got := all[403].Object.Spec["depends_on"]; fmt.Sprint(got) != `[demo_network["m-b-in"]]` {
		t.Errorf("within a module it depends on %v", got)
	}
	if report.OmittedDependencies != 1 {
		t.Errorf("report: %+v", report)
	}
}
