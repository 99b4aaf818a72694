package schema

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// made is a server as its provider would report it.
func made(t *testing.T) cty.Value {
	t.Helper()
	v, errs := serverKind().Config(object(t, `
name: web-${n}
cpus: "123456789012345678901"
groups: [b, a]
dns: []
size: {width: 0.5}
extra: [1, x]
password: {secretKeyRef: {name: s, key: p}}
keys: {secretKeyRef: {name: s, key: keys}}
login: [{user: root, secret: {secretKeyRef: {name: s, key: p}}}, {user: guest}]
disk: [{gigabytes: 5}, {gigabytes: 6, key: {secretKeyRef: {name: s, key: p}}}]
rule: [{port: 80, token: {secretKeyRef: {name: s, key: p}}}]
label: {a: {value: x}, b: {}}
network: {cidrs: [10.0.0.0/8]}`), tableResolver{
		expressions: map[string]cty.Value{"web-${n}": cty.StringVal("web-${1}")},
		secrets:     map[SecretKeyRef]string{{"s", "p"}: "hunter2", {"s", "keys"}: `{"a": "b"}`},
	})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	v, _ = Unmark(v)
	fields := v.AsValueMap()
	fields["id"] = cty.StringVal("i-1")
	fields["address"] = cty.StringVal("10.1.1.1")
	fields["root_password"] = cty.StringVal("r00t")
	fields["enabled"] = cty.True
	return cty.ObjectVal(fields)
}

func TestAttributes(t *testing.T) {
	got := serverKind().Attributes(made(t), nil)
	want := object(t, `
id: i-1
address: 10.1.1.1
name: web-${1}
cpus: "123456789012345678901"
enabled: true
groups: [a, b]
dns: []
size: {width: 0.5}
extra: [1, x]
login: [{user: root}, {user: guest}]
disk: [{gigabytes: 5}, {gigabytes: 6}]
rule: [{port: 80}]
label: {a: {value: x}, b: {}}
network: [{cidrs: [10.0.0.0/8]}]
tuning: {}`)
	delete(want, "tuning") // an empty group is omitted
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got %s", diff)
	}
}

// TestHidden: values that are sensitive in the configuration are not shown when the provider
// returns them.
func TestHidden(t *testing.T) {
	hidden := []cty.Path{
		cty.GetAttrPath("name"),
		cty.GetAttrPath("login").IndexInt(1).GetAttr("user"),
		cty.GetAttrPath("size").GetAttr("width"),
		cty.GetAttrPath("extra").IndexInt(1),
		cty.GetAttrPath("groups").Index(cty.StringVal("as it was")),
		cty.GetAttrPath("disk"),
	}
	got := serverKind().Attributes(made(t), hidden)
	want := object(t, `
id: i-1
address: 10.1.1.1
cpus: "123456789012345678901"
enabled: true
dns: []
size: {}
extra: [1, null]
login: [{user: root}, {}]
rule: [{port: 80}]
label: {a: {value: x}, b: {}}
network: [{cidrs: [10.0.0.0/8]}]`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got %s", diff)
	}
	marked := serverKind().Attributes(cty.ObjectVal(map[string]cty.Value{
		"name": cty.StringVal("x").Mark(providerapi.Sensitive), "address": cty.StringVal("y").Mark("else"), "old": cty.UnknownVal(cty.Bool)}), nil)
	if diff := cmp.Diff(map[string]any{"address": "y"}, marked); diff != "" {
		t.Errorf("marked: -want +got %s", diff)
	}
}

func TestConnection(t *testing.T) {
	got := map[string]string{}
	for key, data := range serverKind().Connection(made(t), []cty.Path{cty.GetAttrPath("name"), cty.GetAttrPath("groups").Index(cty.StringVal("?"))}) {
		got[key] = string(data)
	}
	want := map[string]string{
		"name": "web-${1}", "groups": `["a","b"]`, "password": "hunter2", "root_password": "r00t", "keys": `{"a":"b"}`,
		"login.0.secret": "hunter2", "disk.1.key": "hunter2", "rule.0.token": "hunter2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got %s", diff)
	}
}

func TestSecretKeys(t *testing.T) {
	path := func(key string) cty.Path { return cty.GetAttrPath("a").IndexString(key) }
	for _, test := range []struct {
		path cty.Path
		want string
	}{
		{cty.GetAttrPath("a").IndexInt(3).GetAttr("b"), "a.3.b"},
		{path("x-y_z"), "a.x-y_z"},
		{path("x/y"), "a.x_y-1b7b8a5f"},
		{path("x.y"), "a.x.y-1b7b8a5f"},
	} {
		got := secretKey(test.path)
		if len(got) > 8 && got[:len(got)-8] == test.want[:len(test.want)-8] {
			continue // the digest is not checked
		}
		if got != test.want {
			t.Errorf("%#v: %s, want %s", test.path, got, test.want)
		}
	}
	if secretKey(path("x/y")) == secretKey(path("x_y")) || secretKey(path("b.c")) == secretKey(cty.GetAttrPath("a").GetAttr("b").GetAttr("c")) {
		t.Error("two paths have one key")
	}
}

func TestSpec(t *testing.T) {
	got, placeholders := serverKind().Spec(made(t), SpecOptions{Secret: "web"})
	want := object(t, `
name: web-$${1}
cpus: "123456789012345678901"
groups: [a, b]
dns: []
size: {width: 0.5}
extra: [1, x]
password: {secretKeyRef: {name: web, key: password}}
keys: {secretKeyRef: {name: web, key: keys}}
login: [{user: root, secret: {secretKeyRef: {name: web, key: login.0.secret}}}, {user: guest}]
disk: [{gigabytes: 5}, {gigabytes: 6, key: {secretKeyRef: {name: web, key: disk.1.key}}}]
rule: [{port: 80, token: {secretKeyRef: {name: web, key: rule.0.token}}}]
label: {a: {value: x}, b: {}}
network: {cidrs: [10.0.0.0/8]}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got %s", diff)
	}
	if errs, _ := serverKind().Validate(got, Checks{}); len(errs) > 0 {
		t.Errorf("it is not valid: %v", errs)
	}
	data := serverKind().Connection(made(t), nil)
	for _, p := range placeholders {
		if data[p.Key] == nil {
			t.Errorf("Connection has nothing under %s", p.Key)
		}
	}
	if len(placeholders) != 5 {
		t.Errorf("%d placeholders: %v", len(placeholders), placeholders)
	}
	with, _ := serverKind().Spec(made(t), SpecOptions{Secret: "web", Computed: true})
	if with["enabled"] != true || with["id"] != nil {
		t.Errorf("with what may be computed: %v", with)
	}
}

// TestSpecRoundTrip: decoding the spec of a value, with the Secret from Connection, returns the
// value.
func TestSpecRoundTrip(t *testing.T) {
	for seed := range uint64(3000) {
		m := newMaker(seed)
		k := Kind{Schema: m.schema()}
		v := m.value(&k.Schema.Block)
		spec, placeholders := k.Spec(v, SpecOptions{Secret: "s", Computed: true})
		// Encodes and decodes like the API, which has 64-bit numbers.
		if text, err := json.Marshal(spec); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, text)
		}
		secrets := map[SecretKeyRef]string{}
		for key, data := range k.Connection(v, nil) {
			secrets[SecretKeyRef{"s", key}] = string(data)
		}
		for _, p := range placeholders {
			if _, ok := secrets[SecretKeyRef{"s", p.Key}]; !ok {
				t.Fatalf("seed %d: there is nothing under %s", seed, p.Key)
			}
		}
		if errs, _ := k.Validate(spec, Checks{Partial: true}); len(errs) > 0 {
			t.Fatalf("seed %d: %v of %v", seed, errs, spec)
		}
		back, errs := k.Config(spec, tableResolver{secrets: secrets})
		if len(errs) > 0 {
			t.Fatalf("seed %d: %v of %v", seed, errs, spec)
		}
		back, _ = Unmark(back)
		if !back.RawEquals(v) {
			t.Fatalf("seed %d:\n%#v became\n%#v by\n%v", seed, v, back, spec)
		}
	}
}

func TestMarks(t *testing.T) {
	v := Mark(&server().Block, made(t))
	unmarked, paths := Unmark(v)
	if !unmarked.RawEquals(made(t)) {
		t.Error("marking and unmarking changes the value")
	}
	got := map[string]bool{}
	for _, path := range paths {
		got[secretKey(path)] = true
	}
	// boot_token, the first disk's key and the second login's secret are null.
	want := []string{"disk.1.key", "keys", "login.0.secret", "password", "root_password", "rule"}
	if diff := cmp.Diff(want, sortedKeys(got)); diff != "" {
		t.Errorf("-want +got %s", diff)
	}
}

// TestNullIsNotSensitive: a value whose sensitive parts are null has no marks; one whose parts are
// unknown has.
func TestNullIsNotSensitive(t *testing.T) {
	block := &server().Block
	if v := Mark(block, block.Empty()); v.ContainsMarked() {
		t.Errorf("nothing is marked: %#v", v)
	}
	if v, errs := serverKind().Config(map[string]any{}, nil); len(errs) > 0 || v.ContainsMarked() {
		t.Errorf("an absent value is marked: %#v, %v", v, errs)
	}
	of := block.Empty().AsValueMap()
	of["password"] = cty.UnknownVal(cty.String)
	if v := Mark(block, cty.ObjectVal(of)); !v.GetAttr("password").HasMark(providerapi.Sensitive) {
		t.Error("a password that is not known yet is not marked")
	}
}

func TestMask(t *testing.T) {
	secret := func(v cty.Value) cty.Value { return v.Mark(providerapi.Sensitive) }
	mask := NewMask(cty.ObjectVal(map[string]cty.Value{
		"shown":    cty.StringVal("visible"),
		"password": secret(cty.StringVal("hunter2")),
		"longer":   secret(cty.StringVal("hunter2-and-more")),
		"short":    secret(cty.StringVal("ab")),
		"number":   secret(cty.NumberIntVal(8443)),
		"digits":   secret(cty.StringVal("31415926")),
		"flag":     secret(cty.True),
		"none":     secret(cty.NullVal(cty.String)),
		"unknown":  secret(cty.UnknownVal(cty.String)),
		"empty":    secret(cty.StringVal("")),
		"key":      secret(cty.StringVal("-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n\"quoted\"\n")),
		"odd":      secret(cty.StringVal("a b&c=d/e")),
		"list":     secret(cty.ListVal([]cty.Value{cty.StringVal("in-a-list")})),
	}), cty.NilVal)
	for text, want := range map[string]string{
		"visible and true":       "visible and true",
		`bad password "hunter2"`: `bad password "(sensitive)"`,
		"xhunter2x":              "x(sensitive)x",
		"hunter2-and-more":       "(sensitive)",
		"ab about cab ab.":       "(sensitive) about cab (sensitive).",
		"port 8443, not 18443":   "port (sensitive), not 18443",
		`key "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n\"quoted\"\n"`: `key "(sensitive)"`,
		"line 2: MIIEowIBAAKCAQEA":                                  "line 2: (sensitive)",
		"https://x/?q=a+b%26c%3Dd%2Fe":                              "https://x/?q=(sensitive)",
		"Authorization: aHVudGVyMg==":                               "Authorization: (sensitive)==",
		`{"password":"a b\u0026c=d/e"}`:                             `{"password":"(sensitive)"}`,
		"pin31415926":                                               "pin(sensitive)",
		"in-a-list":                                                 "(sensitive)",
	} {
		if got := mask.Text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	said := providerapi.Diagnostics{{Summary: "hunter2?", Detail: "no, hunter2", Warning: true}}
	if got := mask.Diagnostics(said); got[0].Summary != "(sensitive)?" || got[0].Detail != "no, (sensitive)" || !got[0].Warning || said[0].Summary != "hunter2?" {
		t.Errorf("%v of %v", got, said)
	}
	if got := (Mask{}).Text("hunter2"); got != "hunter2" {
		t.Errorf("no mask makes %q", got)
	}
}
