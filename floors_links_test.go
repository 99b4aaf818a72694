package main_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// link matches [text](target) in a page and captures the target without its anchor.
var link = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)

// TestDocsLinksExist checks every link from one page to another, or to a source
// file.
func TestDocsLinksExist(t *testing.T) {
	if dead := deadLinks(t, os.DirFS(".")); len(dead) > 0 {
		t.Errorf("dead links:\n  %s\n  why: a reader who follows one is lost\n  remedy: write the page, or name the one that has it now",
			strings.Join(dead, "\n  "))
	}
}

func deadLinks(t *testing.T, root fs.FS) (dead []string) {
	t.Helper()
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(name, ".") || name == "bin"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		page, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		for _, match := range link.FindAllStringSubmatch(string(page), -1) {
			target := match[1]
			if strings.Contains(target, ":") {
				continue // an external URL
			}
			if _, err := fs.Stat(root, path.Join(path.Dir(name), target)); err != nil {
				dead = append(dead, fmt.Sprintf("%s links to %s", name, target))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dead
}

func TestDeadLinksAreFound(t *testing.T) {
	root := fstest.MapFS{
		"README.md":    {Data: []byte("[a](docs/a.md) [gone](docs/gone.md#part) [web](https://atoll.dev) [part](#part)")},
		"docs/a.md":    {Data: []byte("[up](../README.md#top) [code](../kv/) [gone](b.md)")},
		"kv/DESIGN.md": {Data: []byte("[contract](kv.go)")},
		"kv/kv.go":     {},
	}
	want := []string{"README.md links to docs/gone.md", "docs/a.md links to b.md"}
	if got := deadLinks(t, root); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
