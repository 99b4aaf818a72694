package expr

import (
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"
)

// TestTraversalAgreesWithCEL compares a single reference, which is traversed without CEL, with the
// same reference in an expression that is compiled: value, marks and errors must be equal.
func TestTraversalAgreesWithCEL(t *testing.T) {
	l, random := newLanguage(t), rand.New(rand.NewSource(1))
	values := testObjects()
	from := Scope{Lookup: lookup(values)}
	names := []string{`net["a"]`, `net["new"]`, `net["later"]`, `db["main"]`, `k8s.Deployment["web"]`}
	steps := []string{".id", ".mtu", ".none", ".zones", ".ports", ".tags", ".pair", ".rules", ".port", ".name", ".team", `["a/b"]`, ".empty",
		".some", ".meta", ".uid", ".known", ".password", ".users", ".hidden", ".x", ".metadata", ".namespace", ".labels", "[0]", "[1]", "[2]", ".token", ".note"}
	good, alone := 0, 0
	byAttribute := from
	byAttribute.Attribute = func(ref Ref, name string) (cty.Value, bool) {
		v, err := from.Lookup(ref)
		if err != nil || v.IsMarked() || !v.IsKnown() || !v.Type().IsObjectType() || !v.Type().HasAttribute(name) {
			return cty.NilVal, false
		}
		alone++
		return v.GetAttr(name), true
	}
	for range 4000 {
		text := names[random.Intn(len(names))]
		for range random.Intn(4) {
			text += steps[random.Intn(len(steps))]
		}
		plain, plainErr := evaluate(t, l, "${"+text+"}", from)
		if v, err := evaluate(t, l, "${"+text+"}", byAttribute); fmt.Sprint(err) != fmt.Sprint(plainErr) || err == nil && !v.RawEquals(plain) {
			t.Fatalf("%s: with Attribute %s (%v), with Lookup %s (%v)", text, formatResult(v), err, formatResult(plain), plainErr)
		}
		// dyn(…) forces CEL and does not change the value.
		compiled, compiledErr := evaluate(t, l, "${dyn("+text+")}", from)
		if plainErr != nil && compiledErr == nil && !compiled.IsKnown() {
			continue // the traversal knows the type of an unknown value and finds more errors
		}
		if (plainErr == nil) != (compiledErr == nil) {
			t.Fatalf("%s: traversed %s (%v), compiled %s (%v)", text, formatResult(plain), plainErr, formatResult(compiled), compiledErr)
		}
		if plainErr != nil {
			continue
		}
		good++
		if !agree(plain, compiled) {
			t.Fatalf("%s: traversed %s, compiled %s", text, formatResult(plain), formatResult(compiled))
		}
	}
	if good < 400 || alone < 400 {
		t.Errorf("only %d paths had a value and %d started at an attribute: the test covers too little", good, alone)
	}
}

// TestNull: ${null} is null, for places where a manifest cannot have one: kubectl's patches remove it.
func TestNull(t *testing.T) {
	v, err := evaluate(t, newLanguage(t), "${null}", Scope{})
	if err != nil || !v.IsNull() {
		t.Errorf("%#v, %v", v, err)
	}
}

func evaluate(t *testing.T, l *Language, text string, from Scope) (cty.Value, error) {
	t.Helper()
	parsed, err := l.Template(text, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Value(from)
}

func formatResult(v cty.Value) string {
	if v == cty.NilVal {
		return "nothing"
	}
	return formatValue(v)
}

// agree compares as far as CEL can know: CEL has no types for null and unknown values, and a set
// with an unknown part is unknown. Marks must be in both or in neither.
func agree(plain, compiled cty.Value) bool {
	a, marksA := plain.UnmarkDeep()
	b, marksB := compiled.UnmarkDeep()
	if len(marksA) != len(marksB) {
		return false
	}
	switch {
	case a.Type().IsSetType() && !a.IsWhollyKnown():
		return !b.IsKnown()
	case !a.IsKnown():
		return !b.IsKnown()
	case a.IsNull():
		return b.IsKnown() && b.IsNull()
	}
	return a.RawEquals(b)
}

// TestMarksNeverLost checks that everything computed from a sensitive value is sensitive, and that
// no error quotes it.
func TestMarksNeverLost(t *testing.T) {
	l := newLanguage(t)
	const password = "S3CR3T"
	v := cty.StringVal(password).Mark(secret{})
	from := Scope{Lookup: func(Ref) (cty.Value, error) {
		return cty.ObjectVal(map[string]cty.Value{
			"p": v, "list": cty.ListVal([]cty.Value{v, cty.StringVal("x")}), "map": cty.MapVal(map[string]cty.Value{"k": v}),
			"keys": cty.MapVal(map[string]cty.Value{password: cty.StringVal("v")}).Mark(secret{}),
			"set":  cty.SetVal([]cty.Value{v, cty.StringVal("x")}), "deep": cty.ObjectVal(map[string]cty.Value{"a": cty.TupleVal([]cty.Value{v})}),
			"name": cty.StringVal("n"), "json": cty.StringVal(`{"` + password + `": "` + password + `"}`).Mark(secret{}),
		}), nil
	}}
	for _, text := range []string{
		`x.y.p + "a"`, `x.y.p.size()`, `x.y.p == "a"`, `x.y.p != "a"`, `x.y.p in ["a"]`, `"a" in x.y.list`, `x.y.list.map(e, e)`, `x.y.list.exists(e, e == "q")`,
		`x.y.list + ["a"]`, `["a"] + x.y.list`, `x.y.list == ["a", "b"]`, `jsonencode(x.y)`, `jsonencode([x.y.list])`, `x.y.list.join()`, `x.y.map.k + ""`, `x.y.map["k"]`,
		`x.y.keys.map(k, k)`, `x.y.keys.size()`, `"a" in x.y.keys`, `has(x.y.keys.a)`, `has(x.y.map.k)`, `x.y.set.map(e, "a")`, `x.y.set.size()`, `x.y.deep == {"a": ["b"]}`,
		`x.y.deep.a[0].startsWith("S")`, `x.y.p.startsWith("S") ? 1 : 2`, `[x.y.p].distinct()`, `sets.contains(x.y.list, ["a"])`, `"%s".format([x.y.deep.a])`, `x.y.p.matches("S")`,
		`x.y.name.replace("n", x.y.p)`, `base64encode(x.y.p)`, `jsondecode(x.y.json)`, `merge(x.y.map, {})`, `[x.y]`, `x.y`, `{"a": x.y.list}`,
		`cel.bind(b, x.y.p, 1 + size(b))`, `x.y.list.sort()`, `x.y.map.transformMap(k, v, 1)`, `size(x.y.list) > 5 ? "a" : x.y.list[0]`, `x.y.list.filter(e, e == "x")`,
		`upper(x.y.p)`, `join(",", x.y.list)`, `try(x.y.list[9], x.y.p)`, `try(x.y.p + 1, "a")`, `can(x.y.p + 1)`, `coalesce(x.y.p, "a")`, `lookup(x.y.map, "k", "a")`, `lookup(x.y.keys, "a", "b")`,
		`length(x.y.p)`, `contains(x.y.list, "a")`, `concat(["a"], x.y.list)`, `merge({}, x.y.map, {})`, `sha256(x.y.p)`, `yamlencode(x.y.deep)`, `yamldecode(x.y.json)`,
		`element(x.y.list, 1)`, `tostring(x.y.p)`, `values(x.y.map)`, `keys(x.y.keys)`, `regexall("a", x.y.p)`, `format("%s", x.y.p)`, `one([x.y.p])`, `setunion(x.y.list, ["z"])`,
		// Mistakes of every kind that quotes values.
		`tonumber(x.y.p)`, `parseint(x.y.p, 10)`, `regex("^a$", x.y.p)`, `formatdate("YYYY", x.y.p)`, `timeadd(x.y.p, "1h")`, `yamldecode("[" + x.y.p)`, `format(x.y.p + "%d", "a")`, `csvdecode(x.y.p + "\n\"")`,
		`index(x.y.list, "nope")`, `lookup(x.y.keys, "nope")`, `cidrsubnets(x.y.p, 1)`, `uuidv5(x.y.p, "a")`, `tobool(x.y.p)`, `zipmap([x.y.p], [])`, `element([], size(x.y.p))`, `slice([1], 0, size(x.y.p))`,
		`int(x.y.p)`, `timestamp(x.y.p)`, `duration(x.y.p)`, `x.y.p + 1`, `x.y.map[x.y.p]`, `{"a": 1}[x.y.p]`, `x.y.keys.map(k, x.y.keys[k].z)`, `x.y.keys.nope`, `jsondecode(x.y.json).nope`,
		`jsondecode(x.y.json).map(k, jsondecode(x.y.json)[k].z)`, `jsondecode(x.y.p)`, `base64decode(x.y.p)`, `cidrhost(x.y.p, 1)`, `"a".matches("(" + x.y.p)`, `"%d".format([x.y.p])`,
		`x.y.p.charAt(99)`, `string(x.y.map)`, `x.y.keys.transformMapEntry(k, v, {1: k})`, `[1][size(x.y.p)]`, `double(x.y.p)`, `uint(x.y.p)`, `bool(x.y.p)`, `x.y.p.format([1])`,
	} {
		for _, text := range []string{"${" + text + "}", "text ${" + text + "}"} {
			got, err := evaluate(t, l, text, from)
			switch {
			case err != nil && strings.Contains(strings.ReplaceAll(err.Error(), text, ""), password):
				t.Errorf("%s: the error quotes the secret: %v", text, err)
			case err == nil && !got.ContainsMarked():
				// A filter that drops a sensitive element has read it.
				t.Errorf("%s lost its marks: %#v", text, got)
			}
		}
	}
}

// TestShapesAreShared checks that expressions which differ only in names are compiled once, and
// that the caches are bounded.
func TestShapesAreShared(t *testing.T) {
	l, from := newLanguage(t), Scope{Lookup: lookup(testObjects())}
	for i := range 1000 {
		if _, err := l.Template(fmt.Sprintf(`${net["n-%d"].id + other["x"].id}`, i), "shop"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Template(fmt.Sprintf(`${net["n-%d"].id.a[0]}`, i), "shop"); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.shapes) != 1 || len(l.paths) != 2 {
		t.Errorf("%d shapes and %d paths are cached, want 1 and 2", len(l.shapes), len(l.paths))
	}
	// With more shapes than the cache holds, the oldest are evicted, and all can still be evaluated.
	var all []*Template
	for i := range maxPrograms + 10 {
		text, err := l.Template(fmt.Sprintf(`${net["a"].mtu + %d}`, i), "shop")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if len(l.shapes) != maxPrograms || l.recent.Len() != maxPrograms {
		t.Errorf("%d shapes are cached, want %d", len(l.shapes), maxPrograms)
	}
	// The most recently used one stays.
	oldest := l.recent.Back().Value.(*program).shape
	l.cached(oldest)
	if _, err := l.Template(`${net["a"].mtu - 1}`, "shop"); err != nil || l.cached(oldest) == nil {
		t.Errorf("the most recently used program was evicted (%v)", err)
	}
	for _, i := range []int{0, 1, maxPrograms + 9} {
		if v, err := all[i].Value(from); err != nil || !v.RawEquals(cty.NumberIntVal(int64(1500+i))) {
			t.Errorf("expression %d is %#v, %v", i, v, err)
		}
	}
}

// TestLookupOnlyWhenNeeded checks that each object is looked up once, and not at all in branches
// that are not taken.
func TestLookupOnlyWhenNeeded(t *testing.T) {
	lookups := map[string]int{}
	from := Scope{Lookup: func(ref Ref) (cty.Value, error) {
		lookups[ref.Name]++
		return cty.ObjectVal(map[string]cty.Value{"on": cty.True, "id": cty.StringVal("x")}), nil
	}}
	if _, err := evaluate(t, newLanguage(t), `${net["a"].on ? net["a"].id + net["b"].id + net["b"].id : net["c"].id}`, from); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(lookups) != "map[a:1 b:1]" {
		t.Errorf("looked up %v", lookups)
	}
}

// TestLookupErrorsAreWrapped checks that the error of Lookup can be unwrapped.
func TestLookupErrorsAreWrapped(t *testing.T) {
	errGone := errors.New("gone")
	from := Scope{Lookup: func(Ref) (cty.Value, error) { return cty.NilVal, fmt.Errorf("x: %w", errGone) }}
	for _, text := range []string{`${net["a"].id}`, `${net["a"].id + "x"}`, `a${net["a"].id}`} {
		if _, err := evaluate(t, newLanguage(t), text, from); !errors.Is(err, errGone) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestInterrupted checks that a long evaluation ends when it is interrupted.
func TestInterrupted(t *testing.T) {
	polls := 0
	from := Scope{Interrupted: func() bool { polls++; return polls > 3 }}
	_, err := evaluate(t, newLanguage(t), `${lists.range(10000).map(x, x * 2)}`, from)
	if err == nil || !strings.Contains(err.Error(), "was interrupted") {
		t.Errorf("the error is %v", err)
	}
}

// TestBoundedWork checks that short expressions which need endless time or memory end with an
// error.
func TestBoundedWork(t *testing.T) {
	l := newLanguage(t)
	big := make([]cty.Value, 50_000)
	for i := range big {
		big[i] = cty.StringVal(fmt.Sprintf("element %d", i))
	}
	long := cty.StringVal(strings.Repeat("a", 1<<20))
	from := Scope{Lookup: func(Ref) (cty.Value, error) {
		return cty.ObjectVal(map[string]cty.Value{"big": cty.ListVal(big), "long": long, "set": cty.SetVal(big[:2000]), "sets": cty.ListVal([]cty.Value{cty.SetVal(big[:2000])})}), nil
	}}
	if _, err := evaluate(t, l, strings.Repeat("${x.y.long}", 3), from); err == nil {
		t.Error("text grows without bound")
	}
	double := func(n int, what string) string { return what + strings.Repeat(`.map(x, [x, x])`, n) }
	for _, text := range []string{
		`x.y.big.map(a, x.y.big.map(b, a + b))`, `x.y.big.distinct()`, `sets.equivalent(x.y.big, x.y.big)`, `x.y.big.all(a, a in x.y.big)`,
		`x.y.long.replace("a", x.y.long)`, `x.y.big.join(x.y.long)`, `[x.y.long].map(a, a + a).map(a, a + a).map(a, a + a)`,
		double(40, "[1]") + ` == ` + double(40, "[1]"), `jsonencode(` + double(40, "[1]") + `)`, double(40, "[1]"), double(40, "[1]") + `.flatten(100)`,
		`"%s".format([` + double(40, "[1]") + `])`, double(40, "[1]") + ` in [` + double(40, "[1]") + `]`, `[1]` + strings.Repeat(`.map(a, x.y.big + x.y.big + x.y.big)`, 5),
		`x.y.long.matches("(a?){30}a{30}")`, `lists.range(100000).map(a, x.y.long.charAt(a))`, `lists.range(200000).size()`, `x.y.long.replace("a", "bbb").size()`, `lists.range(100000).map(a, x.y.set)`, `lists.range(100000).all(a, x.y.sets[0].size() > 0)`,
		`format("%1000000d", 1)`, `format("%.99999f", 1.5)`, `indent(1000000, "a\nb\nc\nd")`, `join(x.y.long, x.y.big)`, `replace(x.y.long, "a", "bbb")`, `replace(x.y.long, "/a/", "b")`, `split("", x.y.long)`,
		`setproduct(x.y.big, x.y.big)`, `setproduct([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])`,
		`distinct(x.y.big)`, `matchkeys(x.y.big, x.y.big, x.y.big)`, `regexall("a", x.y.long)`, `parseint(x.y.long, 16)`, `range(1000000)`, `yamldecode(x.y.long)`, `lists.range(100000).map(a, sha256(x.y.long))`,
		`lists.range(100000).map(a, length(x.y.long))`, `lists.range(100000).map(a, sort(x.y.big))`, `flatten(` + double(40, "[1]") + `)`, `yamlencode(` + double(40, "[1]") + `)`, `formatlist("%999d", x.y.big)`,
		`lists.range(100000).map(a, x.y.long.split("").size())`, `x.y.big.map(a, jsonencode(x.y.big))`, `x.y.big.sortBy(e, jsonencode(x.y.big))`,
	} {
		v, err := evaluate(t, l, "${"+text+"}", from)
		if err == nil {
			t.Errorf("%s has a value of type %s", text, v.Type().FriendlyName())
		}
	}
}

// TestConcurrentUse uses one Language and one Template concurrently.
func TestConcurrentUse(t *testing.T) {
	l, from := newLanguage(t), Scope{Lookup: lookup(testObjects())}
	shared, err := l.Template(`${net["a"].zones.map(z, z + net["a"].id)}`, "shop")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				own, err := l.Template(fmt.Sprintf(`${net["a"].mtu + %d}-${net["a"].id}`, (i+j)%10), "shop")
				if err != nil {
					t.Error(err)
					return
				}
				for _, text := range []*Template{own, shared} {
					if _, err := text.Value(from); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
}

// FuzzTemplate checks that no text crashes the parser or an evaluation, and that references survive
// formatting and parsing.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{`a${net["a"].id}b`, `$${`, `${"}"}`, `${net["a"].zones.map(x, x + "1")}`, `${has(k8s["v1"].P.x.y)?1:2}`, `${r'\'+b"x"}`, `${x.y[0]["z"]}`, "${//\n1}"} {
		f.Add(seed)
	}
	l := newLanguage(f)
	from := Scope{Lookup: func(Ref) (cty.Value, error) { return testObjects()[`net["a"]`], nil }}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := l.Template(text, "shop")
		if err != nil {
			if err.Error() == "" {
				t.Error("an error has no text")
			}
			return
		}
		for _, r := range parsed.References() {
			if again, err := l.Reference(r.String(), "other"); err != nil || again.Ref != r.Ref {
				t.Errorf("%q refers to %s, which is parsed as %v (%v)", text, r, again, err)
			}
		}
		if v, err := parsed.Value(from); err == nil && v == cty.NilVal {
			t.Errorf("%q has neither value nor error", text)
		} else if err != nil && strings.Contains(err.Error(), "internal error") {
			t.Errorf("%q: %v", text, err)
		}
	})
}
