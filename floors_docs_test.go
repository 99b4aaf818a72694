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

// A dependency has one row in docs/dependencies.md: | `module` | version | …
var dependencyRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (v[^ ]+) \\| [^ ]")

// TestDependenciesAreExplained compares what the sources import, go.mod and
// docs/dependencies.md.
func TestDependenciesAreExplained(t *testing.T) {
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
	if bad := unexplained(readTree(t), mod.Require, mod.Replace, string(page)); len(bad) > 0 {
		t.Errorf("docs/dependencies.md:\n  %s\n  why: whoever adds a dependency decides for all who run and audit Atoll\n"+
			"  remedy: give it a row with version, licence, reason and what was rejected; or do without it", strings.Join(bad, "\n  "))
	}
}

// unexplained finds modules that a source file imports and the page does not
// explain at that version, and rows of the page that nothing needs any more.
// The pinned staging modules are parts of Kubernetes and need no row.
func unexplained(house *tree, require []module, pinned []replacement, page string) (bad []string) {
	explained := map[string]string{}
	for _, row := range dependencyRow.FindAllStringSubmatch(page, -1) {
		explained[row[1]] = row[2]
	}
	imported := map[string]bool{}
	for _, p := range house.packages {
		if within(p.dir, apart) {
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
		switch version := explained[m.Path]; {
		case imported[m.Path] && version == "" && part:
		case imported[m.Path] && version == "":
			bad = append(bad, fmt.Sprintf("%s %s is imported and has no row", m.Path, m.Version))
		case imported[m.Path] && version != m.Version:
			bad = append(bad, fmt.Sprintf("%s is %s in go.mod and %s here", m.Path, m.Version, version))
		}
		if !imported[m.Path] && explained[m.Path] != "" {
			bad = append(bad, m.Path+" has a row and nothing imports it")
		}
		delete(explained, m.Path)
	}
	for _, stale := range slices.Sorted(maps.Keys(explained)) {
		bad = append(bad, stale+" has a row and is not in go.mod")
	}
	return bad
}

// moduleOf gives the required module that an import path belongs to: the one
// with the longest path. The zero module is the standard library, or ourselves.
func moduleOf(importPath string, require []module) (best module) {
	for _, m := range require {
		if within(importPath, m.Path) && len(m.Path) > len(best.Path) {
			best = m
		}
	}
	return best
}

// TestEveryRoomIsDrawn holds docs/architecture.md to the rooms that exist.
func TestEveryRoomIsDrawn(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := roomsDrawn(string(page))
	for _, p := range readTree(t).product() {
		room, ok := roomOf(p.dir)
		if room == "." {
			room = "main.go"
		}
		if ok && !slices.Contains(drawn, room) {
			t.Errorf("docs/architecture.md does not draw %s\n  why: a reader looks for a room there first\n"+
				"  remedy: draw it on its floor, with what it is for", room)
		}
	}
}

// roomsDrawn reads the names in the drawing of the floors: its first column
// after that of the floors.
func roomsDrawn(page string) (drawn []string) {
	_, rest, _ := strings.Cut(page, "```\n")
	drawing, _, _ := strings.Cut(rest, "```")
	for line := range strings.Lines(drawing) {
		if len(line) < 10 || strings.HasPrefix(line, "outside") {
			continue
		}
		for name := range strings.SplitSeq(line[10:], " ") {
			drawn = append(drawn, strings.TrimSuffix(strings.TrimSuffix(name, ","), "/…"))
			if !strings.HasSuffix(name, ",") {
				break
			}
		}
	}
	return drawn
}
