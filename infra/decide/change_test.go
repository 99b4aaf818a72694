package decide

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

var testSalt = []byte("0123456789abcdef")

func decided(t testing.TB, prior, config string) (*Decision, *providerapi.Schema) {
	t.Helper()
	schema := testSchema()
	d, err := Decide(context.Background(), Input{
		Address: change.Address{Type: "demo_thing", Name: "main"}, Schema: schema, Provider: &fake{schema: schema},
		Prior: Prior{State: providerapi.State{Value: value(t, &schema.Block, prior)}}, Config: value(t, &schema.Block, config),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d, schema
}

func changeOf(t testing.TB, d *Decision, schema *providerapi.Schema, show ChangeOptions) *change.Change {
	t.Helper()
	c, err := d.Change(schema, show)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func digest(t testing.TB, c *change.Change) [32]byte {
	t.Helper()
	sum, err := c.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestSecretsInDigests checks that a changed secret changes the digest, that an unchanged one does
// not, and that the digest of a secret depends on the salt.
func TestSecretsInDigests(t *testing.T) {
	prior := `{"name":"a","id":"i","size":5,"token":"t","limits":[]}`
	one, schema := decided(t, prior, `{"name":"a","password":"one"}`)
	two, _ := decided(t, prior, `{"name":"a","password":"two"}`)
	show := ChangeOptions{Salt: testSalt}
	a, b := changeOf(t, one, schema, show), changeOf(t, two, schema, show)
	if digest(t, a) == digest(t, b) {
		t.Error("a different password has the same digest")
	}
	if digest(t, a) != digest(t, changeOf(t, one, schema, show)) {
		t.Error("the same decision has two digests")
	}
	if digest(t, a) == digest(t, changeOf(t, one, schema, ChangeOptions{Salt: []byte("another salt than before")})) {
		t.Error("the digest of a secret does not depend on the salt")
	}
	if _, err := one.Change(schema, ChangeOptions{Salt: []byte("short")}); err == nil {
		t.Error("a short salt is accepted")
	}
	one.Address.Name = "other"
	if other := changeOf(t, one, schema, show); other.After.Sensitive[0].Digest == a.After.Sensitive[0].Digest {
		t.Error("equal secrets of two resources have the same digest")
	}
}

// TestSealIsBound checks that a change is bound to the bytes of its sealed decision.
func TestSealIsBound(t *testing.T) {
	d, schema := decided(t, "", `{"name":"a"}`)
	text, err := d.Seal(schema)
	if err != nil {
		t.Fatal(err)
	}
	c := changeOf(t, d, schema, ChangeOptions{Salt: testSalt, Sealed: text})
	if c.Sealed != SealDigest(testSalt, text) || c.Sealed == SealDigest(testSalt, append(text, ' ')) {
		t.Error("the digest does not bind the sealed part")
	}
	newer := *schema
	newer.Version++
	if _, err := Open(text, &newer); err == nil || !strings.Contains(err.Error(), "stale") {
		t.Errorf("sealed with another version of the schema: %v", err)
	}
	for i := range text {
		if _, err := Open(text[:i], schema); err == nil {
			t.Fatalf("the first %d bytes can be opened", i)
		}
	}
}

// TestSealRoundTrip includes values that are delicate in cty.
func TestSealRoundTrip(t *testing.T) {
	d, schema := decided(t, `{"name":"a","id":"i","zone":"z"}`, `{"name":"a","zone":"?","labels":{"k":"secret:x"},"any":[1,"x"]}`)
	d.Before.Private, d.Private = []byte{0, 1}, nil
	d.Before.Identity = cty.ObjectVal(map[string]cty.Value{"arn": cty.StringVal("x")})
	refined := cty.UnknownVal(cty.String).Refine().NotNull().StringPrefix("arn:").NewValue()
	d.After = replaceAt(d.After, cty.GetAttrPath("id"), func(cty.Value) cty.Value { return refined })
	d.encoded = nil // it encoded the former After
	text, err := d.Seal(schema)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Open(text, schema)
	if err != nil {
		t.Fatal(err)
	}
	if !got.After.RawEquals(d.After) || !got.Before.Value.RawEquals(d.Before.Value) || !got.Before.Identity.RawEquals(d.Before.Identity) {
		t.Errorf("got %#v\nwant %#v", got.After, d.After)
	}
	if got.Identity != cty.NilVal || got.Private != nil || !bytes.Equal(got.Before.Private, d.Before.Private) {
		t.Errorf("private or identity: %v", got)
	}
	if !samePaths(got.Replace, d.Replace) || !samePaths(got.Sensitive, d.Sensitive) || len(got.Sensitive) != 1 || got.Action != change.Replace {
		t.Errorf("paths: %v %v", got.Replace, got.Sensitive)
	}
}

// TestFieldOrigins checks that a field lists the references that are written in it, for all keys of
// maps and all ways to write blocks. The elements of a set cannot be attributed.
func TestFieldOrigins(t *testing.T) {
	const nothing = `{"name":"a"}`
	for name, c := range map[string]struct {
		prior, config string
		origins       []string
		want          string
	}{
		"a key of digits":                      {`{"name":"a","labels":{"80":"1","a]b":"1"}}`, `{"name":"a","labels":{"80":"2","a]b":"2"}}`, []string{"labels[80]", "labels[a]b]"}, `labels["80"]: labels[80]; labels["a]b"]: labels[a]b]`},
		"an element":                           {`{"name":"a","list":["x","y"]}`, `{"name":"a","list":["x","y","z"]}`, []string{"list[0]", "list[2]"}, "list[2]: list[2]"},
		"the first of several elements":        {`{"name":"a","list":["x","y"]}`, `{"name":"a","list":["z","y"]}`, []string{"list[0]", "list[1]"}, "list[0]:; list[0]: list[0]"},
		"after a removed element":              {`{"name":"a","list":["x","y","z"]}`, `{"name":"a","list":["y","q"]}`, []string{"list[0]", "list[1]"}, "list[0]:; list[2]:; list[1]: list[1]"},
		"one more block":                       {`{"name":"a","rule":[{"port":2}]}`, `{"name":"a","rule":[{"port":1},{"port":2}]}`, []string{"rule[0].port", "rule[1].port"}, "rule[0].port: rule[0].port; rule[1]: rule[1].port"},
		"a key like an element":                {`{"name":"a","labels":{"a":"1","a[0]":"1"}}`, `{"name":"a","labels":{"a":"1","a[0]":"2"}}`, []string{"labels[a]", "labels[a[0]]"}, `labels["a[0]"]: labels[a[0]]`},
		"everything within the field":          {nothing, `{"name":"a","list":["x","y"]}`, []string{"list[0]", "list[1]", "name"}, "list: list[0], list[1]"},
		"everything around the field":          {`{"name":"a","labels":{"a":"1"}}`, `{"name":"a","labels":{"a":"2"}}`, []string{"labels", "lab"}, `labels["a"]: labels`},
		"a block of a list":                    {`{"name":"a","rule":[{"port":1},{"port":2}]}`, `{"name":"a","rule":[{"port":1},{"port":3}]}`, []string{"rule[0].port", "rule[1].port", "rule[1].uid"}, "rule[1].port: rule[1].port"},
		"a single block, written as an object": {`{"name":"a","rule":[{"port":1}]}`, `{"name":"a","rule":[{"port":3}]}`, []string{"rule.port", "rule.uid"}, "rule[0].port: rule.port"},
		"a block of a map":                     {`{"name":"a","env":{"1":{"value":"x"}}}`, `{"name":"a","env":{"1":{"value":"y"}}}`, []string{"env[1].value", "env[2].value"}, `env["1"].value: env[1].value`},
		"one block":                            {`{"name":"a","network":{"cidr":"x"}}`, `{"name":"a","network":{"cidr":"y"}}`, []string{"network.cidr"}, "network.cidr: network.cidr"},
		"an element of a set":                  {`{"name":"a","tags":["b"]}`, `{"name":"a","tags":["c","b"]}`, []string{"tags[0]", "tags[1]"}, "tags[1]:"},
		"the only element of a set":            {`{"name":"a","tags":["b"]}`, `{"name":"a","tags":["c"]}`, []string{"tags[0]"}, "tags[0]:; tags[0]: tags[0]"},
		"a whole set":                          {nothing, `{"name":"a","tags":["c","b"]}`, []string{"tags[0]", "tags[1]"}, "tags: tags[0], tags[1]"},
		"nothing for a removed field":          {`{"name":"a","labels":{"a":"1","b":"1"}}`, `{"name":"a","labels":{"b":"1"}}`, []string{"labels"}, `labels["a"]:`},
	} {
		t.Run(name, func(t *testing.T) {
			d, schema := decided(t, c.prior, c.config)
			origins := map[string]string{}
			for _, at := range c.origins {
				origins[at] = at
			}
			var got []string
			for _, f := range changeOf(t, d, schema, ChangeOptions{Salt: testSalt, Origins: origins}).Fields {
				if f.Action != change.FieldUnknown {
					got = append(got, strings.TrimSpace(f.Path+": "+strings.Join(f.From, ", ")))
				}
			}
			if joined := strings.Join(got, "; "); joined != c.want {
				t.Errorf("got %s\nwant %s", joined, c.want)
			}
		})
	}
}

// TestFields checks the fields of a change in the API's representation.
func TestFields(t *testing.T) {
	d, schema := decided(t,
		`{"name":"a","id":"i","size":5,"token":"t","limits":[],"zone":"z1","list":["a","b"],"labels":{"x.y":"1"},"password":"p","rule":[{"port":1,"uid":"u"}]}`,
		`{"name":"a","zone":"z2","list":["n","a","b"],"labels":{"x.y":"2","z":"?"},"password":"q","content":"new"}`)
	c := changeOf(t, d, schema, ChangeOptions{Salt: testSalt, Origins: map[string]string{"labels[z]": "net.id", "content": "k8s.x"}})
	var got strings.Builder
	for _, f := range c.Fields {
		fmt.Fprintf(&got, "%s %s %s -> %s", f.Action, f.Path, f.Before, f.After)
		if f.Sensitive {
			got.WriteString(" sensitive")
		}
		if f.ForcesReplacement {
			got.WriteString(" forces")
		}
		for _, from := range f.From {
			got.WriteString(" from " + from)
		}
		got.WriteString("\n")
	}
	want := `add content  -> "new" from k8s.x
unknown id "i" -> 
change labels["x.y"] "1" -> "2"
unknown labels["z"]  ->  from net.id
unknown limits [] -> 
add list[0]  -> "n"
change password  ->  sensitive
remove rule[0] {"port":1,"uid":"u"} -> 
unknown size 5 -> 
unknown token  ->  sensitive
change zone "z1" -> "z2" forces
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// TestPathRoundTrip checks that a formatted path parses as the same path.
func TestPathRoundTrip(t *testing.T) {
	for _, text := range []string{"a", "a.b", `tags["Name"]`, `tags["a\"].b"]`, "rules[0].port", "a[12][3].b", `"odd name".x`} {
		p, err := providerapi.ParsePath(text)
		if err != nil || providerapi.PathText(p) != text {
			t.Errorf("%s: %v, %v", text, providerapi.PathText(p), err)
		}
	}
	for _, text := range []string{"a..b", "a[", "a[]", "a[x]", `a["x]`, "a b]", "[…]", ".a", "a.", `"a`, "a[0]b"} {
		if p, err := providerapi.ParsePath(text); err == nil && providerapi.PathText(p) != providerapi.NameText(text) {
			t.Errorf("%s is parsed as %s", text, providerapi.PathText(p))
		}
	}
}

// TestWarningsAreNotDuplicated: a replacement is planned twice, and its warnings are kept once.
func TestWarningsAreNotDuplicated(t *testing.T) {
	schema := testSchema()
	provider := &fake{schema: schema, validate: providerapi.Diagnostics{{Warning: true, Summary: "deprecated"}}}
	provider.plan = func(request providerapi.PlanRequest) providerapi.PlanAnswer {
		answer := provider.goodPlan(request)
		answer.Diagnostics = providerapi.Diagnostics{{Warning: true, Summary: "careful"}}
		return answer
	}
	d, err := Decide(context.Background(), Input{
		Address: change.Address{Type: "demo_thing", Name: "main"}, Schema: schema, Provider: provider, Replace: true,
		Prior: Prior{State: providerapi.State{Value: value(t, &schema.Block, `{"name":"a","id":"i"}`)}}, Config: value(t, &schema.Block, `{"name":"a"}`),
	})
	if err != nil || d.Action != change.Replace || len(d.Warnings) != 2 {
		t.Fatalf("%v, %v", d, err)
	}
}

// TestConcurrentDecisions shares the schema and the provider between decisions.
func TestConcurrentDecisions(t *testing.T) {
	schema := testSchema()
	provider := &fake{schema: schema}
	prior := value(t, &schema.Block, `{"name":"a","id":"i","size":5,"token":"t","limits":[],"disk":[{"path":"/a","id":"d"}]}`)
	config := value(t, &schema.Block, `{"name":"a","zone":"z","disk":[{"path":"/a"}]}`)
	var all sync.WaitGroup
	digests := make([][32]byte, 16)
	for i := range digests {
		all.Go(func() {
			d, err := Decide(context.Background(), Input{Address: change.Address{Type: "demo_thing", Name: "main"}, Schema: schema, Provider: provider,
				Prior: Prior{State: providerapi.State{Value: prior}}, Config: config, Refresh: true})
			if err != nil {
				t.Error(err)
				return
			}
			c, err := d.Change(schema, ChangeOptions{Salt: testSalt})
			if err != nil {
				t.Error(err)
				return
			}
			if digests[i], err = c.Digest(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range digests {
		if digests[i] != digests[0] {
			t.Error("the same input has different digests")
		}
	}
}

// samePaths compares two sets of paths.
func samePaths(a, b []cty.Path) bool {
	for _, p := range a {
		if !hasPath(b, p) {
			return false
		}
	}
	for _, p := range b {
		if !hasPath(a, p) {
			return false
		}
	}
	return true
}
