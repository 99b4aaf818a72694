package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The examples show what each rule rejects and what it allows. files maps paths to
// file contents. A content without a package clause gets one and a package comment.
type example struct {
	name  string
	rule  func(*tree) []violation
	files map[string]string
	want  []string // prefixes of "where: what" for each violation; none if the example is allowed
}

// ours is the prefix of the import path of every package of the product.
const ours = "github.com/atoll-dev/atoll/"

var examples = []example{
	{
		name: "a package below a room belongs to it", rule: findWithoutRoom,
		files: map[string]string{"apiserver/x.go": "", "api/fleet/v1alpha1/x.go": "", "x.go": "", "bench/x.go": "", "infra/testproviders/demo/x.go": ""},
	},
	{
		name: "values are read for the object whose spec takes them", rule: findReadsWithoutReader,
		files: map[string]string{
			"infra/a.go":            "package infra\ntype Reader struct{}\ntype ValueReader interface { Secret(ctx int, of Reader, name string) }",
			"infra/access/a.go":     "package access\nimport \"" + ours + "infra\"\ntype V struct{}\nfunc (V) Secret(ctx int, of infra.Reader, name string) {}\nfunc (V) list() {}\nfunc NewV() V { return V{} }",
			"infra/enginetest/a.go": "package enginetest\nimport \"" + ours + "infra\"\ntype V struct{}\nfunc (V) Secret(ctx int, of infra.Reader, name string) {}",
		},
	},
	{
		name: "values are not read for no one, and nowhere else", rule: findReadsWithoutReader,
		files: map[string]string{
			"infra/a.go":               "package infra\ntype Reader struct{}\ntype ValueReader interface { Secret(ctx int, name string) }",
			"infra/access/a.go":        "package access\ntype V struct{}\nfunc (V) Secret(ctx int, name string) {}",
			"infra/apistore/a.go":      "package apistore\nimport \"" + ours + "infra\"\ntype V struct{}\nfunc (V) Secret(of infra.Reader) {}",
			"infra/apistore/b_test.go": "package apistore\nimport \"" + ours + "infra\"\ntype W struct{}\nfunc (W) Secret(of infra.Reader) {}",
		},
		want: []string{
			"infra/a.go:3: ValueReader has a method without a Reader",
			"infra/access/a.go:3: Secret takes no infra.Reader",
			"infra/apistore/a.go:4: Secret takes an infra.Reader, as only infra/access does",
		},
	},
	{
		name: "a new top-level package", rule: findWithoutRoom,
		files: map[string]string{"cache/x.go": ""},
		want:  []string{"cache: belongs to no room"},
	},
	{
		name: "importing a lower floor is allowed", rule: findUpward,
		files: map[string]string{"kv/mvcc/x.go": importing(ours + "kv"), "server/x.go": importing(ours + "fleet/syncer")},
	},
	{
		name: "importing a higher floor is not", rule: findUpward,
		files: map[string]string{"kv/mvcc/x.go": importing(ours + "kv/etcd")},
		want:  []string{"kv/mvcc/x.go: kv/mvcc (floor 1) imports kv/etcd (floor 2)"},
	},
	{
		name: "importing a higher floor is not allowed in tests either", rule: findUpward,
		files: map[string]string{"fleet/x.go": "", "fleet/x_test.go": importing(ours + "server")},
		want:  []string{"fleet/x_test.go: fleet (floor 2) imports server (floor 3)"},
	},
	{
		name: "a step down on one floor is allowed, and a step up for tests", rule: findUpward,
		files: map[string]string{"infra/render/x.go": importing(ours + "infra/change"), "infra/change/x_test.go": importing(ours + "infra/render")},
	},
	{
		name: "a step up is not", rule: findUpward,
		files: map[string]string{"infra/change/x.go": importing(ours + "infra/render")},
		want:  []string{"infra/change/x.go: infra/change (floor 1, step 0) imports infra/render (step 1)"},
	},
	{
		name: "rooms on one step do not import each other, those on a higher one may", rule: findSiblings,
		files: map[string]string{"infra/render/x.go": importing(ours+"infra/planstore", ours+"infra/change")},
		want:  []string{"infra/render/x.go: infra/render and infra/planstore are both on floor 1"},
	},
	{
		name: "engines do not import each other", rule: findSiblings,
		files: map[string]string{"kv/mvcc/x.go": importing(ours + "kv/sqlite")},
		want:  []string{"kv/mvcc/x.go: kv/mvcc and kv/sqlite are both on floor 1"},
	},
	{
		name: "a parent does not import its child", rule: findSiblings,
		files: map[string]string{"fleet/x.go": importing(ours + "fleet/syncer")},
		want:  []string{"fleet/x.go: fleet and fleet/syncer are both on floor 2"},
	},
	{
		name: "a child may import its parent, a test its neighbour", rule: findSiblings,
		files: map[string]string{
			"fleet/syncer/x.go":   importing(ours + "fleet"),
			"kv/kvtest/x.go":      importing(ours + "kv"),
			"kv/mvcc/x_test.go":   importing(ours + "kv/sqlite"),
			"apiserver/x_test.go": importing(ours + "kv/etcd"),
		},
	},
	{
		name: "siblings import a shared room, which imports none of them", rule: findSiblings,
		files: map[string]string{
			"fleet/x.go":                importing(ours + "controllers"),
			"infra/plancontroller/x.go": importing(ours + "controllers"),
			"controllers/x.go":          importing(ours + "fleet"),
		},
		want: []string{"controllers/x.go: controllers and fleet are both on floor 2"},
	},
	{
		name: "the product does not import the playground", rule: findOutside,
		files: map[string]string{"server/x_test.go": importing(ours + "playground/member"), "test/x.go": importing(ours + "playground/member"), "infra/x.go": importing(ours + "infra/testproviders/world")},
		want:  []string{"infra/x.go: imports infra/testproviders/world", "server/x_test.go: imports playground/member"},
	},
	{
		name: "a test may start a database, the product may not", rule: findOutside,
		files: map[string]string{
			"kv/postgres/x_test.go": importing(ours + "playground/postgres"),
			"kv/postgres/x.go":      importing(ours + "playground/postgres"),
		},
		want: []string{"kv/postgres/x.go: imports playground/postgres"},
	},
	{
		name: "Kubernetes, SQL and cobra in their rooms", rule: findHeavy,
		files: map[string]string{
			"apiserver/x.go": importing("k8s.io/kubernetes/pkg/controlplane", "k8s.io/apiserver/pkg/server"),
			"kv/sqlite/x.go": importing("github.com/ncruces/go-sqlite3"),
			"cli/x.go":       importing("github.com/spf13/cobra"),
			"bench/x.go":     importing("k8s.io/kubernetes/cmd/kube-apiserver/app"),
			"fleet/x.go":     importing("k8s.io/apimachinery/pkg/runtime"),
		},
	},
	{
		name: "Kubernetes, SQL and cobra in other rooms", rule: findHeavy,
		files: map[string]string{
			"fleet/x.go":       importing("k8s.io/kubernetes/pkg/apis/core"),
			"kv/mvcc/x.go":     importing("database/sql"),
			"server/x_test.go": importing("github.com/spf13/cobra"),
		},
		want: []string{
			"fleet/x.go: imports k8s.io/kubernetes/pkg/apis/core, which only apiserver",
			"kv/mvcc/x.go: imports database/sql, which only kv/sqlite",
			"server/x_test.go: imports github.com/spf13/cobra, which only cli",
		},
	},
	{
		name: "etcd's server is for tests", rule: findTestOnlyLibraries,
		files: map[string]string{
			"kv/etcd/x_test.go": importing("go.etcd.io/etcd/server/v3/embed"),
			"kv/etcd/x.go":      importing("go.etcd.io/etcd/server/v3/embed", "go.etcd.io/etcd/client/v3"),
		},
		want: []string{"kv/etcd/x.go: imports go.etcd.io/etcd/server/v3/embed"},
	},
	{
		name: "low floors have no network", rule: findLowFloorIO,
		files: map[string]string{
			"kv/x.go":              importing("net/http"),
			"fleet/placement/x.go": importing("k8s.io/client-go/kubernetes"),
			"api/x.go":             importing("net/url"),
			"infra/plugin/x.go":    importing("google.golang.org/grpc"),
		},
		want: []string{"fleet/placement/x.go: on floor 1 imports k8s.io/client-go/kubernetes", "kv/x.go: on floor 0 imports net/http"},
	},
	{
		name: "a decision reads no clock", rule: findImpure,
		files: map[string]string{
			"fleet/placement/a.go": "package placement\nimport \"time\"\nvar _ = time.Now()",
			"fleet/placement/b.go": "package placement\nimport \"time\"\nfunc age(at, now time.Time) time.Duration { return now.Sub(at) }",
			"fleet/placement/c.go": importing("context"),
		},
		want: []string{"fleet/placement/a.go:3: calls time.Now", "fleet/placement/c.go: imports context"},
	},
	{
		name: "vague names", rule: findVague,
		files: map[string]string{"fleet/util/x.go": "", "playground/x.go": "package common", "kv/x.go": ""},
		want:  []string{`fleet/util: is called "util"`, `playground: is called "common"`},
	},
	{
		name: "folder depth", rule: findDeep,
		files: map[string]string{"fleet/syncer/down/x.go": "", "api/fleet/v1alpha1/x.go": "", "api/fleet/internal/x.go": "", "kv/mvcc/x.go": "",
			"infra/testproviders/demo/x.go": "", "infra/testproviders/demo/far/down/x.go": ""},
		want: []string{"api/fleet/internal: is 3 levels", "fleet/syncer/down: is 3 levels", "infra/testproviders/demo/far/down: is 3 levels"},
	},
	{
		name: "package comments", rule: findUndocumented,
		files: map[string]string{
			"kv/a.go": "// Package kv is one.\npackage kv", "kv/b.go": "package kv",
			"api/a.go": "package api", "api/a_test.go": "// Package api in a test does not count.\npackage api",
			"cli/a.go": "// Package cli is one.\npackage cli", "cli/b.go": "// Package cli is another.\npackage cli",
			"fleet/a.go":     "// The fleet.\npackage fleet",
			"test/a_test.go": "// Whole-system tests.\npackage test",
		},
		want: []string{"api: has no package comment", "cli: has package comments in a.go, b.go", "fleet/a.go: the package comment does not start"},
	},
	{
		name: "init", rule: findInit,
		files: map[string]string{
			"kv/a.go":      "package kv\nfunc init() {}",
			"kv/b.go":      "package kv\ntype t int\nfunc (t) init() {}",
			"kv/c_test.go": "package kv\nfunc init() {}",
			"kv/d.go":      "// Code generated by a tool. DO NOT EDIT.\npackage kv\nfunc init() {}",
			"bench/a.go":   "package main\nfunc init() {}",
		},
		want: []string{"kv/a.go:2: has an init function"},
	},
	{
		name: "flags", rule: findFlags,
		files: map[string]string{
			"kv/a.go":     "package kv\nimport \"flag\"\nfunc f() { flag.NewFlagSet(\"klog\", flag.ContinueOnError); flag.Int(\"v\", 0, \"\") }",
			"server/a.go": "package server\nimport \"github.com/spf13/pflag\"\nfunc f(fs *pflag.FlagSet) { fs.AddFlagSet(pflag.CommandLine) }",
		},
		want: []string{"kv/a.go:3: uses flag.Int, which is", "server/a.go:3: uses pflag.CommandLine, which is"},
	},
	{
		name: "tables, errors and embedded files are not state", rule: findMutable,
		files: map[string]string{"kv/a.go": `package kv
import ("embed"; "errors"; "regexp"; "k8s.io/apimachinery/pkg/runtime/schema")
var ErrGone = errors.New("gone")
var word = regexp.MustCompile("a+")
//go:embed crds
var crds embed.FS
var _ error = ErrGone
var order = []string{"a", "b"}
var kinds = map[schema.GroupKind]kind{{Group: "apps", Kind: "Deployment"}: {replicas: func() int { return 0 }, next: nil}}
var version = schema.GroupVersion{Group: "fleet.atoll.dev", Version: "v1alpha1"}
var magic = []byte("atoll")
var queries = build()
func build() (q [2]string) { add := func(i int) { q[i] = prefix("a") }; add(0); return q }
func prefix(s string) string { return strings.ToUpper(s) + fmt.Sprint(1) }
func f() { order := 1; order++; _ = order; local := map[string]int{}; local["a"] = 1 }
type r struct{ kinds int }
func (kinds *r) g() { kinds.kinds = 2 }
`},
	},
	{
		name: "state", rule: findMutable,
		files: map[string]string{
			"kv/a.go": `package kv
import ("sync"; "time")
var mu sync.Mutex
var cache = map[string]int{}
var table = []int{1}
var once = &sync.Once{}
var started = time.Now()
var clock = time.Now
var level = 1
var feed = make(chan int)
var home = find()
func find() string { return os.Getenv("HOME") }
`,
			"kv/b.go": `package kv
import "k8s.io/client-go/rest"
func f() { table[0] = 2; rest.DefaultUserAgent = "x" }
func g() *int { return &level }
`,
			"kv/b_test.go": "package kv\nfunc h() { clock = nil }",
		},
		want: []string{
			"kv/a.go:10: var feed is the result of calling make",
			"kv/a.go:11: var home is the result of calling find",
			"kv/a.go:3: var mu has no value",
			"kv/a.go:4: var cache is an empty map",
			"kv/a.go:6: var once is a sync.Once",
			"kv/a.go:7: var started is the result of calling time.Now",
			"kv/b.go:3: changes rest.DefaultUserAgent, a variable of another package",
			"kv/b.go:3: changes the package-level var table",
			"kv/b.go:4: changes the package-level var level",
			"kv/b_test.go:2: changes the package-level var clock",
		},
	},
}

// TestRulesFindViolations runs each rule on small example repositories.
func TestRulesFindViolations(t *testing.T) {
	shown := map[string]bool{}
	for _, ex := range examples {
		t.Run(strings.ReplaceAll(ex.name, " ", "-"), func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range ex.files {
				if !strings.HasPrefix(text, "package ") && !strings.HasPrefix(text, "//") {
					text = "// Package x is an example.\npackage x\n" + text
				}
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			house, err := parseTree(root, strings.TrimSuffix(ours, "/"))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range ex.rule(house) {
				got = append(got, b.where+": "+b.what)
			}
			slices.Sort(got)
			if !slices.EqualFunc(got, ex.want, strings.HasPrefix) {
				t.Errorf("found:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(ex.want, "\n  "))
			}
		})
		if len(ex.want) > 0 {
			shown[fmt.Sprintf("%p", ex.rule)] = true
		}
	}
	for _, r := range rules {
		if !shown[fmt.Sprintf("%p", r.find)] {
			t.Errorf("no example violates %q", r.name)
		}
	}
}

func TestBadReplaceLinesAreFound(t *testing.T) {
	require := []module{{"k8s.io/kubernetes", "v1.36.3"}}
	good := replacement{module{Path: "k8s.io/api"}, module{"k8s.io/api", "v0.36.3"}}
	for _, tc := range []struct {
		name string
		line replacement
		want string
	}{
		{"a fork", replacement{module{Path: "github.com/spf13/cobra"}, module{"github.com/me/cobra", "v1.0.0"}}, "no staging module"},
		{"a forked staging module", replacement{module{Path: "k8s.io/api"}, module{"github.com/me/api", "v0.36.3"}}, "by another module"},
		{"a folder", replacement{module{Path: "k8s.io/api"}, module{Path: "../api"}}, "by another module"},
		{"another version", replacement{module{Path: "k8s.io/api"}, module{"k8s.io/api", "v0.36.2"}}, "wants v0.36.3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := badReplacements(require, []replacement{good, tc.line})
			if len(bad) != 1 || !strings.Contains(bad[0], tc.want) {
				t.Errorf("found %q, want one that contains %q", bad, tc.want)
			}
		})
	}
}

func TestReachFindsTheShortestChain(t *testing.T) {
	imports := map[string][]string{"a": {"b", "c"}, "b": {"c"}, "c": {"k8s.io/kubernetes/pkg/x"}}
	if got, want := reach(imports, "a", "k8s.io/kubernetes"), []string{"a", "c", "k8s.io/kubernetes/pkg/x"}; !slices.Equal(got, want) {
		t.Errorf("chain %q, want %q", got, want)
	}
	if got := reach(imports, "a", "k8s.io/apiserver"); got != nil {
		t.Errorf("chain %q, want none", got)
	}
}

func TestUndocumentedDependenciesAreFound(t *testing.T) {
	root := fstest.MapFS{
		"kv/x.go":                        {Data: []byte("package kv\n" + importing("fmt", "example.com/a/sub", "example.com/b", "example.com/c/v2", "k8s.io/api/core/v1"))},
		"infra/testproviders/world/x.go": {Data: []byte("package world\n" + importing("example.com/d", "example.com/f"))},
	}
	house, err := parseTree(root, strings.TrimSuffix(ours, "/"))
	if err != nil {
		t.Fatal(err)
	}
	require := []module{{"example.com/a", "v1.0.0"}, {"example.com/b", "v1.1.0"}, {"example.com/c", "v1.0.0"}, {"example.com/c/v2", "v2.0.0"}, {"example.com/d", "v1.0.0"}, {"example.com/f", "v1.0.0"}, {"k8s.io/api", "v0.36.3"}}
	pinned := []replacement{{module{Path: "k8s.io/api"}, module{"k8s.io/api", "v0.36.3"}}}
	page := "| module | version | licence |\n| `example.com/b` | v1.0.0 | MIT |\n| `example.com/c/v2` | v2.0.0 | MIT |\n| `example.com/d` | v1.0.0 | MIT |\n| `example.com/e` | v1.0.0 | MIT |\n"
	want := []string{
		"example.com/a v1.0.0 is imported and has no row",
		"example.com/b is v1.1.0 in go.mod and v1.0.0 here",
		"example.com/d has a row and nothing imports it",
		"example.com/e has a row and is not in go.mod",
	}
	if got := undocumented(house, require, pinned, page); !slices.Equal(got, want) {
		t.Errorf("found:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// importing returns the import declarations of the paths.
func importing(paths ...string) string {
	var b strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&b, "import _ %q\n", p)
	}
	return b.String()
}
