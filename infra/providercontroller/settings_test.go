package providercontroller

import (
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func configBlock() providerapi.Block {
	text := func(name string, sensitive bool) providerapi.Attribute {
		return providerapi.Attribute{Name: name, Type: cty.String, Optional: true, Sensitive: sensitive}
	}
	login := &providerapi.Object{Nesting: providerapi.NestingSingle, Attributes: []providerapi.Attribute{text("password", false), text("user", false)}}
	return providerapi.Block{
		Attributes: []providerapi.Attribute{
			text("access_key", false),
			{Name: "headers", Type: cty.Map(cty.String), Optional: true},
			{Name: "login", Nested: login, Type: login.ImpliedType(), Optional: true},
			text("region", false),
			text("token", true),
		},
		Blocks: []providerapi.NestedBlock{{Name: "role", Nesting: providerapi.NestingList, Block: providerapi.Block{
			Attributes: []providerapi.Attribute{text("arn", false), text("external_id", false)},
		}}},
	}
}

const exampleConfiguration = `
access_key: {secretKeyRef: {name: keys, key: id}}
region: west
token: {secretKeyRef: {name: keys, key: token}}
login: {user: me, password: {secretKeyRef: {name: more, key: p}}}
role:
- {arn: one}
- {arn: two, external_id: {secretKeyRef: {name: more, key: x}}}
`

type fakeSecrets map[string]string

func (fakeSecrets) Expression(*field.Path, string) (cty.Value, error) {
	return (*secretReader)(nil).Expression(nil, "")
}

func (s fakeSecrets) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	return cty.StringVal(s[ref.Name+"/"+ref.Key]).Mark(providerapi.Sensitive), nil
}

func TestAnyArgumentCanComeFromASecret(t *testing.T) {
	given := parsed(t, exampleConfiguration)
	if got := secretsIn(given); !slices.Equal(got, []string{"keys", "more"}) {
		t.Errorf("it references the Secrets %v", got)
	}
	original := configBlock()
	block := markSecretArguments(original, given)
	value, errs := schema.Config(&block, field.NewPath("spec", "configuration"), given,
		fakeSecrets{"keys/id": "AKIA1", "keys/token": "tok", "more/p": "pass", "more/x": "ext"})
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	plain, secret := schema.Unmark(value)
	if plain.GetAttr("access_key").AsString() != "AKIA1" || plain.GetAttr("login").GetAttr("password").AsString() != "pass" ||
		plain.GetAttr("role").AsValueSlice()[1].GetAttr("external_id").AsString() != "ext" {
		t.Errorf("%#v", plain)
	}
	if len(secret) < 4 {
		t.Errorf("only %d of 4 secrets are marked", len(secret))
	}
	masked := schema.NewMask(value).Text("AKIA1 at west with pass-word pass, ext1 and code tok")
	for _, leak := range []string{"AKIA1", " pass,", " tok"} {
		if strings.Contains(masked+" ", leak) {
			t.Errorf("%q has %q", masked, leak)
		}
	}
	if !strings.Contains(masked, "west") {
		t.Errorf("%q masks a value that is not secret", masked)
	}
	if original.Attributes[0].Sensitive || original.Attributes[2].Nested.Attributes[0].Sensitive || original.Blocks[0].Block.Attributes[1].Sensitive {
		t.Error("the provider's own schema was changed")
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for text, want := range map[string]string{
		`region: ${demo_network["x"].id}`: "spec.configuration.region: Invalid value: \"${demo_network[\\\"x\\\"].id}\": must not be an expression",
		`token: literal`:                  "spec.configuration.token",
		`regoin: west`:                    "region",
		`region: 5`:                       "spec.configuration.region",
		`headers: {a: x, b: {secretKeyRef: {name: s, key: k}}}`: "spec.configuration.headers",
		`token: {secretKeyRef: {name: s}}`:                      "must have exactly the fields name and key",
	} {
		given := parsed(t, text)
		block := markSecretArguments(configBlock(), given)
		_, errs := schema.Config(&block, field.NewPath("spec", "configuration"), given, fakeSecrets{"s/k": "hidden"})
		if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("%s: %v, want %s", text, errs, want)
		}
		if err := errs.ToAggregate(); err != nil && (strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "literal")) {
			t.Errorf("%v reveals a secret", err)
		}
	}
}

// The revision is stored in states: it is stable over restarts and reveals nothing about the
// contents of Secrets.
func TestRevision(t *testing.T) {
	of := func(text string, secrets ...secretVersion) string {
		return (&settings{present: true, configuration: parsed(t, text), secrets: secrets}).revision()
	}
	one := secretVersion{"s", "uid", "7"}
	base := of("a: 1\nb: {c: [x]}", one)
	if again := of("b: {c: [x]}\na: 1", one); again != base {
		t.Error("the same configuration has two revisions")
	}
	for what, other := range map[string]string{
		"an argument": of("a: 2\nb: {c: [x]}", one), "no Secret": of("a: 1\nb: {c: [x]}"),
		"a changed Secret":   of("a: 1\nb: {c: [x]}", secretVersion{"s", "uid", "8"}),
		"a recreated Secret": of("a: 1\nb: {c: [x]}", secretVersion{"s", "uid2", "7"}),
	} {
		if other == base {
			t.Errorf("%s does not change the revision", what)
		}
	}
	if base != "" && len(base) != 32 {
		t.Errorf("revision %q", base)
	}
}
