package main_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A tree is the parsed source of a repository: every Go file regardless of its
// build tags. It is not type-checked, so that reading it compiles nothing.
type tree struct {
	module   string
	packages []*pkg // by dir
	fset     *token.FileSet
}

// A pkg is one folder with Go files in it.
type pkg struct {
	dir   string // relative to the root; "." for the root itself
	name  string
	files []*source
}

// A source is one Go file.
type source struct {
	path      string
	ast       *ast.File
	imports   []string
	doc       string // its package comment
	test      bool
	generated bool
}

// An edge is one import of a product package by another.
type edge struct {
	from, to string
	file     *source
}

// readTree reads the repository that the test runs in.
func readTree(t *testing.T) *tree {
	t.Helper()
	house, err := parseTree(os.DirFS("."), strings.TrimSuffix(ours, "/"))
	if err != nil {
		t.Fatal(err)
	}
	return house
}

func parseTree(root fs.FS, module string) (*tree, error) {
	house := &tree{module: module, fset: token.NewFileSet()}
	byDir := map[string]*pkg{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			// The go command does not look into these either; bin/ holds no source.
			hidden := name != "." && strings.IndexAny(d.Name(), "._") == 0
			if hidden || d.Name() == "testdata" || d.Name() == "vendor" || name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parseSource(root, house.fset, name)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		p := byDir[dir]
		if p == nil {
			p = &pkg{dir: dir}
			byDir[dir] = p
		}
		if p.name == "" || !f.test {
			p.name = strings.TrimSuffix(f.ast.Name.Name, "_test")
		}
		p.files = append(p.files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the source tree: %w", err)
	}
	house.packages = slices.SortedFunc(maps.Values(byDir), func(a, b *pkg) int { return cmp.Compare(a.dir, b.dir) })
	return house, nil
}

func parseSource(root fs.FS, fset *token.FileSet, name string) (*source, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	f := &source{
		path:      name,
		ast:       parsed,
		doc:       parsed.Doc.Text(),
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(parsed),
	}
	for _, spec := range parsed.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		f.imports = append(f.imports, imp)
	}
	return f, nil
}

// product returns the packages that ship.
func (h *tree) product() []*pkg {
	var product []*pkg
	for _, p := range h.packages {
		if !isOutside(p.dir) {
			product = append(product, p)
		}
	}
	return product
}

func (h *tree) eachProductFile(visit func(*pkg, *source)) {
	for _, p := range h.product() {
		for _, f := range p.files {
			visit(p, f)
		}
	}
}

// productImports returns every import of one product package by another.
func (h *tree) productImports() []edge {
	var edges []edge
	h.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			if dir, ok := h.dirOf(imp); ok && !isOutside(dir) {
				edges = append(edges, edge{from: p.dir, to: dir, file: f})
			}
		}
	})
	return edges
}

// dirOf returns the folder of an import path of this module.
func (h *tree) dirOf(importPath string) (string, bool) {
	if importPath == h.module {
		return ".", true
	}
	return strings.CutPrefix(importPath, h.module+"/")
}

func (h *tree) at(pos token.Pos) string {
	p := h.fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

func (p *pkg) testsOnly() bool {
	return !slices.ContainsFunc(p.files, func(f *source) bool { return !f.test })
}

// inits returns the positions of the file's init functions.
func (f *source) inits() []token.Pos {
	var found []token.Pos
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			found = append(found, fn.Pos())
		}
	}
	return found
}

// A use is one mention of a name of an imported package.
type use struct {
	name string
	pos  token.Pos
}

// uses returns the places where the file uses one of the names of an imported package.
func (f *source) uses(importPath string, names []string) []use {
	return f.mentions(importPath, func(name string) bool { return slices.Contains(names, name) })
}

// usesBut returns the places where the file uses any other name of the package.
func (f *source) usesBut(importPath string, names []string) []use {
	return f.mentions(importPath, func(name string) bool { return !slices.Contains(names, name) })
}

func (f *source) mentions(importPath string, want func(name string) bool) []use {
	local := f.localName(importPath)
	if local == "" {
		return nil
	}
	var found []use
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && want(sel.Sel.Name) {
			// An identifier that resolves to something in the file is a
			// variable that happens to have the package's name.
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && x.Obj == nil {
				found = append(found, use{sel.Sel.Name, sel.Pos()})
			}
		}
		return true
	})
	return found
}

// localName returns the file's name for an imported package, or "" if it does not
// import it.
func (f *source) localName(importPath string) string {
	for i, spec := range f.ast.Imports {
		if f.imports[i] != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}
