package reference

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// What is read in one expression, and how large it may be.
const (
	maxExpression  = 4096 // bytes
	maxNesting     = 40   // brackets within brackets
	maxReferences  = 64   // different objects in one expression
	maxExpressions = 1000 // in one object
	maxDepth       = 64   // lists and maps within each other, in one object
)

// parameter is how a reference is called in what is given to CEL. Nobody may use words
// that begin like it.
const parameter = "__ref"

// parsed is an expression, whose references are known. Its shape is the text with
// parameters in the place of references: many expressions have one shape.
type parsed struct {
	uses  []Reference // each once, in the order of the text
	heads []Ref       // the objects, each once: parameter i is heads[i]
	shape string
	// plain tells that there is nothing but one reference: its path is its value's.
	plain bool
}

// place is where a reference stood in the text, and its parameter in the shape.
type place struct{ text, textEnd, shape, shapeEnd int }

// finder goes through the pieces of one expression.
type finder struct {
	text      string // from the expression's start
	pieces    []token
	namespace string
	path      func(cty.Path, string) cty.Path
	out       parsed
	shape     strings.Builder
	copied    int // how much of the text is in the shape
	places    []place
	locals    []local
}

// local is a variable of a macro, and the token at which it ends to be one.
type local struct {
	name  string
	until int
}

// find finds the references of an expression, whose pieces have positions in text.
// share gives a path that is kept once for all expressions. The places are for errors in the
// shape.
func find(text string, pieces []token, namespace string, share func(cty.Path, string) cty.Path) (parsed, []place, *Error) {
	f := &finder{text: text, pieces: pieces, namespace: namespace, path: share}
	for at := 0; at < len(pieces); {
		next, err := f.step(at)
		if err != nil {
			return parsed{}, nil, err
		}
		at = next
	}
	if f.out.plain {
		return f.out, nil, nil
	}
	f.shape.WriteString(text[f.copied:])
	f.out.shape = f.shape.String()
	return f.out, f.places, nil
}

func (f *finder) at(i int) token {
	if i < 0 || i >= len(f.pieces) {
		return token{kind: end, from: len(f.text), to: len(f.text)}
	}
	return f.pieces[i]
}

// step looks at one piece, and gives the next to look at.
func (f *finder) step(at int) (int, *Error) {
	t := f.at(at)
	if t.kind != word {
		return at + 1, nil
	}
	if f.at(at - 1).is(".") {
		f.macro(at)
		return at + 1, nil
	}
	if strings.HasPrefix(t.value, parameter) {
		return 0, &Error{Position: t.from, Problem: "words must not begin with " + parameter + ": choose another name"}
	}
	if f.isLocal(t.value, at) || t.value == "in" || t.value == "true" || t.value == "false" || t.value == "null" {
		return at + 1, nil
	}
	ref, next, err := f.head(at)
	if err != nil {
		return 0, err
	}
	if next == at {
		return at + 1, nil
	}
	return next, f.use(ref, at, next)
}

// macro looks whether the word is a call such as all(x, …) or bind(x, …), which makes
// x a variable: until the bracket is closed, it is not a type.
func (f *finder) macro(at int) {
	switch f.at(at).value {
	case "all", "exists", "exists_one", "existsOne", "filter", "map", "sortBy", "bind", "transformList", "transformMap", "transformMapEntry":
	default:
		return
	}
	if !f.at(at + 1).is("(") {
		return
	}
	until := f.closing(at + 1)
	for i := at + 2; i <= at+4 && f.at(i).kind == word && f.at(i+1).is(","); i += 2 {
		f.locals = append(f.locals, local{f.at(i).value, until})
	}
}

// closing finds the bracket that closes what opens there.
func (f *finder) closing(at int) int {
	for depth := 0; at < len(f.pieces); at++ {
		switch t := f.at(at); {
		case t.is("(") || t.is("[") || t.is("{"):
			depth++
		case t.is(")") || t.is("]") || t.is("}"):
			if depth--; depth == 0 {
				return at
			}
		}
	}
	return at
}

func (f *finder) isLocal(name string, at int) bool {
	for _, l := range f.locals {
		if l.name == name && at < l.until {
			return true
		}
	}
	return false
}

// head reads TYPE["name"] with what may stand before it, and gives what follows it. If that
// is where it began there is none.
func (f *finder) head(at int) (ref Ref, next int, err *Error) {
	ref.Namespace = f.namespace
	i := at
	if f.at(i).value == "namespace" {
		if ref.Namespace, i, err = f.name(i + 1); err != nil {
			return ref, 0, err
		}
		if !f.at(i).is(".") || f.at(i+1).kind != word {
			return ref, 0, &Error{Position: f.at(i).from, Problem: `a namespace is followed by what is in it: namespace["other"].TYPE["name"]`}
		}
		i++
	}
	switch f.at(i).value {
	case "data":
		ref.Kind = Data
		if !f.at(i+1).is(".") || f.at(i+2).kind != word {
			return ref, 0, &Error{Position: f.at(i).from, Problem: `a data source is written data.TYPE["name"]`}
		}
		i += 2
	case "k8s":
		ref.Kind = Kubernetes
		i++
		if f.at(i).is("[") {
			if ref.Group, i, err = f.name(i); err != nil {
				return ref, 0, err
			}
		}
		if !f.at(i).is(".") || f.at(i+1).kind != word {
			return ref, 0, &Error{Position: f.at(i).from, Problem: `a Kubernetes object is written k8s.KIND["name"], or k8s["group/version"].KIND["name"]`}
		}
		i++
	}
	ref.Type = f.at(i).value
	// A word alone, or a call: CEL knows it, or says that it does not.
	whole := i == at && !f.at(i+1).is("[") && (!f.at(i+1).is(".") || f.at(i+2).kind != word || f.at(i+3).is("("))
	if whole {
		return ref, at, nil
	}
	ref.Name, i, err = f.name(i + 1)
	return ref, i, err
}

// name reads ["name"] or .name.
func (f *finder) name(at int) (string, int, *Error) {
	switch {
	case f.at(at).is(".") && f.at(at+1).kind == word && !f.at(at+2).is("("):
		return f.at(at + 1).value, at + 2, nil
	case f.at(at).is("[") && f.at(at+1).kind == constant && f.at(at+2).is("]"):
		name := f.at(at + 1).value
		if name == "" {
			return "", 0, &Error{Position: f.at(at + 1).from, Problem: "a name must not be empty"}
		}
		return name, at + 3, nil
	case f.at(at).is("["):
		return "", 0, &Error{Position: f.at(at).from, Problem: `what is referred to must be known before anything has a value: ` +
			`write the name itself, as in TYPE["name"], and choose between objects with condition ? TYPE["a"].x : TYPE["b"].x`}
	}
	return "", 0, &Error{Position: f.at(at).from, Problem: `a name is missing: write TYPE["name"]`}
}

// use notes a reference, whose head is pieces[at:next], and puts a parameter into its
// place in the shape.
func (f *finder) use(ref Ref, at, next int) *Error {
	path, after := f.static(next)
	index := -1
	for i := range f.out.heads {
		if f.out.heads[i] == ref {
			index = i
		}
	}
	if index < 0 {
		if index = len(f.out.heads); index == maxReferences {
			return &Error{Position: f.at(at).from, Problem: fmt.Sprintf("refers to more than %d objects: divide it", maxReferences)}
		}
		f.out.heads = append(f.out.heads, ref)
	}
	if used := (Reference{ref, path}); !contains(f.out.uses, used) {
		f.out.uses = append(f.out.uses, used)
	}
	if at == 0 && after == len(f.pieces) {
		f.out.plain = true
		return nil
	}
	f.shape.WriteString(f.text[f.copied:f.at(at).from])
	from := f.shape.Len()
	f.shape.WriteString(parameter + strconv.Itoa(index))
	f.copied = f.at(next - 1).to
	f.places = append(f.places, place{f.at(at).from, f.copied, from, f.shape.Len()})
	return nil
}

func contains(all []Reference, one Reference) bool {
	for _, r := range all {
		if r.Ref == one.Ref && r.Path.Equals(one.Path) {
			return true
		}
	}
	return false
}

// static reads the path after a name, as far as it is the same whatever the values
// are, and gives where it ends.
func (f *finder) static(at int) (cty.Path, int) {
	var path cty.Path
	start := at
	for {
		switch {
		case f.at(at).is(".") && f.at(at+1).kind == word && !f.at(at+2).is("("):
			path = append(path, cty.GetAttrStep{Name: f.at(at + 1).value})
			at += 2
		case f.at(at).is("[") && f.at(at+1).kind == constant && f.at(at+2).is("]"):
			path = append(path, cty.IndexStep{Key: cty.StringVal(f.at(at + 1).value)})
			at += 3
		case f.at(at).is("[") && f.at(at+1).kind == number && f.at(at+2).is("]") && isIndex(f.at(at+1).value):
			index, _ := strconv.ParseInt(f.at(at+1).value, 10, 32)
			path = append(path, cty.IndexStep{Key: cty.NumberIntVal(index)})
			at += 3
		default:
			if len(path) == 0 {
				return nil, at
			}
			return f.path(path, f.text[f.at(start).from:f.at(at-1).to]), at
		}
	}
}

func isIndex(digits string) bool {
	return len(digits) < 10 && strings.Trim(digits, "0123456789") == ""
}
