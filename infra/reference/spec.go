package reference

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/zclconf/go-cty/cty"
)

// Field is a string of a spec that has expressions in it.
type Field struct {
	// Path is where it is, as kubectl shows it: spec.rules[2].port.
	Path string
	Text *Text
}

// Value is what the string says; the error names the field.
func (f Field) Value(from Values) (cty.Value, error) {
	v, err := f.Text.value(from)
	if err != nil {
		return cty.NilVal, err.in(f.Path)
	}
	return v, nil
}

// Spec is what an object's spec refers to.
type Spec struct {
	// Fields are the strings with expressions, in the order of their paths.
	Fields []Field
	// DependsOn is what the spec's own depends_on lists, and ReplaceTriggeredBy its
	// lifecycle's.
	DependsOn          []Reference
	ReplaceTriggeredBy []Reference
}

// References are all uses of other objects: those in arguments, and what is listed.
func (s *Spec) References() []Reference {
	var out []Reference
	for _, f := range s.Fields {
		out = append(out, f.Text.References()...)
	}
	return append(append(out, s.DependsOn...), s.ReplaceTriggeredBy...)
}

// reader goes through one spec.
type reader struct {
	language  *Language
	namespace string
	out       Spec
	count     int
	errs      []error
}

// Spec reads the spec of an object in the namespace, as JSON has it. It goes on after a mistake:
// the error joins an *Error for each.
func (l *Language) Spec(spec map[string]any, namespace string) (*Spec, error) {
	r := &reader{language: l, namespace: namespace}
	for _, key := range slices.Sorted(maps.Keys(spec)) {
		path := at{field: key, above: &at{field: "spec"}}
		switch key {
		case "depends_on":
			r.out.DependsOn = r.list(spec[key], &path)
		case "lifecycle":
			r.lifecycle(spec[key], &path)
		case "provider", "connection":
			r.refuse(spec[key], &path)
		default:
			r.key(key, &path)
			r.read(spec[key], &path, 1)
		}
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.out, nil
}

// lifecycle has references, and words that are compared as they are.
func (r *reader) lifecycle(value any, path *at) {
	fields, ok := value.(map[string]any)
	if !ok {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		below := at{field: key, above: path}
		if key == "replace_triggered_by" {
			r.out.ReplaceTriggeredBy = r.list(fields[key], &below)
			continue
		}
		r.refuse(fields[key], &below)
	}
}

// refuse complains of expressions where there can be none.
func (r *reader) refuse(value any, path *at) {
	switch v := value.(type) {
	case string:
		if Has(v) {
			r.fail(path, &Error{Position: -1, Problem: "must not be an expression: it is needed before anything has a value"})
		}
	case []any:
		for i, item := range v {
			r.refuse(item, &at{index: i, above: path})
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			r.refuse(v[key], &at{field: key, above: path})
		}
	}
}

// list reads references that stand without ${ and }. What is no list, or holds no
// strings, is for the schema to refuse.
func (r *reader) list(value any, path *at) []Reference {
	items, _ := value.([]any)
	var out []Reference
	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			continue
		}
		below := at{index: i, above: path}
		if !r.counted(&below) {
			return out
		}
		ref, err := r.language.reference(text, r.namespace)
		if err != nil {
			r.fail(&below, err)
			continue
		}
		out = append(out, ref)
	}
	return out
}

// Reference reads a reference that stands alone, as in depends_on: TYPE["name"], or
// TYPE["name"].attribute. The error is an *Error.
func (l *Language) Reference(text, namespace string) (Reference, error) {
	ref, err := l.reference(text, namespace)
	if err != nil {
		return Reference{}, err
	}
	return ref, nil
}

func (l *Language) reference(text, namespace string) (Reference, *Error) {
	const remedy = `: write TYPE["name"], without ${ and }`
	if len(text) > maxExpression {
		return Reference{}, &Error{Position: -1, Problem: "is too long to be a reference" + remedy}
	}
	quoted := strconv.Quote(text[:min(len(text), shown)])
	pieces, closed, err := tokens(text + "}")
	if err == nil && closed != len(text) {
		err = &Error{Problem: "} closes what was not opened"}
	}
	var found parsed
	if err == nil {
		found, _, err = find(text, pieces, namespace, l.share)
	}
	switch {
	case err != nil:
		return Reference{}, &Error{Position: -1, Problem: quoted + " is not a reference: " + err.Problem}
	case !found.plain:
		return Reference{}, &Error{Position: -1, Problem: quoted + " is not a reference" + remedy}
	}
	return found.uses[0], nil
}

// read goes through any value.
func (r *reader) read(value any, path *at, depth int) {
	if depth > maxDepth {
		r.fail(path, &Error{Position: -1, Problem: fmt.Sprintf("is nested more than %d deep", maxDepth)})
		return
	}
	switch v := value.(type) {
	case string:
		r.text(v, path)
	case []any:
		for i, item := range v {
			r.read(item, &at{index: i, above: path}, depth+1)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below := at{field: key, above: path}
			r.key(key, &below)
			r.read(v[key], &below, depth+1)
		}
	}
}

func (r *reader) text(text string, path *at) {
	if !Has(text) || !r.counted(path) {
		return
	}
	t, err := r.language.text(text, r.namespace)
	if err != nil {
		r.fail(path, err)
		return
	}
	// One that only escapes is a field, too: who converts it has to ask for its value.
	r.out.Fields = append(r.out.Fields, Field{Path: path.String(), Text: t})
}

// counted holds an object to a number of expressions.
func (r *reader) counted(path *at) bool {
	if r.count++; r.count == maxExpressions+1 {
		r.fail(path, &Error{Position: -1, Problem: fmt.Sprintf("there are more than %d expressions in one object: divide it", maxExpressions)})
	}
	return r.count <= maxExpressions
}

// key refuses an expression as a key: it would be taken as it stands, and nobody would notice.
func (r *reader) key(key string, path *at) {
	if Has(key) {
		r.fail(path, &Error{Position: -1, Problem: `a key is not an expression: write all of the map as one, as in ${{TYPE["name"].id: "value"}}`})
	}
}

func (r *reader) fail(path *at, err *Error) { r.errs = append(r.errs, err.in(path.String())) }

// at is a place in a spec. It is only written out for what has an expression.
type at struct {
	field string // or an index of a list
	index int
	above *at
}

// String is the place as kubectl shows it.
func (a *at) String() string {
	switch {
	case a.above == nil:
		return a.field
	case a.field == "":
		return a.above.String() + "[" + strconv.Itoa(a.index) + "]"
	case !isWord(a.field):
		return a.above.String() + "[" + a.field + "]"
	}
	return a.above.String() + "." + a.field
}

func isWord(s string) bool {
	for i := range len(s) {
		if !isLetter(s[i]) && !isDigit(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}
