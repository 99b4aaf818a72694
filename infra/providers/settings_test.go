package providers

import (
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/infra/contract"
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

func configBlock() contract.Block {
	text := func(name string, sensitive bool) contract.Attribute {
		return contract.Attribute{Name: name, Type: cty.String, Optional: true, Sensitive: sensitive}
	}
	login := &contract.Object{Nesting: contract.NestingSingle, Attributes: []contract.Attribute{text("password", false), text("user", false)}}
	return contract.Block{
		Attributes: []contract.Attribute{
			text("access_key", false),
			{Name: "headers", Type: cty.Map(cty.String), Optional: true},
			{Name: "login", Nested: login, Type: login.ImpliedType(), Optional: true},
			text("region", false),
			text("token", true),
		},
		Blocks: []contract.NestedBlock{{Name: "role", Nesting: contract.NestingList, Block: contract.Block{
			Attributes: []contract.Attribute{text("arn", false), text("external_id", false)},
		}}},
	}
}

const everywhere = `
access_key: {secretKeyRef: {name: keys, key: id}}
region: west
token: {secretKeyRef: {name: keys, key: token}}
login: {user: me, password: {secretKeyRef: {name: more, key: p}}}
role:
- {arn: one}
- {arn: two, external_id: {secretKeyRef: {name: more, key: x}}}
`

type told map[string]string

func (told) Expression(*field.Path, string) (cty.Value, error) {
	return (*secretReader)(nil).Expression(nil, "")
}

func (s told) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	return cty.StringVal(s[ref.Name+"/"+ref.Key]).Mark(contract.Sensitive), nil
}

func TestAnyArgumentCanBeFromASecret(t *testing.T) {
	given := parsed(t, everywhere)
	if got := secretsIn(given); !slices.Equal(got, []string{"keys", "more"}) {
		t.Errorf("it names the Secrets %v", got)
	}
	original := configBlock()
	block := takingSecrets(original, given)
	value, errs := schema.Config(&block, field.NewPath("spec", "configuration"), given,
		told{"keys/id": "AKIA1", "keys/token": "tok", "more/p": "pass", "more/x": "ext"})
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
		t.Errorf("%q hides what is no secret", masked)
	}
	if original.Attributes[0].Sensitive || original.Attributes[2].Nested.Attributes[0].Sensitive || original.Blocks[0].Block.Attributes[1].Sensitive {
		t.Error("the provider's own schema was changed")
	}
}

func TestRefusedConfigurations(t *testing.T) {
	for text, want := range map[string]string{
		`region: ${demo_network["x"].id}`: "spec.configuration.region: Invalid value: \"${demo_network[\\\"x\\\"].id}\": must not be an expression",
		`token: literal`:                  "spec.configuration.token",
		`regoin: west`:                    "region",
		`region: 5`:                       "spec.configuration.region",
		`headers: {a: x, b: {secretKeyRef: {name: s, key: k}}}`: "spec.configuration.headers",
		`token: {secretKeyRef: {name: s}}`:                      "must have exactly the fields name and key",
	} {
		given := parsed(t, text)
		block := takingSecrets(configBlock(), given)
		_, errs := schema.Config(&block, field.NewPath("spec", "configuration"), given, told{"s/k": "hidden"})
		if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("%s: %v, want %s", text, errs, want)
		}
		if said := errs.ToAggregate(); said != nil && (strings.Contains(said.Error(), "hidden") || strings.Contains(said.Error(), "literal")) {
			t.Errorf("%v tells a secret", said)
		}
	}
}

// The revision goes into states: it is the same after a restart, and says nothing of what Secrets hold.
func TestRevision(t *testing.T) {
	of := func(text string, secrets ...secretVersion) string {
		return (&settings{written: parsed(t, text), secrets: secrets}).revision()
	}
	one := secretVersion{"s", "uid", "7"}
	base := of("a: 1\nb: {c: [x]}", one)
	if again := of("b: {c: [x]}\na: 1", one); again != base {
		t.Error("the same configuration has two revisions")
	}
	for what, other := range map[string]string{
		"an argument": of("a: 2\nb: {c: [x]}", one), "no Secret": of("a: 1\nb: {c: [x]}"),
		"a changed Secret":  of("a: 1\nb: {c: [x]}", secretVersion{"s", "uid", "8"}),
		"a Secret made new": of("a: 1\nb: {c: [x]}", secretVersion{"s", "uid2", "7"}),
	} {
		if other == base {
			t.Errorf("%s leaves the revision as it is", what)
		}
	}
	if base != "" && len(base) != 32 {
		t.Errorf("revision %q", base)
	}
}
