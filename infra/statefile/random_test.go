package statefile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/statefile"
)

// A maker generates random state files as OpenTofu would write them, with modules, keys, and values
// that are taken from one another.
type maker struct {
	*rand.Rand
	next int
	// Possible targets of references, by the address in the configuration.
	made []made
}

type made struct {
	config string
	on     []string // all of them, as OpenTofu lists them
	values []string
	secret []string
}

func (m *maker) pick(of ...string) string { return of[m.IntN(len(of))] }

func (m *maker) chance(percent int) bool { return m.IntN(100) < percent }

func (m *maker) serial() int { m.next++; return 1000 + m.next }

func (m *maker) file() []byte {
	var resources []map[string]any
	used := map[string]bool{}
	for range 3 + m.IntN(12) {
		a := statefile.Address{Type: m.pick("demo_network", "demo_network", "demo_password", "demo_server", "demo_server"), Name: m.pick("main", "a-b", "a_b", "x", "Ünder")}
		for range m.IntN(3) {
			a.Module = append(a.Module, statefile.Step{Name: m.pick("net", "sub"), Key: m.key()})
		}
		// A configuration has one form of keys, and one list of dependencies.
		if used[a.Config()] {
			continue
		}
		used[a.Config()] = true
		resources = append(resources, m.resource(a))
	}
	text, err := json.Marshal(map[string]any{"version": 4, "serial": m.IntN(100), "lineage": "l", "terraform_version": "1.12.6", "resources": resources})
	if err != nil {
		panic(err)
	}
	return text
}

func (m *maker) key() statefile.Key {
	switch m.IntN(3) {
	case 0:
		return statefile.Key{Kind: statefile.CountKey, Number: int64(m.IntN(3))}
	case 1:
		return statefile.Key{Kind: statefile.EachKey, Text: m.pick("a", "b", "a.b", `"`, "ü", "${x}", "")}
	}
	return statefile.Key{}
}

func (m *maker) resource(a statefile.Address) map[string]any {
	provider := demoProvider
	if m.chance(30) {
		provider += ".west"
	}
	whole := statefile.Address{Type: a.Type, Name: a.Name, Module: a.Module}.String()
	module := strings.TrimSuffix(strings.TrimSuffix(whole, a.Type+"."+a.Name), ".")
	var instances []map[string]any
	this := made{config: a.Config()}
	others := m.dependencies(&this)
	keys := []any{nil}
	switch m.IntN(3) {
	case 0:
		keys = []any{0, 1, 7}
	case 1:
		keys = []any{"a", "a.b", "A"}
	}
	for _, key := range keys {
		for range 1 + m.IntN(100)/80 {
			one := m.instance(a.Type, &this, others)
			if key != nil {
				one["index_key"] = key
			}
			instances = append(instances, one)
		}
	}
	// All entries of a key but one are deposed, and sometimes all.
	seen := map[any]bool{}
	for _, one := range instances {
		if seen[one["index_key"]] || m.chance(3) {
			one["deposed"] = fmt.Sprintf("%08x", m.Uint32())
			continue
		}
		seen[one["index_key"]] = true
	}
	m.made = append(m.made, this)
	return map[string]any{"module": module, "mode": "managed", "type": a.Type, "name": a.Name, "provider": provider, "instances": instances}
}

// dependencies chooses some dependencies, and adds their transitive ones.
func (m *maker) dependencies(this *made) []made {
	var chosen []made
	for _, other := range m.made {
		if m.chance(40) {
			chosen = append(chosen, other)
			this.on = append(append(this.on, other.config), other.on...)
		}
	}
	if m.chance(20) {
		this.on = append(this.on, "data.demo_network.elsewhere")
	}
	slices.Sort(this.on)
	this.on = slices.Compact(this.on)
	return chosen
}

func (m *maker) instance(typeName string, this *made, others []made) map[string]any {
	id := fmt.Sprintf("%s-%d", typeName[5:8], m.serial())
	attributes := map[string]any{"id": id}
	this.values = append(this.values, id)
	var sensitive []any
	schemaVersion := 0
	switch typeName {
	case "demo_network":
		schemaVersion = 1
		hosts := []string{id + ".h0", id + ".h1"}
		this.values = append(append(this.values, hosts...), "gw."+id)
		attributes["name"], attributes["cidr"], attributes["tags"], attributes["hosts"] = m.pick("main", "backbone-1", id+"-name"), m.pick("10.0.0.0/16", "10.1.0.0/16"), nil, hosts
		attributes["gateway"], attributes["number"], attributes["region"] = "gw."+id, 5000000+m.next, "eu-west-1"
	case "demo_password":
		result := fmt.Sprintf("pw-%x", m.Uint64())
		this.secret = append(this.secret, result)
		attributes["length"], attributes["result"] = 12, result
	default:
		sensitive = m.server(attributes, others)
	}
	one := map[string]any{"schema_version": schemaVersion, "attributes": attributes}
	if len(this.on) > 0 {
		one["dependencies"] = this.on
	}
	if len(sensitive) > 0 {
		one["sensitive_attributes"] = sensitive
	}
	if m.chance(10) {
		one["status"] = "tainted"
	}
	if m.chance(20) {
		one["create_before_destroy"] = true
	}
	if m.chance(20) {
		one["private"] = []byte("private")
	}
	if m.chance(10) {
		one["identity_schema_version"], one["identity"] = 0, map[string]any{"id": id}
	}
	return one
}

func (m *maker) server(attributes map[string]any, others []made) (sensitive []any) {
	some := func() any {
		var all []string
		for _, other := range others {
			all = append(all, other.values...)
		}
		if len(all) == 0 || m.chance(30) {
			return m.pick("eu-west-1", "10.0.0.0/16", "main", "${y}", "net-1003", "x")
		}
		return all[m.IntN(len(all))]
	}
	secret := func() any {
		for _, other := range others {
			if len(other.secret) > 0 && m.chance(60) {
				return m.pick(other.secret...)
			}
		}
		return fmt.Sprintf("tell-nobody-%d", m.serial())
	}
	maybe := func(of func() any) any {
		if m.chance(30) {
			return nil
		}
		return of()
	}
	for _, name := range []string{"network_number", "ports", "enabled", "extra", "timeouts"} {
		attributes[name] = nil
	}
	attributes["name"], attributes["network_id"], attributes["region"] = some(), some(), maybe(some)
	attributes["image"], attributes["size"], attributes["address"] = maybe(some), maybe(some), some()
	attributes["password"], attributes["user_data"] = maybe(secret), maybe(some)
	if m.chance(50) {
		attributes["extra"] = map[string]any{"value": []any{some(), 1}, "type": []any{"tuple", []any{"string", "number"}}}
	}
	if m.chance(50) {
		attributes["timeouts"] = map[string]any{"create": maybe(some)}
	}
	attributes["peers"], attributes["labels"] = []any{some(), "z"}, map[string]any{"k": some(), "t": "x"}
	attributes["login"] = []any{map[string]any{"user": some(), "secret": maybe(secret), "network": maybe(some)}}
	attributes["disk"] = []any{map[string]any{"network": maybe(some), "size": m.IntN(9), "serial": "s"}}[:m.IntN(2)]
	attributes["rule"] = []any{map[string]any{"source": maybe(some), "port": 1}}[:m.IntN(2)]
	mark := func(steps ...any) { sensitive = append(sensitive, steps) }
	name := func(name string) any { return map[string]any{"type": "get_attr", "value": name} }
	if m.chance(40) {
		attributes["user_data"] = secret()
		mark(name("user_data"))
	}
	if m.chance(30) {
		attributes["labels"].(map[string]any)["t"] = secret()
		mark(name("labels"), map[string]any{"type": "index", "value": map[string]any{"value": "t", "type": "string"}})
	}
	if m.chance(30) {
		attributes["image"] = secret()
		mark(name("image"))
	}
	if m.chance(20) {
		mark(name("peers"))
	}
	if m.chance(20) && attributes["extra"] != nil {
		mark(name("extra"))
	}
	if m.chance(20) {
		mark(name("password"))
	}
	return sensitive
}

// For any file: object names are unique; each reference has the value that it replaced and the same
// sensitivity; the first plan has no changes; dependencies come first; and exporting everything
// gives the original file, from which adoption gives the same objects again.
func TestRandomFiles(t *testing.T) {
	files := 40
	if testing.Short() {
		files = 10
	}
	l := language(t)
	d := newDemo(t)
	recovered, secrets := 0, 0
	for seed := range files {
		m := &maker{Rand: rand.New(rand.NewPCG(uint64(seed), 1))}
		text := m.file()
		all, report := run(t, d, text, options())
		recovered, secrets = recovered+report.References, secrets+report.Secrets
		literal := options()
		literal.Literals = true
		plain, _ := run(t, d, text, literal)
		e, without := evaluate(t, d, l, all), evaluate(t, d, l, plain)
		for i, one := range all {
			if one.Object == nil {
				continue
			}
			with, _ := e.config(one).UnmarkDeep()
			if is, _ := without.config(plain[i]).UnmarkDeep(); !with.RawEquals(is) {
				t.Fatalf("seed %d, %s: with references it is\n%#v\nand without\n%#v", seed, one.Address, with, is)
			}
			told, _ := json.Marshal(one.Object.Spec)
			if strings.Contains(string(told), "tell-nobody") || strings.Contains(string(told), "pw-") {
				t.Fatalf("seed %d, %s tells a secret: %s", seed, one.Address, told)
			}
			if one.State.Current.Tainted {
				continue
			}
			if decision := e.firstPlan(one); decision.Action != change.NoOp {
				t.Fatalf("seed %d, %s: the first plan is %s (%s)\n%s\n%s\n%s", seed, one.Address, decision.Action, decision.Reason, told, one.State.Current.Value, one.State.Current.Sensitive)
			}
		}
		sorted(t, seed, all)
		again := write(t, all)
		same(t, seed, text, again)
		o := options()
		o.Progress = func(done, total int) {
			if done > total {
				t.Errorf("%d of %d", done, total)
			}
		}
		second, _ := run(t, d, again, o)
		byAddress := map[string]*statefile.Adopted{}
		for _, one := range second {
			byAddress[one.Address] = one
		}
		for _, one := range all {
			if reflect.DeepEqual(one, byAddress[one.Address]) {
				continue
			}
			t.Fatalf("seed %d: adopted again, %s is another: %s", seed, one.Address, cmp.Diff(one, byAddress[one.Address], cmp.AllowUnexported(statefile.Secret{})))
		}
	}
	if recovered < files || secrets == 0 {
		t.Errorf("only %d references and %d Secrets in %d files: the test tests little", recovered, secrets, files)
	}
}

// sorted verifies that dependencies have no cycle.
func sorted(t *testing.T, seed int, all []*statefile.Adopted) {
	t.Helper()
	on := map[string][]string{}
	for _, one := range all {
		if one.State.Current != nil {
			on[one.StateName] = one.State.Current.Dependencies
		}
	}
	state := map[string]int{}
	var visit func(name string)
	visit = func(name string) {
		switch state[name] {
		case 1:
			t.Fatalf("seed %d: %s depends on itself", seed, name)
		case 0:
			state[name] = 1
			for _, other := range on[name] {
				visit(other)
			}
			state[name] = 2
		}
	}
	for name := range on {
		visit(name)
	}
}

// write exports the adopted resources.
func write(t testing.TB, all []*statefile.Adopted) []byte {
	t.Helper()
	var items []statefile.Item
	for _, one := range all {
		item := statefile.Item{
			StateName: one.StateName, Type: one.State.Type, Name: one.State.Object.Name, Provider: one.State.Provider, ProviderConfig: one.State.ProviderConfig,
			Annotations: one.Annotations,
		}
		if one.Object != nil {
			item.Annotations = one.Object.Annotations
		}
		items = append(items, item)
	}
	var out bytes.Buffer
	_, err := statefile.Export(&out, statefile.Header{Lineage: "l", Serial: 9, Providers: options().Providers}, items, func(i int) (*v1alpha1.ResourceStateSpec, error) {
		return all[i].State, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// same compares two files instance by instance.
func same(t *testing.T, seed int, a, b []byte) {
	t.Helper()
	index := func(text []byte) map[string]*statefile.Instance {
		out := map[string]*statefile.Instance{}
		_, all, err := read(string(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		for _, i := range all {
			slices.Sort(i.Dependencies)
			slices.SortFunc(i.Sensitive, func(a, b cty.Path) int { return strings.Compare(providerapi.PathText(a), providerapi.PathText(b)) })
			out[i.Address.String()+" "+i.Deposed] = i
		}
		return out
	}
	if reflect.DeepEqual(index(a), index(b)) {
		return
	}
	paths := cmp.Comparer(func(a, b cty.Path) bool { return providerapi.PathText(a) == providerapi.PathText(b) })
	if diff := cmp.Diff(index(a), index(b), paths); diff != "" {
		t.Fatalf("seed %d: the exported file differs from the adopted one: %s", seed, diff)
	}
}

func BenchmarkAdopt100k(b *testing.B) {
	const each, chains = 1000, 33
	var text bytes.Buffer
	text.WriteString(`{"version": 4, "serial": 1, "lineage": "l", "resources": [`)
	for c := range chains {
		if c > 0 {
			text.WriteString(",\n")
		}
		fmt.Fprintf(&text, `{"mode": "managed", "type": "demo_network", "name": "n%d", "provider": %q, "instances": [`, c, demoProvider)
		for i := range each {
			if i > 0 {
				text.WriteString(",")
			}
			text.WriteString(network(fmt.Sprintf(`"index_key": %d,`, i), fmt.Sprintf("n-%d", 1000000+c*each+i), "10.0.0.0/16"))
		}
		fmt.Fprintf(&text, "]},\n"+`{"mode": "managed", "type": "demo_server", "name": "s%d", "provider": %q, "instances": [`, c, demoProvider)
		for i := range 2 * each {
			if i > 0 {
				text.WriteString(",")
			}
			text.WriteString(server(fmt.Sprintf(`"index_key": "k%d",`, i), map[string]any{
				"id": fmt.Sprintf("i-%d-%d", c, i), "name": fmt.Sprintf("web-%d-%d", c, i), "network_id": fmt.Sprintf("n-%d", 1000000+c*each+i%each), "user_data": strings.Repeat("#!/bin/sh\n", 100),
				"labels": map[string]any{"team": "shop", "stage": "production"}, "peers": []string{fmt.Sprintf("n-%d", 1000000+c*each+(i+1)%each)}, "password": fmt.Sprintf("secret-%d", i),
			}, fmt.Sprintf(`, "dependencies": ["demo_network.n%d"]`, c)))
		}
		text.WriteString("]}")
	}
	text.WriteString("]}")
	d := newDemo(b)
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		count, references := 0, 0
		if _, err := statefile.Adopt(bytes.NewReader(text.Bytes()), int64(text.Len()), d, options(), func(one *statefile.Adopted) error {
			count++
			references += one.References
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(count), "resources")
		b.ReportMetric(float64(references), "references")
	}
}

func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	text.WriteString(`{"version": 4, "resources": [{"mode": "managed", "type": "demo_network", "name": "n", "provider": "provider.p", "instances": [`)
	for i := range 20000 {
		if i > 0 {
			text.WriteString(",")
		}
		text.WriteString(network(fmt.Sprintf(`"index_key": %d,`, i), fmt.Sprintf("n-%d", i), "10.0.0.0/16"))
	}
	text.WriteString("]}]}")
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := statefile.Read(bytes.NewReader(text.Bytes()), int64(text.Len()), func(*statefile.Instance) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
