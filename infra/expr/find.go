package expr

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// Limits for one expression, and for one object.
const (
	maxExpression  = 4096 // bytes
	maxNesting     = 40   // nested brackets
	maxReferences  = 64   // distinct objects in one expression
	maxFunctions   = 16   // distinct functions of providers in one expression
	maxExpressions = 1000 // expressions in one object
	maxDepth       = 64   // nested lists and maps in one object
)

// parameter is the prefix of the variables that replace references in the text given to CEL.
// Expressions must not use words with this prefix.
const parameter = "__ref"

// functionName is the prefix of the functions that replace those of providers.
const functionName = "__function"

// Function names a function of a provider: provider.NAME.function(…).
type Function struct{ Provider, Name string }

// parsedExpression is an expression with its references. Its shape is the text with parameters in
// place of the referenced objects, so many expressions share one shape.
type parsedExpression struct {
	references []Reference // distinct references, in the order of the text
	targets    []Ref       // distinct objects: parameter i stands for targets[i]
	functions  []Function  // distinct functions of providers, likewise
	shape      string
	// traversal reports whether the expression is one reference and nothing else, which needs no
	// CEL.
	traversal bool
}

// replacement maps the position of an object's name in the text to that of its parameter in the
// shape.
type replacement struct{ text, textEnd, shape, shapeEnd int }

// refFinder finds the references in the tokens of one expression.
type refFinder struct {
	text         string // starts at the expression
	tokens       []token
	namespace    string
	intern       func(cty.Path, string) cty.Path
	out          parsedExpression
	shape        strings.Builder
	copiedTo     int // offset up to which text is copied into shape
	replacements []replacement
	locals       []local
}

// local is a variable of a macro, and the token at which its scope ends.
type local struct {
	name  string
	until int
}

// find finds the references of an expression, whose tokens have positions in text. intern returns a
// path that all expressions share. The replacements translate positions in the shape.
func find(text string, pieces []token, namespace string, share func(cty.Path, string) cty.Path) (parsedExpression, []replacement, *Error) {
	f := &refFinder{text: text, tokens: pieces, namespace: namespace, intern: share}
	for at := 0; at < len(pieces); {
		next, err := f.step(at)
		if err != nil {
			return parsedExpression{}, nil, err
		}
		at = next
	}
	if f.out.traversal {
		return f.out, nil, nil
	}
	f.shape.WriteString(text[f.copiedTo:])
	f.out.shape = f.shape.String()
	return f.out, f.replacements, nil
}

func (f *refFinder) at(i int) token {
	if i < 0 || i >= len(f.tokens) {
		return token{kind: end, from: len(f.text), to: len(f.text)}
	}
	return f.tokens[i]
}

// step examines one token and returns the index of the next one to examine.
func (f *refFinder) step(at int) (int, *Error) {
	t := f.at(at)
	if t.kind != word {
		return at + 1, nil
	}
	if f.at(at - 1).is(".") {
		f.macro(at)
		return at + 1, nil
	}
	for _, reserved := range []string{parameter, functionName} {
		if strings.HasPrefix(t.value, reserved) {
			return 0, &Error{Position: t.from, Problem: "names that begin with " + reserved + " are reserved: choose another name"}
		}
	}
	if f.isLocal(t.value, at) || t.value == "in" || t.value == "true" || t.value == "false" || t.value == "null" {
		return at + 1, nil
	}
	if next, err := f.function(at); next > at || err != nil {
		return next, err
	}
	ref, next, err := f.target(at)
	if err != nil {
		return 0, err
	}
	if next == at {
		return at + 1, nil
	}
	return next, f.addReference(ref, at, next)
}

// function replaces provider.NAME.function before its bracket. It returns the index unchanged if there
// is no such call.
func (f *refFinder) function(at int) (int, *Error) {
	if f.at(at).value != "provider" {
		return at, nil
	}
	provider, i, err := f.name(at + 1)
	if err != nil || !f.at(i).is(".") || f.at(i+1).kind != word || !f.at(i+2).is("(") {
		return at, nil
	}
	called := Function{provider, f.at(i + 1).value}
	index := slices.Index(f.out.functions, called)
	if index < 0 {
		if index = len(f.out.functions); index == maxFunctions {
			return 0, &Error{Position: f.at(at).from, Problem: fmt.Sprintf("calls more than %d functions of providers: split the expression", maxFunctions)}
		}
		f.out.functions = append(f.out.functions, called)
	}
	f.replace(at, i+1, functionName+strconv.Itoa(index))
	return i + 2, nil
}

// replace writes a name in place of the tokens from at to last into the shape.
func (f *refFinder) replace(at, last int, name string) {
	f.shape.WriteString(f.text[f.copiedTo:f.at(at).from])
	from := f.shape.Len()
	f.shape.WriteString(name)
	f.copiedTo = f.at(last).to
	f.replacements = append(f.replacements, replacement{f.at(at).from, f.copiedTo, from, f.shape.Len()})
}

// macro declares x as a variable if the word is a macro call such as all(x, …) or bind(x, …). Until
// the call's closing bracket, x is not a type.
func (f *refFinder) macro(at int) {
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

// closing returns the index of the bracket that closes the one at the index.
func (f *refFinder) closing(at int) int {
	for depth := 0; at < len(f.tokens); at++ {
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

func (f *refFinder) isLocal(name string, at int) bool {
	for _, l := range f.locals {
		if l.name == name && at < l.until {
			return true
		}
	}
	return false
}

// target parses TYPE["name"] with its optional prefixes, and returns the index of the token after
// it. The index is unchanged if there is no reference.
func (f *refFinder) target(at int) (ref Ref, next int, err *Error) {
	ref.Namespace = f.namespace
	i := at
	if f.at(i).value == "namespace" {
		if ref.Namespace, i, err = f.name(i + 1); err != nil {
			return ref, 0, err
		}
		if !f.at(i).is(".") || f.at(i+1).kind != word {
			return ref, 0, &Error{Position: f.at(i).from, Problem: `an object must follow the namespace, as in namespace["other"].TYPE["name"]`}
		}
		i++
	}
	switch f.at(i).value {
	case "data":
		ref.Kind = Data
		if !f.at(i+1).is(".") || f.at(i+2).kind != word {
			return ref, 0, &Error{Position: f.at(i).from, Problem: `write data.TYPE["name"] for a data source`}
		}
		i += 2
	case "k8s":
		ref.Kind = Kubernetes
		i++
		if f.at(i).is("[") {
			if ref.APIVersion, i, err = f.name(i); err != nil {
				return ref, 0, err
			}
		}
		if !f.at(i).is(".") || f.at(i+1).kind != word {
			return ref, 0, &Error{Position: f.at(i).from, Problem: `write k8s.KIND["name"] or k8s["group/version"].KIND["name"] for a Kubernetes object`}
		}
		i++
	}
	ref.Type = f.at(i).value
	// A word alone or a call: CEL decides whether it is valid.
	whole := i == at && !f.at(i+1).is("[") && (!f.at(i+1).is(".") || f.at(i+2).kind != word || f.at(i+3).is("("))
	if whole {
		return ref, at, nil
	}
	ref.Name, i, err = f.name(i + 1)
	return ref, i, err
}

// name parses ["name"] or .name.
func (f *refFinder) name(at int) (string, int, *Error) {
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
		return "", 0, &Error{Position: f.at(at).from, Problem: `the name of the object must be constant, because references are resolved before any value is known: ` +
			`write the name itself, as in TYPE["name"], and choose between objects with condition ? TYPE["a"].x : TYPE["b"].x`}
	}
	return "", 0, &Error{Position: f.at(at).from, Problem: `a name is missing: write TYPE["name"]`}
}

// addReference records a reference to the object at tokens[at:next], and writes a parameter in its
// place into the shape.
func (f *refFinder) addReference(ref Ref, at, next int) *Error {
	path, after := f.constantPath(next)
	index := -1
	for i := range f.out.targets {
		if f.out.targets[i] == ref {
			index = i
		}
	}
	if index < 0 {
		if index = len(f.out.targets); index == maxReferences {
			return &Error{Position: f.at(at).from, Problem: fmt.Sprintf("refers to more than %d objects: split the expression", maxReferences)}
		}
		f.out.targets = append(f.out.targets, ref)
	}
	if used := (Reference{ref, path}); !contains(f.out.references, used) {
		f.out.references = append(f.out.references, used)
	}
	if at == 0 && after == len(f.tokens) {
		f.out.traversal = true
		return nil
	}
	f.replace(at, next-1, parameter+strconv.Itoa(index))
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

// constantPath parses the path after a name as far as it does not depend on values, and returns the
// index of the token after it.
func (f *refFinder) constantPath(at int) (cty.Path, int) {
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
			return f.intern(path, f.text[f.at(start).from:f.at(at-1).to]), at
		}
	}
}

func isIndex(digits string) bool {
	return len(digits) < 10 && strings.Trim(digits, "0123456789") == ""
}
