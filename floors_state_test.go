package main_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// constructors are the calls that may initialize a package-level var: their
// results are immutable, or no caller has a reason to change them.
var constructors = []string{
	"errors.New", "fmt.Errorf",
	"regexp.MustCompile", "strings.NewReplacer", "template.Must",
	"resource.MustParse", "sets.New",
}

// copyMethods are methods that return a changed copy of an immutable value.
var copyMethods = []string{"WithKind", "WithResource", "WithVersion", "GroupKind", "GroupResource", "GroupVersion", "String"}

// purePackages are the packages that a function may call while it builds a table:
// they have no side effects.
var purePackages = []string{"bytes", "cmp", "errors", "fmt", "maps", "regexp", "slices", "strconv", "strings"}

// builtins may be called anywhere. Conversions are included because they look like calls.
var builtins = []string{
	"append", "cap", "clear", "copy", "delete", "len", "make", "max", "min", "new", "panic",
	"bool", "byte", "string", "int", "int32", "int64", "uint64", "float64",
}

// findMutable checks the declaration of each package-level var and all writes to it
// in its package, tests included. It works on syntax alone, so it cannot see a
// pointer method that changes its receiver. The types made for that (locks, once,
// atomics) have no value in their declaration, and fail for that reason.
func findMutable(house *tree) (found []violation) {
	for _, p := range house.product() {
		vars := map[string]*ast.ValueSpec{}
		table := varChecker{p.functions()}
		for _, f := range p.files {
			if f.test || f.generated {
				continue
			}
			for _, v := range f.vars() {
				vars[v.name] = v.spec
				if reason := table.mutableVar(v); reason != "" {
					found = append(found, violation{house.at(v.pos), fmt.Sprintf("var %s %s", v.name, reason)})
				}
			}
		}
		for _, f := range p.files {
			if f.generated {
				continue
			}
			for _, w := range f.writes() {
				own := vars[w.root.Name]
				here := own != nil && (w.root.Obj == nil || w.root.Obj.Decl == own)
				foreign := w.field != "" && w.root.Obj == nil && f.importsAs(w.root.Name)
				switch {
				case here:
					found = append(found, violation{house.at(w.root.Pos()), "changes the package-level var " + w.root.Name})
				case foreign && !f.test:
					found = append(found, violation{house.at(w.root.Pos()), fmt.Sprintf("changes %s.%s, a variable of another package", w.root.Name, w.field)})
				}
			}
		}
	}
	return found
}

// A packageVar is one name declared by a package-level var.
type packageVar struct {
	name  string
	pos   token.Pos
	spec  *ast.ValueSpec
	value ast.Expr // nil without an initial value
	embed bool
}

func (f *source) vars() []packageVar {
	var vars []packageVar
	for _, d := range f.ast.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, s := range gen.Specs {
			spec := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if name.Name == "_" {
					continue // asserts that a type implements an interface
				}
				v := packageVar{name: name.Name, pos: name.Pos(), spec: spec, embed: embeds(gen.Doc) || embeds(spec.Doc)}
				if i < len(spec.Values) {
					v.value = spec.Values[i]
				}
				vars = append(vars, v)
			}
		}
	}
	return vars
}

func embeds(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// A varChecker checks the values of package-level vars. It knows the functions of
// their package.
type varChecker struct{ functions map[string]*ast.FuncDecl }

// mutableVar returns why a declaration violates the rule, or "" if it does not.
func (b varChecker) mutableVar(v packageVar) string {
	if v.embed {
		return ""
	}
	if v.value == nil {
		return "has no value in its declaration, so code sets it later"
	}
	if id, ok := v.value.(*ast.Ident); ok && id.Name == "nil" {
		return "is nil in its declaration, so code sets it later"
	}
	return b.mutable(v.value)
}

func (b varChecker) mutable(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return b.mutable(e.X)
	case *ast.StarExpr:
		return b.mutable(e.X)
	case *ast.UnaryExpr:
		if e.Op == token.ARROW {
			return "receives from a channel"
		}
		return b.mutable(e.X)
	case *ast.BinaryExpr:
		return cmp.Or(b.mutable(e.X), b.mutable(e.Y))
	case *ast.CompositeLit:
		return b.mutableLiteral(e)
	case *ast.CallExpr:
		return b.mutableCall(e)
	}
	return ""
}

func (b varChecker) mutableLiteral(literal *ast.CompositeLit) string {
	if sel, ok := literal.Type.(*ast.SelectorExpr); ok {
		if name := dotted(sel); strings.HasPrefix(name, "sync.") || strings.HasPrefix(name, "atomic.") {
			return "is a " + name
		}
	}
	if _, isMap := literal.Type.(*ast.MapType); isMap && len(literal.Elts) == 0 {
		return "is an empty map, so code fills it later"
	}
	for _, element := range literal.Elts {
		if kv, ok := element.(*ast.KeyValueExpr); ok {
			element = kv.Value
		}
		if reason := b.mutable(element); reason != "" {
			return reason
		}
	}
	return ""
}

func (b varChecker) mutableCall(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.ArrayType:
		return "" // []byte("…")
	case *ast.IndexExpr: // a generic constructor with its type argument
		return b.mutableCall(&ast.CallExpr{Fun: fun.X, Args: call.Args})
	case *ast.SelectorExpr:
		if slices.Contains(constructors, dotted(fun)) || slices.Contains(copyMethods, fun.Sel.Name) {
			return ""
		}
		return "is the result of calling " + dotted(fun) + " at import"
	case *ast.Ident:
		if fun.Name != "make" && fun.Name != "new" && b.computes(fun.Name, nil) {
			return ""
		}
		return "is the result of calling " + fun.Name + " at import"
	}
	return "is the result of a call at import"
}

// computes reports whether a function of the package is free of side effects: it
// calls only such functions. Its result is then equivalent to a literal.
func (b varChecker) computes(name string, calling []string) bool {
	fn := b.functions[name]
	if fn == nil {
		return slices.Contains(builtins, name)
	}
	if fn.Body == nil || slices.Contains(calling, name) {
		return false
	}
	pure := true
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return pure
		}
		switch fun := call.Fun.(type) {
		case *ast.ArrayType:
		case *ast.Ident:
			// A function literal declared inside is inspected where it is declared.
			local := fun.Obj != nil && b.functions[fun.Name] == nil
			pure = pure && (local || b.computes(fun.Name, append(calling, name)))
		case *ast.SelectorExpr:
			x, ok := fun.X.(*ast.Ident)
			method := ok && x.Obj != nil
			pure = pure && (method || ok && slices.Contains(purePackages, x.Name))
		default:
			pure = false
		}
		return pure
	})
	return pure
}

// functions returns the package's functions without its methods.
func (p *pkg) functions() map[string]*ast.FuncDecl {
	functions := map[string]*ast.FuncDecl{}
	for _, f := range p.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && !f.test {
				functions[fn.Name.Name] = fn
			}
		}
	}
	return functions
}

func dotted(sel *ast.SelectorExpr) string {
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return "a method " + sel.Sel.Name
}

// A write changes the variable that root.field… names, or takes its address.
type write struct {
	root  *ast.Ident
	field string // the first selector after root, if there is one
}

func (f *source) writes() []write {
	var found []write
	add := func(e ast.Expr) {
		if w, ok := target(e); ok {
			found = append(found, w)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, left := range n.Lhs {
					add(left)
				}
			}
		case *ast.IncDecStmt:
			add(n.X)
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				add(n.Key)
				add(n.Value)
			}
		case *ast.UnaryExpr:
			// Taking the address of another package's variable is often the only
			// way to use it. The address of our own lets any code write to it.
			if id, ok := ast.Unparen(n.X).(*ast.Ident); ok && n.Op == token.AND {
				found = append(found, write{root: id})
			}
		case *ast.CallExpr:
			id, ok := n.Fun.(*ast.Ident)
			if ok && len(n.Args) > 0 && slices.Contains([]string{"delete", "clear", "copy"}, id.Name) {
				add(n.Args[0])
			}
		}
		return true
	})
	return found
}

// target finds the variable that an assignable expression starts from.
func target(e ast.Expr) (write, bool) {
	var w write
	for {
		switch x := e.(type) {
		case *ast.Ident:
			w.root = x
			return w, true
		case *ast.SelectorExpr:
			w.field = x.Sel.Name
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		default:
			return write{}, false
		}
	}
}

// importsAs reports whether name is the local name of one of the file's imports.
func (f *source) importsAs(name string) bool {
	return slices.ContainsFunc(f.imports, func(imp string) bool { return f.localName(imp) == name })
}
