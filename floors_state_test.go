package main_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// constructors are the calls that may fill a package-level var: what they
// return cannot be changed by whoever holds it, or nobody has reason to.
var constructors = []string{
	"errors.New", "fmt.Errorf",
	"regexp.MustCompile", "strings.NewReplacer", "template.Must",
	"resource.MustParse", "sets.New",
}

// withers are methods that return a changed copy of an immutable value.
var withers = []string{"WithKind", "WithResource", "WithVersion", "GroupKind", "GroupResource", "GroupVersion", "String"}

// builders are the packages that a function may call while it builds a table:
// they compute, and have no effect.
var builders = []string{"bytes", "cmp", "errors", "fmt", "maps", "regexp", "slices", "strconv", "strings"}

// builtins may be called anywhere; conversions look like calls.
var builtins = []string{
	"append", "cap", "clear", "copy", "delete", "len", "make", "max", "min", "new", "panic",
	"bool", "byte", "string", "int", "int32", "int64", "uint64", "float64",
}

// findMutable judges each package-level var by its declaration and by what the
// package's code, tests included, does to it. It works on syntax alone, so it
// cannot see a pointer method that changes its receiver; the types that exist
// for that (locks, once, atomics) have no value to declare and fail that way.
func findMutable(house *tree) (found []breach) {
	for _, p := range house.product() {
		vars := map[string]*ast.ValueSpec{}
		table := builder{p.functions()}
		for _, f := range p.files {
			if f.test || f.generated {
				continue
			}
			for _, v := range f.vars() {
				vars[v.name] = v.spec
				if reason := table.mutableVar(v); reason != "" {
					found = append(found, breach{house.at(v.pos), fmt.Sprintf("var %s %s", v.name, reason)})
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
					found = append(found, breach{house.at(w.root.Pos()), "changes the package-level var " + w.root.Name})
				case foreign && !f.test:
					found = append(found, breach{house.at(w.root.Pos()), fmt.Sprintf("changes %s.%s, a variable of another package", w.root.Name, w.field)})
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
	value ast.Expr // nil if it has none
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

// A builder judges the values of package-level vars, knowing the functions of
// their package.
type builder struct{ functions map[string]*ast.FuncDecl }

// mutableVar tells what is wrong with a declaration; empty if nothing is.
func (b builder) mutableVar(v packageVar) string {
	if v.embed {
		return ""
	}
	if v.value == nil {
		return "has no value in its declaration: it waits for somebody to set it"
	}
	if id, ok := v.value.(*ast.Ident); ok && id.Name == "nil" {
		return "is nil in its declaration: it waits for somebody to set it"
	}
	return b.mutable(v.value)
}

func (b builder) mutable(e ast.Expr) string {
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

func (b builder) mutableLiteral(literal *ast.CompositeLit) string {
	if sel, ok := literal.Type.(*ast.SelectorExpr); ok {
		if name := dotted(sel); strings.HasPrefix(name, "sync.") || strings.HasPrefix(name, "atomic.") {
			return "is a " + name
		}
	}
	if _, isMap := literal.Type.(*ast.MapType); isMap && len(literal.Elts) == 0 {
		return "is an empty map: it waits for somebody to fill it"
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

func (b builder) mutableCall(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.ArrayType:
		return "" // []byte("…")
	case *ast.IndexExpr: // a generic constructor with its type argument
		return b.mutableCall(&ast.CallExpr{Fun: fun.X, Args: call.Args})
	case *ast.SelectorExpr:
		if slices.Contains(constructors, dotted(fun)) || slices.Contains(withers, fun.Sel.Name) {
			return ""
		}
		return "is made by calling " + dotted(fun) + " at import"
	case *ast.Ident:
		if fun.Name != "make" && fun.Name != "new" && b.computes(fun.Name, nil) {
			return ""
		}
		return "is made by calling " + fun.Name + " at import"
	}
	return "is made by a call at import"
}

// computes tells whether a function of the package calls nothing but functions
// that compute. Then what it returns might as well be spelled out.
func (b builder) computes(name string, calling []string) bool {
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
			// A call of what is declared inside the function is looked at there.
			local := fun.Obj != nil && b.functions[fun.Name] == nil
			pure = pure && (local || b.computes(fun.Name, append(calling, name)))
		case *ast.SelectorExpr:
			x, ok := fun.X.(*ast.Ident)
			method := ok && x.Obj != nil
			pure = pure && (method || ok && slices.Contains(builders, x.Name))
		default:
			pure = false
		}
		return pure
	})
	return pure
}

// functions gives the package's functions, methods left out.
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

// A write changes, or lets somebody change, what root.field… names.
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
			// Of another package's variable an address is often the only way
			// to use it; of our own it lets anybody write.
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

// importsAs tells whether the name is one that the file gives to an import.
func (f *source) importsAs(name string) bool {
	return slices.ContainsFunc(f.imports, func(imp string) bool { return f.localName(imp) == name })
}
