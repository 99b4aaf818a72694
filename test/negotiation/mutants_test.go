package negotiation

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/fleet/schema"
	"github.com/atoll-dev/atoll/test/pairs"
)

var mutants = flag.Bool("mutants", false, "remove each rule of fleet/schema in turn, and check that random pairs detect it (takes minutes)")

// A mutant is fleet/schema with one rule removed.
type mutant struct{ rule, file, old, new string }

var allMutants = []mutant{
	{"type", "kinds.go", "case narrower(t, other):\n\t\treturn t, true", "case narrower(t, other):\n\t\treturn other, true"},
	{"nullable", "compare.go", "if !a.Nullable || b.Nullable {", "if true {"},
	{"embedded resource", "compare.go", "if a.XEmbeddedResource == b.XEmbeddedResource {", "if true {"},
	{"embedded resource: kept metadata", "compare.go", "if !preserves(plain) || plain.AdditionalProperties != nil || named {", "if false && named {"},
	{"string format", "kinds.go", "case meeting == \"string\":\n\t\tc.stringFormat(at, result, a, b)", "case meeting == \"string\":"},
	{"string format lets lists through", "kinds.go", "if !lists && !unmet {", "if !unmet || !lists && !unmet {"},
	{"number format", "kinds.go", "if !tighter {", "if true || !tighter {"},
	{"format of int-or-string", "kinds.go", "case meeting == intOrString && fb != \"\" && fa != fb:", "case false:"},
	{"format without a type", "kinds.go", "case loose && (meeting", "case false && loose && (meeting"},
	{"enum", "constraints.go", "if len(p.Enum) > 0 {\n\t\tall", "if false {\n\t\tall"},
	{"enum: disjoint", "constraints.go", "return len(q.Enum) > 0\n\t\t},", "return true\n\t\t},"},
	{"enum: intersection", "constraints.go", "return !contains(p.Enum, v) })\n\t\t\treturn len", "return false })\n\t\t\treturn len"},
	{"enum and null", "constraints.go", "if takesNull(q) {", "if false {"},
	{"minimum, maximum", "constraints.go", "for _, l := range limitsOf(p) {\n\t\tall", "for _, l := range limitsOf(p)[:0] {\n\t\tall"},
	{"minimum, maximum: direction", "constraints.go", "return x < y == l.upper", "return x > y == l.upper"},
	{"exclusive", "constraints.go", "return l.exclusive || !other.exclusive", "return true"},
	{"bounds without fraction", "constraints.go", "return tighter(l.value, other.value) && tighter(math.Trunc(l.value), math.Trunc(other.value))", "return tighter(l.value, other.value)"},
	{"bounds that do not fit", "constraints.go", "if !fits(p, l.value) {\n\t\t\tc.refuse", "if false {\n\t\t\tc.refuse"},
	{"multipleOf", "constraints.go", "if p.MultipleOf != nil {\n\t\tall", "if false {\n\t\tall"},
	{"multipleOf: equal factors", "constraints.go", "r.MultipleOf != nil && *r.MultipleOf == factor", "r.MultipleOf != nil"},
	{"minLength", "constraints.go", "all = append(all, atLeast(\"minLength\"", "_ = append(all, atLeast(\"minLength\""},
	{"maxLength", "constraints.go", "all = append(all, atMost(\"maxLength\"", "_ = append(all, atMost(\"maxLength\""},
	{"pattern", "constraints.go", "if p.Pattern != \"\" {", "if false {"},
	{"minItems", "constraints.go", "all = append(all, atLeast(\"minItems\"", "_ = append(all, atLeast(\"minItems\""},
	{"maxItems", "constraints.go", "all = append(all, atMost(\"maxItems\"", "_ = append(all, atMost(\"maxItems\""},
	{"minProperties", "constraints.go", "all = append(all, atLeast(\"minProperties\"", "_ = append(all, atLeast(\"minProperties\""},
	{"maxProperties", "constraints.go", "all = append(all, atMost(\"maxProperties\"", "_ = append(all, atMost(\"maxProperties\""},
	{"items", "lists.go", "c.items(at, result, a, b)\n", ""},
	{"items: preserving reaches in", "lists.go", "return preserve(items)", "return items"},
	{"list type", "lists.go", "case lb == \"atomic\":", "case true:"},
	{"list map keys", "lists.go", "case la == lb && (la != \"map\" || sameWords(a.XListMapKeys, b.XListMapKeys)):", "case la == lb:"},
	{"list type: what a CRD may contain", "lists.go", "c.checkListType(at, result)\n", ""},
	{"properties: unknown to the other", "objects.go", "if fb.rest == keeps || fb.rest == flattens && flat(fa.props) {", "if true {"},
	{"properties: additionalProperties true", "objects.go", "if fb.rest == keeps || fb.rest == flattens && flat(fa.props) {", "if fb.rest == keeps || fb.rest == flattens {"},
	{"preserve unknown fields", "objects.go", "case ua == prunes, ua == keeps && ub == keeps, ", "case ua == prunes, ua == keeps, "},
	{"additionalProperties", "objects.go", "case ua == describes && ub == describes:", "case ua == describes && ub == describes && false:\n\tcase ua == describes && ub == describes && true:\n\tcase false:"},
	{"additionalProperties: false", "objects.go", "case ua == forbids || ub == forbids:", "case ua == forbids || ub == forbids:\n\tcase false:"},
	{"inside metadata nothing is pruned", "objects.go", "case at.unpruned:", "case false:"},
	{"required", "objects.go", "for _, name := range b.Required {", "for _, name := range b.Required[:0] {"},
	{"required: unknown here", "objects.go", "case !possible(at, result, name):", "case false:"},
	{"default", "defaults.go", "da, db := defaultOf(a), defaultOf(b)\n\tif !c.narrow", "da, db := defaultOf(a), defaultOf(a)\n\tif !c.narrow"},
	{"default: must be valid", "defaults.go", "return (both || !hasRules(met)) && accepts(met, value)", "return true"},
	{"default of items and values", "defaults.go", "case sameValue(da, db) && (", "case da == nil || db == nil || !sameValue(da, db) || ("},
	{"a cluster's own default", "defaults.go", "side); why != \"\" {", "side); false && why != \"\" {"},
	{"own default: counted", "defaults.go", "case anyConjunct(owner, func(q *Props) bool { return q.MaxProperties != nil }):", "case false:"},
	{"own default: in combinations", "defaults.go", "if looksAt(p, name) {\n\t\t\treturn", "if false {\n\t\t\treturn"},
	{"own default: read by rules", "defaults.go", "if readingOf(rule).reads(s.field) {", "if false {"},
	{"allOf", "combinations.go", "parts := slices.Clone(p.AllOf)", "parts := slices.Clone(p.AllOf[:0])"},
	{"anyOf", "combinations.go", "if len(p.AnyOf) > 0 {", "if false {"},
	{"oneOf", "combinations.go", "if len(p.OneOf) > 0 {", "if false {"},
	{"not", "combinations.go", "if p.Not != nil {\n\t\tparts", "if false {\n\t\tparts"},
	{"combinations on dropped fields", "combinations.go", "delete(part.Properties, name)", ""},
	{"rules", "rules.go", "case c.sameMeaning(at, rule, b, held) && !known:", "case false && c.sameMeaning(at, rule, b, held) && !known:"},
	{"bounds beyond integers", "constraints.go", "if math.Abs(l.value) >= math.MaxInt64 || math.Abs(other.value) >= math.MaxInt64 {", "if false {"},
	{"list map keys: all of one", "lists.go", "!c.narrow && len(shared) < len(a.XListMapKeys)", "false"},
	{"properties: dropped fields stay unknown", "objects.go", "if fieldOf(at, result, name).props != nil || !possible(at, result, name) {", "if true {"},
	{"additionalProperties true: not into lists", "objects.go", "case ua == keeps && ub == flattens && allFlat:", "case ua == keeps && ub == flattens:"},
	{"map type: transitions", "objects.go", "if mapTypeOf(result) == \"atomic\" && transitionsBelow(result) {", "if false {"},
	{"default: one of two", "defaults.go", "case db != nil && !sameValue(da, db):", "case false:"},
	{"default: else required", "defaults.go", "if !demanded(result, name) {", "if false {"},
	{"own default: valid there", "defaults.go", "case !valid(own, full):", "case false:"},
	{"own default: rules on defaulted values", "defaults.go", "case hasRules(own) && (at.values || !sameValue(full, value)):", "case false:"},
	{"implied: required", "combinations.go", "if kindsOf(p)&isObject != 0 && !always(at, p, name) {", "if false && !always(at, p, name) {"},
	{"implied: properties", "combinations.go", "if f.props == nil || !implied(location{unpruned: at.unpruned}, f.props, &sub) {", "if false && !implied(location{}, f.props, &sub) {"},
	{"implied: items", "combinations.go", "if items := itemsOf(p); items == nil ||", "if items := itemsOf(p); false && items == nil || false &&"},
	{"implied: formats", "combinations.go", "return impliedFormat(p, q) && impliedChoices", "return impliedChoices"},
	{"implied: choices", "combinations.go", "return impliedFormat(p, q) && impliedChoices(p, q) &&", "return impliedFormat(p, q) &&"},
	{"rules: types", "rules.go", "return baseOf(source) == baseOf(result) && sameType(source, result) &&", "return true &&"},
	{"rules: formats that are types", "rules.go", "return typed(source) == typed(result)", "return true || typed(source) == typed(result)"},
	{"rules: fields that they read", "rules.go", "h := readingOf(rule)\n\tif h.whole &&", "h := readingOf(rule)\n\tif true {\n\t\treturn true\n\t}\n\tif h.whole &&"},
}

// control is an unchanged copy. If it fails, the other results have no meaning.
const control = "control"

// A comparer is the Compare of one mutant. It returns false for a refusal.
type comparer func(a, b *props, narrow bool) (*props, bool)

// TestMutantsMatchSource checks that each mutant's code occurs once in fleet/schema. Otherwise a change
// of fleet/schema would disable mutants without anyone noticing before the next run with -mutants.
func TestMutantsMatchSource(t *testing.T) {
	for _, m := range allMutants {
		source, err := os.ReadFile(filepath.Join("../../fleet/schema", m.file))
		if err != nil {
			t.Errorf("mutant %q: %v", m.rule, err)
		} else if n := strings.Count(string(source), m.old); n != 1 {
			t.Errorf("mutant %q: %s contains %d times %q, want once", m.rule, m.file, n, m.old)
		}
	}
}

// TestMutantsAreDetected compiles a copy of fleet/schema for each mutant into one test program, which
// runs TestEachMutant.
func TestMutantsAreDetected(t *testing.T) {
	if !*mutants {
		t.Skip("takes minutes; run with -mutants")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay := overlay{t, t.TempDir(), map[string]string{}}
	var table, imports strings.Builder
	for i, m := range append([]mutant{{rule: control}}, allMutants...) {
		overlay.copy(root, i, m)
		fmt.Fprintf(&imports, "\tm%d \"github.com/atoll-dev/atoll/test/negotiation/mutants/m%d\"\n", i, i)
		fmt.Fprintf(&table, "\t\t%q: func(a, b *props, narrow bool) (*props, bool) { r, why := m%d.Compare(a, b, narrow); return r, len(why) == 0 },\n", m.rule, i)
	}
	overlay.add(filepath.Join(root, "test/negotiation/mutated_test.go"),
		"package negotiation\n\nimport (\n"+imports.String()+")\n\nfunc mutated() map[string]comparer {\n\treturn map[string]comparer{\n"+table.String()+"\t}\n}\n")
	command := exec.Command("go", "test", "-overlay", overlay.write(), "-run", "TestEachMutant", "-v", "-vet=off", "-timeout", "60m", ".", "-seed", fmt.Sprint(*seed), "-runs", fmt.Sprint(*count))
	raw, err := command.CombinedOutput()
	t.Logf("%s", raw)
	if err != nil {
		t.Error(err)
	}
}

// An overlay is a set of files that only the compiler sees (go test -overlay).
type overlay struct {
	t     *testing.T
	dir   string
	files map[string]string
}

func (o overlay) add(path, content string) {
	at := filepath.Join(o.dir, fmt.Sprintf("%d.go", len(o.files)))
	if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
		o.t.Fatal(err)
	}
	o.files[path] = at
}

// resultCheck is the loop in Compare that checks each result against its sources. It is removed from
// the mutants: it turns a result that is too wide into a mere refusal, so that only two wrong rules
// together could be detected.
const resultCheck = "for _, source := range []*Props{existing, next} {"

// copy adds fleet/schema, with the change of a mutant, as a package.
func (o overlay) copy(root string, number int, m mutant) {
	files, err := filepath.Glob(filepath.Join(root, "fleet/schema/*.go"))
	if err != nil {
		o.t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			o.t.Fatal(err)
		}
		content := string(source)
		if m.file == filepath.Base(file) {
			if n := strings.Count(content, m.old); n != 1 {
				o.t.Errorf("mutant %q: %s contains %d times %q, want once", m.rule, m.file, n, m.old)
			}
			content = strings.Replace(content, m.old, m.new, 1)
		}
		if filepath.Base(file) == "compare.go" {
			if !strings.Contains(content, resultCheck) {
				o.t.Errorf("compare.go does not contain the check of results: %q", resultCheck)
			}
			content = strings.Replace(content, resultCheck, "for _, source := range []*Props{} {", 1)
		}
		o.add(filepath.Join(root, "test/negotiation/mutants", fmt.Sprintf("m%d", number), filepath.Base(file)), content)
	}
}

func (o overlay) write() string {
	table, err := json.Marshal(map[string]any{"Replace": o.files})
	if err != nil {
		o.t.Fatal(err)
	}
	path := filepath.Join(o.dir, "overlay.json")
	if err := os.WriteFile(path, table, 0o600); err != nil {
		o.t.Fatal(err)
	}
	return path
}

// TestEachMutant looks for a pair with which a mutant fails and the unchanged code does not. Without
// an overlay there are no mutants, and nothing to do.
func TestEachMutant(t *testing.T) {
	undetected := mutated()
	for pair := 0; pair < *count && len(undetected) > 0; pair++ {
		a, b := pairs.New(*seed, uint64(pair)).Pair()
		serverA, errA := newAPIServer(a)
		serverB, errB := newAPIServer(b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		for rule, compare := range undetected {
			r := pairs.New(*seed, uint64(pair))
			r.Pair() // the same pair, so that its objects belong to it
			p := &pairTest{&tally{}, r, pair, a, b, serverA, serverB}
			if wrong := p.mutant(compare); wrong != nil {
				delete(undetected, rule)
				if rule == control {
					t.Fatalf("without the check of results: %v", wrong)
				}
				first, _, _ := strings.Cut(wrong.Error(), "\n")
				t.Logf("mutant %q: %.300s", rule, first)
			}
		}
	}
	delete(undetected, control)
	for rule := range undetected {
		t.Errorf("no pair detects that rule %q is missing", rule)
	}
}

// mutant returns how a mutant fails with the pair, or nil if all rules together fail too.
func (p *pairTest) mutant(compare comparer) error {
	if _, yes := compare(p.a, p.b, false); yes {
		if _, refusals := schema.Compare(p.a, p.b, false); len(refusals) > 0 {
			if _, err := p.try("contained", p.a, p.serverA); err != nil {
				return err
			}
		}
	}
	result, yes := compare(p.a, p.b, true)
	whole, _ := schema.Compare(p.a, p.b, true)
	if !yes || whole != nil && text(whole) == text(result) {
		return nil
	}
	server, err := newAPIServer(result)
	if err == nil {
		err = pairs.Validate(result)
	}
	if err == nil {
		_, err = p.try("intersection", result, server)
	}
	return err
}
