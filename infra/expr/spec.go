package expr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/zclconf/go-cty/cty"
)

// Field is a string of a spec that contains expressions.
type Field struct {
	// Path is the field's path as kubectl shows it: spec.rules[2].port.
	Path     string
	Template *Template
}

// Value evaluates the string. An error names the field.
func (f Field) Value(from Scope) (cty.Value, error) {
	v, err := f.Template.value(from)
	if err != nil {
		return cty.NilVal, err.in(f.Path)
	}
	return v, nil
}

// Spec holds the references of an object's spec.
type Spec struct {
	// Fields are the strings with expressions, sorted by path.
	Fields []Field
	// DependsOn are the references in depends_on, and ReplaceTriggeredBy those in lifecycle.
	DependsOn          []Reference
	ReplaceTriggeredBy []Reference
}

// References returns all references: those in arguments, in depends_on and in replace_triggered_by.
func (s *Spec) References() []Reference {
	var out []Reference
	for _, f := range s.Fields {
		out = append(out, f.Template.References()...)
	}
	return append(append(out, s.DependsOn...), s.ReplaceTriggeredBy...)
}

// specReader walks one spec.
type specReader struct {
	language  *Language
	namespace string
	out       Spec
	count     int
	errs      []error
}

// Spec parses the spec of an object in the namespace, as decoded JSON. It continues after a
// mistake: the error joins an *Error for each.
func (l *Language) Spec(spec map[string]any, namespace string) (*Spec, error) {
	r := &specReader{language: l, namespace: namespace}
	for _, key := range slices.Sorted(maps.Keys(spec)) {
		path := fieldPath{field: key, parent: &fieldPath{field: "spec"}}
		switch key {
		case "depends_on":
			r.out.DependsOn = r.references(spec[key], &path)
		case "lifecycle":
			r.lifecycle(spec[key], &path)
		case "provider", "connection", "movedFrom":
			r.rejectExpressions(spec[key], &path)
		default:
			r.checkKey(key, &path)
			r.read(spec[key], &path, 1)
		}
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.out, nil
}

// lifecycle contains references and settings without expressions.
func (r *specReader) lifecycle(value any, path *fieldPath) {
	fields, ok := value.(map[string]any)
	if !ok {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		below := fieldPath{field: key, parent: path}
		if key == "replace_triggered_by" {
			r.out.ReplaceTriggeredBy = r.references(fields[key], &below)
			continue
		}
		r.rejectExpressions(fields[key], &below)
	}
}

// rejectExpressions reports expressions in fields that do not support them.
func (r *specReader) rejectExpressions(value any, path *fieldPath) {
	switch v := value.(type) {
	case string:
		if IsTemplate(v) {
			r.fail(path, &Error{Position: -1, Problem: "must not be an expression: its value is needed before references are resolved"})
		}
	case []any:
		for i, item := range v {
			r.rejectExpressions(item, &fieldPath{index: i, parent: path})
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			r.rejectExpressions(v[key], &fieldPath{field: key, parent: path})
		}
	}
}

// references parses references without ${ and }. The schema rejects values that are not a list of
// strings.
func (r *specReader) references(value any, path *fieldPath) []Reference {
	items, _ := value.([]any)
	var out []Reference
	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			continue
		}
		below := fieldPath{index: i, parent: path}
		if !r.countExpression(&below) {
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

// Reference parses a reference without ${ and }, as in depends_on: TYPE["name"] or
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
	quoted := strconv.Quote(text[:min(len(text), maxShown)])
	pieces, closed, err := tokens(text + "}")
	if err == nil && closed != len(text) {
		err = &Error{Problem: "unmatched }"}
	}
	var found parsedExpression
	if err == nil {
		found, _, err = find(text, pieces, namespace, l.intern)
	}
	switch {
	case err != nil:
		return Reference{}, &Error{Position: -1, Problem: quoted + " is not a reference: " + err.Problem}
	case !found.traversal:
		return Reference{}, &Error{Position: -1, Problem: quoted + " is not a reference" + remedy}
	}
	return found.references[0], nil
}

// read walks any value.
func (r *specReader) read(value any, path *fieldPath, depth int) {
	if depth > maxDepth {
		r.fail(path, &Error{Position: -1, Problem: fmt.Sprintf("is nested more than %d deep", maxDepth)})
		return
	}
	switch v := value.(type) {
	case string:
		r.template(v, path)
	case []any:
		for i, item := range v {
			r.read(item, &fieldPath{index: i, parent: path}, depth+1)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below := fieldPath{field: key, parent: path}
			r.checkKey(key, &below)
			r.read(v[key], &below, depth+1)
		}
	}
}

func (r *specReader) template(text string, path *fieldPath) {
	if !IsTemplate(text) || !r.countExpression(path) {
		return
	}
	t, err := r.language.parseTemplate(text, r.namespace)
	if err != nil {
		r.fail(path, err)
		return
	}
	// A string that only has escapes is a field, too: Value removes the escapes.
	r.out.Fields = append(r.out.Fields, Field{Path: path.String(), Template: t})
}

// countExpression enforces the maximum number of expressions in one object.
func (r *specReader) countExpression(path *fieldPath) bool {
	if r.count++; r.count == maxExpressions+1 {
		r.fail(path, &Error{Position: -1, Problem: fmt.Sprintf("the object has more than %d expressions: split it", maxExpressions)})
	}
	return r.count <= maxExpressions
}

// checkKey rejects an expression as a map key. It would silently be taken literally.
func (r *specReader) checkKey(key string, path *fieldPath) {
	if IsTemplate(key) {
		r.fail(path, &Error{Position: -1, Problem: `a map key must not be an expression: write the whole map as one, as in ${{TYPE["name"].id: "value"}}`})
	}
}

func (r *specReader) fail(path *fieldPath, err *Error) {
	r.errs = append(r.errs, err.in(path.String()))
}

// fieldPath is a place in a spec. It is formatted only for strings with expressions.
type fieldPath struct {
	field  string // empty for an element of a list
	index  int
	parent *fieldPath
}

// String returns the path as kubectl shows it.
func (a *fieldPath) String() string {
	switch {
	case a.parent == nil:
		return a.field
	case a.field == "":
		return a.parent.String() + "[" + strconv.Itoa(a.index) + "]"
	case !isWord(a.field):
		return a.parent.String() + "[" + a.field + "]"
	}
	return a.parent.String() + "." + a.field
}

func isWord(s string) bool {
	for i := range len(s) {
		if !isLetter(s[i]) && !isDigit(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}
