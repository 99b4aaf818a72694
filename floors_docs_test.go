package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dependencyRow matches a dependency's row in docs/dependencies.md: | `module` | version | …
var dependencyRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (v[^ ]+) \\| [^ ]")

// TestDependenciesAreDocumented compares the imports of the sources, go.mod and
// docs/dependencies.md.
func TestDependenciesAreDocumented(t *testing.T) {
	var mod struct {
		Require []module
		Replace []replacement
	}
	if err := json.Unmarshal(goCommand(t, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatalf("reading go.mod: %v", err)
	}
	page, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	if bad := undocumented(readTree(t), mod.Require, mod.Replace, string(page)); len(bad) > 0 {
		t.Errorf("docs/dependencies.md:\n  %s\n  why: a new dependency concerns everyone who runs or audits Atoll\n"+
			"  remedy: add a row with version, licence, reason and rejected alternatives, or do without it", strings.Join(bad, "\n  "))
	}
}

// undocumented finds modules that a source file imports without a row for that
// version on the page, and rows that are no longer needed. The pinned staging
// modules are parts of Kubernetes and need no row.
func undocumented(house *tree, require []module, pinned []replacement, page string) (bad []string) {
	documented := map[string]string{}
	for _, row := range dependencyRow.FindAllStringSubmatch(page, -1) {
		documented[row[1]] = row[2]
	}
	imported := map[string]bool{}
	for _, p := range house.packages {
		if within(p.dir, separateModule) {
			continue // has a go.mod of its own
		}
		for _, f := range p.files {
			for _, imp := range f.imports {
				imported[moduleOf(imp, require).Path] = true
			}
		}
	}
	for _, m := range require {
		part := slices.ContainsFunc(pinned, func(r replacement) bool { return r.Old.Path == m.Path })
		switch version := documented[m.Path]; {
		case imported[m.Path] && version == "" && part:
		case imported[m.Path] && version == "":
			bad = append(bad, fmt.Sprintf("%s %s is imported and has no row", m.Path, m.Version))
		case imported[m.Path] && version != m.Version:
			bad = append(bad, fmt.Sprintf("%s is %s in go.mod and %s here", m.Path, m.Version, version))
		}
		if !imported[m.Path] && documented[m.Path] != "" {
			bad = append(bad, m.Path+" has a row and nothing imports it")
		}
		delete(documented, m.Path)
	}
	for _, stale := range slices.Sorted(maps.Keys(documented)) {
		bad = append(bad, stale+" has a row and is not in go.mod")
	}
	return bad
}

// moduleOf returns the required module that an import path belongs to: the one with
// the longest path. The zero module stands for the standard library and this module.
func moduleOf(importPath string, require []module) (best module) {
	for _, m := range require {
		if within(importPath, m.Path) && len(m.Path) > len(best.Path) {
			best = m
		}
	}
	return best
}

// TestArchitecturePageShowsEveryRoom checks that docs/architecture.md lists all rooms.
func TestArchitecturePageShowsEveryRoom(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := roomsShown(string(page))
	for _, p := range readTree(t).product() {
		room, ok := roomOf(p.dir)
		if room == "." {
			room = "main.go"
		}
		if ok && !slices.Contains(shown, room) {
			t.Errorf("docs/architecture.md does not show %s\n  why: a reader looks for a room there first\n"+
				"  remedy: add it to its floor, with its purpose", room)
		}
	}
}

// roomsShown returns the rooms in the diagram of the floors: the column after the
// floors' names.
func roomsShown(page string) (shown []string) {
	_, rest, _ := strings.Cut(page, "```\n")
	drawing, _, _ := strings.Cut(rest, "```")
	for line := range strings.Lines(drawing) {
		if len(line) < 10 || strings.HasPrefix(line, "outside") {
			continue
		}
		for name := range strings.SplitSeq(line[10:], " ") {
			shown = append(shown, strings.TrimSuffix(strings.TrimSuffix(name, ","), "/…"))
			if !strings.HasSuffix(name, ",") {
				break
			}
		}
	}
	return shown
}
