package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestNoIndirectImportOfKubernetes checks everything that each package of the
// product imports, directly and indirectly. Checking the files alone is not enough:
// a small library that imports Kubernetes costs the same.
func TestNoIndirectImportOfKubernetes(t *testing.T) {
	house := readTree(t)
	imports := importGraph(t)
	for _, p := range house.product() {
		if p.testsOnly() || mayReachKubernetes(p.dir) {
			continue
		}
		start := house.module + "/" + p.dir
		for _, heavy := range []string{"k8s.io/kubernetes", "k8s.io/apiserver"} {
			if chain := reach(imports, start, heavy); chain != nil {
				t.Errorf("%s reaches %s:\n  %s\n  why: every package that imports it compiles for minutes\n"+
					"  remedy: break the chain; only apiserver/, aggregate/ and what composes them may reach it",
					p.dir, heavy, strings.Join(chain, "\n  -> "))
			}
		}
	}
}

// mayReachKubernetes reports whether a room may import Kubernetes, or composes those
// that do.
func mayReachKubernetes(dir string) bool {
	return within(dir, "apiserver") || within(dir, "aggregate") || floorOf(dir) >= 3
}

// reach finds a shortest chain of imports from a package to one within lib.
func reach(imports map[string][]string, from, lib string) []string {
	via := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at != from && within(at, lib) {
			var chain []string
			for ; at != ""; at = via[at] {
				chain = append(chain, at)
			}
			slices.Reverse(chain)
			return chain
		}
		for _, next := range imports[at] {
			if _, seen := via[next]; !seen {
				via[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// importGraph returns the imports of every package of the build. It reads import
// declarations only and compiles nothing.
func importGraph(t *testing.T) map[string][]string {
	t.Helper()
	graph := map[string][]string{}
	decoder := json.NewDecoder(bytes.NewReader(goCommand(t, "list", "-e", "-deps", "-json=ImportPath,Imports", "./...")))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return graph
		} else if err != nil {
			t.Fatalf("reading the output of go list: %v", err)
		}
		graph[p.ImportPath] = p.Imports
	}
}

// A module is one path and version, as `go mod edit -json` prints it.
type module struct{ Path, Version string }

type replacement struct{ Old, New module }

// TestReplaceLines checks that go.mod uses replace only for the staging modules of
// Kubernetes.
func TestReplaceLines(t *testing.T) {
	var mod struct {
		Require []module
		Replace []replacement
	}
	if err := json.Unmarshal(goCommand(t, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatalf("reading go.mod: %v", err)
	}
	if bad := badReplacements(mod.Require, mod.Replace); len(bad) > 0 {
		t.Errorf("go.mod:\n  %s\n  why: no other module that imports this one gets the replaced module; the staging modules of Kubernetes\n"+
			"  are the exception because k8s.io/kubernetes requires them at v0.0.0\n  remedy: remove the line, or fix it upstream",
			strings.Join(bad, "\n  "))
	}
}

// badReplacements finds replace lines that do anything but pin a staging module
// of Kubernetes to the version that belongs to the required k8s.io/kubernetes.
func badReplacements(require []module, replace []replacement) (bad []string) {
	var staging string
	for _, m := range require {
		if m.Path == "k8s.io/kubernetes" {
			staging = "v0" + strings.TrimPrefix(m.Version, "v1")
		}
	}
	for _, r := range replace {
		switch {
		case !strings.HasPrefix(r.Old.Path, "k8s.io/"):
			bad = append(bad, fmt.Sprintf("replaces %s, which is no staging module of Kubernetes", r.Old.Path))
		case r.New.Path != r.Old.Path:
			bad = append(bad, fmt.Sprintf("replaces %s by another module, %s", r.Old.Path, r.New.Path))
		case r.Old.Version != "" || r.New.Version != staging:
			bad = append(bad, fmt.Sprintf("pins %s to %s; k8s.io/kubernetes wants %s", r.Old.Path, r.New.Version, staging))
		}
	}
	return bad
}

func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	// The cache of test results does not see the files that a child process reads.
	// This call makes it depend on go.mod.
	if _, err := os.Stat("go.mod"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}
