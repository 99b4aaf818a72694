package decide

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// leaks returns the paths of values that contain a secret although neither the schema nor sensitive
// declares them so: a provider can compute a connection string from a password. Secrets are the values
// at sensitive, those that the schema declares sensitive, and those of the configuration. A secret
// that the configuration also has in clear is none.
func (d *decider) leaks(sensitive []cty.Path, v cty.Value) []cty.Path {
	block := &d.Schema.Block
	if v == cty.NilVal || v.IsNull() || len(sensitive)+len(d.secret) == 0 && !schema.HasSensitive(block) {
		return nil
	}
	f := &leakFinder{block: block, sensitive: sensitive, secrets: map[string]bool{}}
	f.collect(v, sensitive)
	f.collect(d.config, d.secret)
	f.dropPublic(d.config, d.secret)
	if len(f.secrets) == 0 {
		return nil
	}
	f.find(v)
	slices.SortFunc(f.found, func(a, b cty.Path) int { return strings.Compare(providerapi.PathText(a), providerapi.PathText(b)) })
	return f.found
}

// leakFinder finds secrets in a value.
type leakFinder struct {
	block     *providerapi.Block
	sensitive []cty.Path
	secrets   map[string]bool
	forms     []string
	found     []cty.Path
}

// isSecret reports whether a text is declared to be secret.
func (f *leakFinder) isSecret(at textPlace, sensitive []cty.Path) bool {
	for _, p := range sensitive {
		if below(at.path, p) {
			return true
		}
	}
	return sensitiveBySchema(f.block, at.schemaPath)
}

// collect adds the secrets of a value that are long enough to be recognised.
func (f *leakFinder) collect(v cty.Value, sensitive []cty.Path) {
	walkTexts(v, func(at textPlace, text string) {
		if isDistinctive(text) && f.isSecret(at, sensitive) {
			f.secrets[text] = true
		}
	})
}

// dropPublic removes the secrets that the configuration has in clear as well, and completes the forms
// to look for.
func (f *leakFinder) dropPublic(config cty.Value, secret []cty.Path) {
	walkTexts(config, func(at textPlace, text string) {
		for s := range f.secrets {
			if strings.Contains(text, s) && !f.isSecret(at, secret) {
				delete(f.secrets, s)
			}
		}
	})
	for s := range f.secrets {
		for _, form := range schema.Encodings(s) {
			if isDistinctive(form) {
				f.forms = append(f.forms, form)
			}
		}
	}
}

func (f *leakFinder) find(v cty.Value) {
	walkTexts(v, func(at textPlace, text string) {
		if f.isSecret(at, f.sensitive) || hasPath(f.found, at.path) {
			return
		}
		for _, form := range f.forms {
			if strings.Contains(text, form) {
				f.found = append(f.found, at.path.Copy())
				return
			}
		}
	})
}

// isDistinctive reports whether a text is unlikely to be part of another one by accident: it has eight
// characters, or six of different kinds.
func isDistinctive(text string) bool {
	length := utf8.RuneCountInString(text)
	if length >= 8 || length < 6 {
		return length >= 8
	}
	letters := strings.IndexFunc(text, unicode.IsLetter) >= 0
	return letters && strings.IndexFunc(text, func(c rune) bool { return !unicode.IsLetter(c) }) >= 0
}

// textPlace is the place of a text in a value. Elements of a set have no names, so that path ends at the
// set, and schemaPath goes on.
type textPlace struct {
	path, schemaPath cty.Path
	inSet            bool
}

func (p textPlace) step(next cty.PathStep, set bool) textPlace {
	out := textPlace{p.path, step(p.schemaPath, next), p.inSet || set}
	if !out.inSet {
		out.path = step(p.path, next)
	}
	return out
}

// walkTexts visits the strings of a value, in a fixed order.
func walkTexts(v cty.Value, visit func(at textPlace, text string)) {
	if v != cty.NilVal {
		walkTextsAt(textPlace{}, v, visit)
	}
}

func walkTextsAt(at textPlace, v cty.Value, visit func(at textPlace, text string)) {
	v, _ = v.Unmark()
	if v.IsNull() || !v.IsKnown() {
		return
	}
	ty := v.Type()
	switch {
	case ty == cty.String:
		visit(at, v.AsString())
	case ty.IsObjectType():
		for _, name := range slices.Sorted(maps.Keys(ty.AttributeTypes())) {
			walkTextsAt(at.step(cty.GetAttrStep{Name: name}, false), v.GetAttr(name), visit)
		}
	case v.CanIterateElements():
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			walkTextsAt(at.step(cty.IndexStep{Key: key}, ty.IsSetType()), element, visit)
		}
	}
}
