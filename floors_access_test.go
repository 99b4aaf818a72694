package main_test

import (
	"fmt"
	"go/ast"
	"slices"
)

// accessRoom reads the values that specs take from other objects. It has a client with all rights, so each of its
// methods takes the object that reads, whose author's rights decide. testAccessRoom stands in for it in tests.
const (
	accessRoom     = "infra/access"
	testAccessRoom = "infra/enginetest"
	engineRoom     = "infra"
)

// readerType is the type in engineRoom of the object that reads, and valueReader the interface through which the
// engine reads for it.
const (
	readerType  = "Reader"
	valueReader = "ValueReader"
)

// findReadsWithoutReader finds what the sources show of reads for a spec that no author is asked for: methods of the
// engine's interface, or of the room that implements it, without the object that reads, and other implementations.
// That the rooms which evaluate expressions have no client of their own is the rule for floors 0 and 1.
func findReadsWithoutReader(house *tree) (found []violation) {
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test {
			return
		}
		if p.dir == engineRoom {
			for _, method := range f.interfaceMethods(valueReader) {
				signature, is := method.Type.(*ast.FuncType)
				if !is || !takes(signature, isLocalReader) {
					found = append(found, violation{house.at(method.Pos()), fmt.Sprintf("%s has a method without a %s", valueReader, readerType)})
				}
			}
		}
		isReader := func(e ast.Expr) bool {
			sel, is := e.(*ast.SelectorExpr)
			if !is || sel.Sel.Name != readerType {
				return false
			}
			of, is := sel.X.(*ast.Ident)
			return is && of.Name == f.localName(house.module+"/"+engineRoom)
		}
		for _, decl := range f.ast.Decls {
			method, is := decl.(*ast.FuncDecl)
			if !is || method.Recv == nil {
				continue
			}
			switch reads := takes(method.Type, isReader); {
			case p.dir == accessRoom && method.Name.IsExported() && !reads:
				found = append(found, violation{house.at(method.Pos()), fmt.Sprintf("%s takes no %s.%s", method.Name.Name, engineRoom, readerType)})
			case !slices.Contains([]string{accessRoom, testAccessRoom}, p.dir) && reads:
				found = append(found, violation{house.at(method.Pos()), fmt.Sprintf("%s takes an %s.%s, as only %s does", method.Name.Name, engineRoom, readerType, accessRoom)})
			}
		}
	})
	return found
}

func isLocalReader(e ast.Expr) bool {
	name, is := e.(*ast.Ident)
	return is && name.Name == readerType
}

// takes reports whether a function has a parameter of a type.
func takes(signature *ast.FuncType, of func(ast.Expr) bool) bool {
	return slices.ContainsFunc(signature.Params.List, func(p *ast.Field) bool { return of(p.Type) })
}

// interfaceMethods returns the methods of an interface that a file declares.
func (f *source) interfaceMethods(name string) (methods []*ast.Field) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		spec, is := n.(*ast.TypeSpec)
		if !is || spec.Name.Name != name {
			return true
		}
		if of, is := spec.Type.(*ast.InterfaceType); is {
			methods = of.Methods.List
		}
		return false
	})
	return methods
}
