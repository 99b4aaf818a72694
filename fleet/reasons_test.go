package fleet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reasons returns the values of the API's constants whose names start with one of the prefixes.
func reasons(t *testing.T, file string, prefixes ...string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "api", "fleet", "v1alpha1", file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, value := range spec.Values {
			literal, ok := value.(*ast.BasicLit)
			if !ok || !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(spec.Names[i].Name, p) }) {
				continue
			}
			if s, err := strconv.Unquote(literal.Value); err == nil {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

// TestTheManualHasEveryReason: the manual's tables list every reason and state of Clusters and
// bindings, and no others.
func TestTheManualHasEveryReason(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "### When something is wrong with a cluster\n")
	if !ok {
		t.Fatal("docs/operations.md has no section \"When something is wrong with a cluster\"")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| \\*?`([A-Z][A-Za-z]+)`").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
	}
	// Reasons of a Cluster that is well or leaves need no explanation.
	known := slices.DeleteFunc(reasons(t, "cluster.go", "Reason"), func(r string) bool {
		return slices.Contains([]string{"ClusterReady", "RemovingObjects", "WaitingForCluster", "TooManyDeletions", "WithinBounds"}, r)
	})
	known = append(known, reasons(t, "binding.go", "State")...)
	slices.Sort(known)
	slices.Sort(documented)
	if !slices.Equal(known, documented) {
		t.Errorf("the API has %v, and docs/operations.md explains %v", known, documented)
	}
}
