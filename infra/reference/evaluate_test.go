package reference

import (
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"
)

// TestPathAgrees: a reference that stands alone, which is followed without CEL, has the same value, marks and errors as the
// same within brackets, which is compiled.
func TestPathAgrees(t *testing.T) {
	l, random := language(t), rand.New(rand.NewSource(1))
	values := world()
	from := Values{Lookup: lookup(values)}
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
			t.Fatalf("%s: by its attribute %s (%v), of the whole %s (%v)", text, shown2(v), err, shown2(plain), plainErr)
		}
		// dyn(…) keeps CEL in, and the value as it is.
		compiled, compiledErr := evaluate(t, l, "${dyn("+text+")}", from)
		if plainErr != nil && compiledErr == nil && !compiled.IsKnown() {
			continue // the type of what is unknown tells more
		}
		if (plainErr == nil) != (compiledErr == nil) {
			t.Fatalf("%s: followed %s (%v), compiled %s (%v)", text, shown2(plain), plainErr, shown2(compiled), compiledErr)
		}
		if plainErr != nil {
			continue
		}
		good++
		if !agree(plain, compiled) {
			t.Fatalf("%s: followed %s, compiled %s", text, shown2(plain), shown2(compiled))
		}
	}
	if good < 400 || alone < 400 {
		t.Errorf("only %d paths had a value, and %d were begun at an attribute: the test looks at too little", good, alone)
	}
}

func evaluate(t *testing.T, l *Language, text string, from Values) (cty.Value, error) {
	t.Helper()
	parsed, err := l.Text(text, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Value(from)
}

func shown2(v cty.Value) string {
	if v == cty.NilVal {
		return "nothing"
	}
	return shownValue(v)
}

// agree compares as far as CEL can know: it has no types of what is null or unknown, and takes a set with an
// unknown part for unknown. What is marked in one is in the other.
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

// TestMarksNeverLost: whatever is calculated from something sensitive is sensitive, and no error quotes it.
func TestMarksNeverLost(t *testing.T) {
	l := language(t)
	const password = "S3CR3T"
	v := cty.StringVal(password).Mark(secret{})
	from := Values{Lookup: func(Ref) (cty.Value, error) {
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
		// Mistakes, of every sort that quotes.
		`int(x.y.p)`, `timestamp(x.y.p)`, `duration(x.y.p)`, `x.y.p + 1`, `x.y.map[x.y.p]`, `{"a": 1}[x.y.p]`, `x.y.keys.map(k, x.y.keys[k].z)`, `x.y.keys.nope`, `jsondecode(x.y.json).nope`,
		`jsondecode(x.y.json).map(k, jsondecode(x.y.json)[k].z)`, `jsondecode(x.y.p)`, `base64decode(x.y.p)`, `cidrhost(x.y.p, 1)`, `"a".matches("(" + x.y.p)`, `"%d".format([x.y.p])`,
		`x.y.p.charAt(99)`, `string(x.y.map)`, `x.y.keys.transformMapEntry(k, v, {1: k})`, `[1][size(x.y.p)]`, `double(x.y.p)`, `uint(x.y.p)`, `bool(x.y.p)`, `x.y.p.format([1])`,
	} {
		for _, text := range []string{"${" + text + "}", "text ${" + text + "}"} {
			got, err := evaluate(t, l, text, from)
			switch {
			case err != nil && strings.Contains(strings.ReplaceAll(err.Error(), text, ""), password):
				t.Errorf("%s: the error quotes it: %v", text, err)
			case err == nil && !got.ContainsMarked():
				// A filter that drops what is sensitive has looked at it.
				t.Errorf("%s lost its marks: %#v", text, got)
			}
		}
	}
}

// TestShapesAreShared: what differs in names only is compiled once, and what is kept is bounded.
func TestShapesAreShared(t *testing.T) {
	l, from := language(t), Values{Lookup: lookup(world())}
	for i := range 1000 {
		if _, err := l.Text(fmt.Sprintf(`${net["n-%d"].id + other["x"].id}`, i), "shop"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Text(fmt.Sprintf(`${net["n-%d"].id.a[0]}`, i), "shop"); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.shapes) != 1 || len(l.paths) != 2 {
		t.Errorf("%d shapes and %d paths are kept, want 1 and 2", len(l.shapes), len(l.paths))
	}
	// More shapes than are kept: the oldest go, and all still have their values.
	var all []*Text
	for i := range keptPrograms + 10 {
		text, err := l.Text(fmt.Sprintf(`${net["a"].mtu + %d}`, i), "shop")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if len(l.shapes) != keptPrograms || l.recent.Len() != keptPrograms {
		t.Errorf("%d shapes are kept, want %d", len(l.shapes), keptPrograms)
	}
	// The one that was used last stays.
	oldest := l.recent.Back().Value.(*program).shape
	l.kept(oldest)
	if _, err := l.Text(`${net["a"].mtu - 1}`, "shop"); err != nil || l.kept(oldest) == nil {
		t.Errorf("what was just used is not kept (%v)", err)
	}
	for _, i := range []int{0, 1, keptPrograms + 9} {
		if v, err := all[i].Value(from); err != nil || !v.RawEquals(cty.NumberIntVal(int64(1500+i))) {
			t.Errorf("expression %d is %#v, %v", i, v, err)
		}
	}
}

// TestOnlyWhatIsNeeded: objects are asked for once, and not at all in what is not reached.
func TestOnlyWhatIsNeeded(t *testing.T) {
	asked := map[string]int{}
	from := Values{Lookup: func(ref Ref) (cty.Value, error) {
		asked[ref.Name]++
		return cty.ObjectVal(map[string]cty.Value{"on": cty.True, "id": cty.StringVal("x")}), nil
	}}
	if _, err := evaluate(t, language(t), `${net["a"].on ? net["a"].id + net["b"].id + net["b"].id : net["c"].id}`, from); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(asked) != "map[a:1 b:1]" {
		t.Errorf("asked for %v", asked)
	}
}

// TestCauses: what Lookup says can be told apart.
func TestCauses(t *testing.T) {
	gone := errors.New("gone")
	from := Values{Lookup: func(Ref) (cty.Value, error) { return cty.NilVal, fmt.Errorf("x: %w", gone) }}
	for _, text := range []string{`${net["a"].id}`, `${net["a"].id + "x"}`, `a${net["a"].id}`} {
		if _, err := evaluate(t, language(t), text, from); !errors.Is(err, gone) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestInterrupted: a long calculation ends when it is told to.
func TestInterrupted(t *testing.T) {
	asked := 0
	from := Values{Interrupted: func() bool { asked++; return asked > 3 }}
	_, err := evaluate(t, language(t), `${lists.range(10000).map(x, x * 2)}`, from)
	if err == nil || !strings.Contains(err.Error(), "was interrupted") {
		t.Errorf("the error is %v", err)
	}
}

// TestBoundedWork: what would take for ever or all memory ends with an error. The texts are all short.
func TestBoundedWork(t *testing.T) {
	l := language(t)
	big := make([]cty.Value, 50_000)
	for i := range big {
		big[i] = cty.StringVal(fmt.Sprintf("element %d", i))
	}
	long := cty.StringVal(strings.Repeat("a", 1<<20))
	from := Values{Lookup: func(Ref) (cty.Value, error) {
		return cty.ObjectVal(map[string]cty.Value{"big": cty.ListVal(big), "long": long, "set": cty.SetVal(big[:2000]), "sets": cty.ListVal([]cty.Value{cty.SetVal(big[:2000])})}), nil
	}}
	if _, err := evaluate(t, l, strings.Repeat("${x.y.long}", 3), from); err == nil {
		t.Error("text grows without an end")
	}
	double := func(n int, what string) string { return what + strings.Repeat(`.map(x, [x, x])`, n) }
	for _, text := range []string{
		`x.y.big.map(a, x.y.big.map(b, a + b))`, `x.y.big.distinct()`, `sets.equivalent(x.y.big, x.y.big)`, `x.y.big.all(a, a in x.y.big)`,
		`x.y.long.replace("a", x.y.long)`, `x.y.big.join(x.y.long)`, `[x.y.long].map(a, a + a).map(a, a + a).map(a, a + a)`,
		double(40, "[1]") + ` == ` + double(40, "[1]"), `jsonencode(` + double(40, "[1]") + `)`, double(40, "[1]"), double(40, "[1]") + `.flatten(100)`,
		`"%s".format([` + double(40, "[1]") + `])`, double(40, "[1]") + ` in [` + double(40, "[1]") + `]`, `[1]` + strings.Repeat(`.map(a, x.y.big + x.y.big + x.y.big)`, 5),
		`x.y.long.matches("(a?){30}a{30}")`, `lists.range(100000).map(a, x.y.long.charAt(a))`, `lists.range(200000).size()`, `x.y.long.replace("a", "bbb").size()`, `lists.range(100000).map(a, x.y.set)`, `lists.range(100000).all(a, x.y.sets[0].size() > 0)`,
		`lists.range(100000).map(a, x.y.long.split("").size())`, `x.y.big.map(a, jsonencode(x.y.big))`, `x.y.big.sortBy(e, jsonencode(x.y.big))`,
	} {
		v, err := evaluate(t, l, "${"+text+"}", from)
		if err == nil {
			t.Errorf("%s has a value of type %s", text, v.Type().FriendlyName())
		}
	}
}

// TestConcurrently: one Language and one Text serve many.
func TestConcurrently(t *testing.T) {
	l, from := language(t), Values{Lookup: lookup(world())}
	shared, err := l.Text(`${net["a"].zones.map(z, z + net["a"].id)}`, "shop")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				own, err := l.Text(fmt.Sprintf(`${net["a"].mtu + %d}-${net["a"].id}`, (i+j)%10), "shop")
				if err != nil {
					t.Error(err)
					return
				}
				for _, text := range []*Text{own, shared} {
					if _, err := text.Value(from); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
}

// FuzzText: no text makes the reader or an evaluation fall over, and what is read has references that can be
// written and read again.
func FuzzText(f *testing.F) {
	for _, seed := range []string{`a${net["a"].id}b`, `$${`, `${"}"}`, `${net["a"].zones.map(x, x + "1")}`, `${has(k8s["v1"].P.x.y)?1:2}`, `${r'\'+b"x"}`, `${x.y[0]["z"]}`, "${//\n1}"} {
		f.Add(seed)
	}
	l := language(f)
	from := Values{Lookup: func(Ref) (cty.Value, error) { return world()[`net["a"]`], nil }}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := l.Text(text, "shop")
		if err != nil {
			if err.Error() == "" {
				t.Error("an error says nothing")
			}
			return
		}
		for _, r := range parsed.References() {
			if again, err := l.Reference(r.String(), "other"); err != nil || again.Ref != r.Ref {
				t.Errorf("%q refers to %s, which is read as %v (%v)", text, r, again, err)
			}
		}
		if v, err := parsed.Value(from); err == nil && v == cty.NilVal {
			t.Errorf("%q has neither value nor error", text)
		} else if err != nil && strings.Contains(err.Error(), "internal error") {
			t.Errorf("%q: %v", text, err)
		}
	})
}
