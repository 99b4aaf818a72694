// The law of the house: which package may know which, where heavy libraries
// live, and what no package may do. docs/architecture.md draws the house; this
// file holds it to the drawing, on the real sources, in a few seconds:
//
//	make floors
package main_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// rooms names the floor of every room of the product. A package belongs to the
// room with the longest matching path, so a new package below apiserver/ needs
// no entry, and a new room does: that is the moment to think about its floor.
var rooms = map[string]int{
	// Floor 0: nouns, no I/O.
	"api":             0,
	"kv":              0,
	"kv/kvtest":       0,
	"infra/contract":  0,
	"infra/tfplugin5": 0,
	"infra/tfplugin6": 0,
	// Floor 1: engines and pure decisions. No Kubernetes client, no listener.
	"kv/mvcc":         1,
	"kv/sqlite":       1,
	"kv/postgres":     1,
	"fleet/schema":    1,
	"fleet/interpret": 1,
	"fleet/override":  1,
	"fleet/placement": 1,
	"infra/schema":    1,
	"infra/graph":     1,
	"infra/reference": 1,
	"infra/plan":      1,
	"infra/install":   1,
	"infra/provider":  1,
	"infra/adopt":     1,
	// Floor 2: adapters, each to one technology.
	"kv/etcd":      2,
	"kv/partition": 2,
	"kv/inspect":   2,
	"kv/transfer":  2,
	"apiserver":    2,
	"coordination": 2,
	"aggregate":    2,
	"fleet":        2,
	"infra":        2,
	"console":      2,
	// Floor 3: composition.
	"server": 3,
	// Floor 4: the doors. Commands call what is below them; nothing calls a command.
	"cli": 4,
	".":   5,
}

// outside lists the folders that are not the product. They may import
// anything; the product may not import them.
var outside = []string{"playground", "bench", "test", "deploy", "docs", "examples", apart}

// apart is of a module of its own among the rooms: its levels count from its own root.
const apart = "infra/testproviders"

// stages are what tests inside the product may stand on all the same: they
// run programs of others or make keys, and import nothing of ours.
var stages = []string{"playground/postgres", "playground/pgproxy", "playground/keys", "test/fakeapi"}

// pure lists the rooms that only compute: from data to a decision, the same
// every time.
var pure = []string{"fleet/schema", "fleet/interpret", "fleet/override", "fleet/placement", "infra/schema", "infra/graph", "infra/reference"}

// homes says where a heavy library lives. Nobody else names it, so a change
// anywhere else compiles and tests in seconds.
var homes = []struct {
	library string
	rooms   []string
}{
	{"k8s.io/kubernetes", []string{"apiserver", "aggregate"}},
	{"k8s.io/apiserver", []string{"apiserver", "aggregate"}},
	{"database/sql", []string{"kv/sqlite", "kv/postgres"}},
	{"github.com/ncruces/go-sqlite3", []string{"kv/sqlite"}},
	{"github.com/mattn/go-sqlite3", []string{"kv/sqlite"}},
	{"modernc.org/sqlite", []string{"kv/sqlite"}},
	{"github.com/jackc/pgx", []string{"kv/postgres"}},
	{"github.com/lib/pq", []string{"kv/postgres"}},
	{"github.com/hashicorp/go-plugin", []string{"infra/provider"}},
	{"github.com/hashicorp/terraform-plugin-go", []string{"infra/provider"}},
	{"github.com/spf13/cobra", []string{"cli"}},
}

// strangers are libraries that the product never contains: they are the
// referee and the stage, and a bug in them must not become ours.
var strangers = []string{"go.etcd.io/etcd/server/v3", "sigs.k8s.io/kwok"}

// vagueNames say nothing about what is inside, so anything ends up inside.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "base", "types", "misc", "pkg"}

// A law is one rule. What it finds is reported with why and remedy, because a
// rule whose reason is lost gets an exception instead of an answer.
type law struct {
	name, why, remedy string
	find              func(*tree) []breach
}

// A breach is one place that breaks a law.
type breach struct{ where, what string }

var laws = []law{
	{
		name:   "every package has a room",
		why:    "a package that stands on no floor may import anything, and soon everything does",
		remedy: "move it into a room of docs/architecture.md, or give it one there and in floors_test.go",
		find:   findHomeless,
	},
	{
		name:   "imports point down",
		why:    "the lower floors stay small, quick to test and usable without what stands on them",
		remedy: "declare the interface you need in the lower package and let server/ pass the implementation in",
		find:   findUpward,
	},
	{
		name:   "siblings on one floor do not import each other",
		why:    "two adapters that know each other can only be changed, tested and replaced together; a child may import its parent, no more",
		remedy: "move the shared noun down a floor, or have the floor above pass one to the other",
		find:   findSiblings,
	},
	{
		name:   "the product does not import what is outside",
		why:    "playground/, bench/ and test/ import anything they like: what they carry would ship",
		remedy: "move the part that the product needs into a room, or the test into test/",
		find:   findOutside,
	},
	{
		name:   "one home for each heavy library",
		why:    "Kubernetes takes minutes to compile and a SQL dialect leaks; behind one door neither is anybody else's business",
		remedy: "let the home of the library expose what you need in the nouns of floor 0",
		find:   findHeavy,
	},
	{
		name:   "the product contains neither referee nor stage",
		why:    "etcd's server is what the keyspace is compared with and kwok what plays the nodes: a product that contains them proves nothing",
		remedy: "use them in _test.go files, playground/, bench/ or test/",
		find:   findStrangers,
	},
	{
		name:   "floors 0 and 1 know no Kubernetes client and no network",
		why:    "nouns, engines and decisions must run in a test without a server, and under any adapter",
		remedy: "take data in and give data back; the caller on floor 2 does the talking",
		find:   findLowTalkers,
	},
	{
		name:   "what decides takes no client, no clock and no context",
		why:    "a decision that depends on more than its arguments can be neither previewed nor explained",
		remedy: "pass the time, the objects and the previous decision in as data",
		find:   findImpure,
	},
	{
		name:   "names say what is inside",
		why:    "a package called util has no reason to refuse anything",
		remedy: "name it after the noun it is about",
		find:   findVague,
	},
	{
		name:   "two levels below the root at most",
		why:    "a reader should see the whole house from the root; only api/<group>/<version> goes deeper",
		remedy: "flatten it: a noun, and at most one noun below it",
		find:   findDeep,
	},
	{
		name:   "every package is documented exactly once",
		why:    "without a comment nobody knows what a package is for; with two, one of them is wrong",
		remedy: "keep one package comment, in the file a reader opens first, starting with \"Package <name>\"",
		find:   findUndocumented,
	},
	{
		name:   "no init functions",
		why:    "importing a package must do nothing: many servers live in one process, and tests start them in any order",
		remedy: "do it in a constructor and hang the result off its value",
		find:   findInit,
	},
	{
		name:   "no process-wide flags",
		why:    "what a package registers globally, every program that links it shows to its users",
		remedy: "take a Config; cli/ turns flags into it",
		find:   findFlags,
	},
	{
		name:   "no package-level mutable state",
		why:    "two servers in one process would share it, and a test could leave it changed for the next",
		remedy: "hang it off a value. A package-level var may only be an error, an embedded file, or a table spelled out in its declaration that no code writes to",
		find:   findMutable,
	},
}

// TestFloors holds the repository to every law.
func TestFloors(t *testing.T) {
	house := readTree(t)
	if len(house.packages) < 2 {
		t.Fatalf("found %d packages: the test does not see the repository", len(house.packages))
	}
	for _, l := range laws {
		t.Run(strings.ReplaceAll(l.name, " ", "-"), func(t *testing.T) {
			l.report(t, l.find(house))
		})
	}
}

func (l law) report(t *testing.T, breaches []breach) {
	t.Helper()
	if len(breaches) == 0 {
		return
	}
	var places strings.Builder
	for _, b := range breaches {
		fmt.Fprintf(&places, "\n  %s: %s", b.where, b.what)
	}
	t.Errorf("%s%s\n  why: %s\n  remedy: %s", l.name, places.String(), l.why, l.remedy)
}

func findHomeless(house *tree) (found []breach) {
	for _, p := range house.product() {
		if _, ok := roomOf(p.dir); !ok {
			found = append(found, breach{p.dir, "is in no room of the house"})
		}
	}
	return found
}

func findUpward(house *tree) (found []breach) {
	for _, e := range house.productImports() {
		if floorOf(e.to) > floorOf(e.from) {
			found = append(found, breach{e.file.path, fmt.Sprintf("%s (floor %d) imports %s (floor %d)",
				e.from, floorOf(e.from), e.to, floorOf(e.to))})
		}
	}
	return found
}

// findSiblings leaves test files alone: the tests of an engine want a database,
// and those of an adapter an engine. They compile into no product.
func findSiblings(house *tree) (found []breach) {
	for _, e := range house.productImports() {
		child := strings.HasPrefix(e.from, e.to+"/")
		if !e.file.test && e.from != e.to && floorOf(e.to) == floorOf(e.from) && !child {
			found = append(found, breach{e.file.path, fmt.Sprintf("%s and %s both stand on floor %d",
				e.from, e.to, floorOf(e.to))})
		}
	}
	return found
}

func findOutside(house *tree) (found []breach) {
	house.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			if dir, ok := house.dirOf(imp); ok && isOutside(dir) && !(f.test && slices.Contains(stages, dir)) {
				found = append(found, breach{f.path, "imports " + dir})
			}
		}
	})
	return found
}

func findHeavy(house *tree) (found []breach) {
	house.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			for _, h := range homes {
				if within(imp, h.library) && !slices.ContainsFunc(h.rooms, func(r string) bool { return within(p.dir, r) }) {
					found = append(found, breach{f.path, fmt.Sprintf("imports %s, whose home is %s",
						imp, strings.Join(h.rooms, " and "))})
				}
			}
		}
	})
	return found
}

func findStrangers(house *tree) (found []breach) {
	house.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			if !f.test && slices.ContainsFunc(strangers, func(s string) bool { return within(imp, s) }) {
				found = append(found, breach{f.path, "imports " + imp})
			}
		}
	})
	return found
}

func findLowTalkers(house *tree) (found []breach) {
	talk := []string{"net", "k8s.io/client-go", "google.golang.org/grpc", "sigs.k8s.io/controller-runtime"}
	house.eachProductFile(func(p *pkg, f *source) {
		// A provider is a child process that is spoken to over gRPC; nobody
		// can connect to it from outside.
		// Its files come from a registry. A database is what an engine stands on, wherever it runs.
		if f.test || floorOf(p.dir) > 1 || within(p.dir, "infra/provider") || within(p.dir, "infra/install") || within(p.dir, "kv/postgres") {
			return
		}
		for _, imp := range f.imports {
			harmless := imp == "net/netip" || imp == "net/url"
			if !harmless && slices.ContainsFunc(talk, func(lib string) bool { return within(imp, lib) }) {
				found = append(found, breach{f.path, fmt.Sprintf("on floor %d imports %s", floorOf(p.dir), imp)})
			}
		}
	})
	return found
}

func findImpure(house *tree) (found []breach) {
	effects := []string{"context", "os", "math/rand", "crypto/rand", "k8s.io/utils/clock"}
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test || !slices.ContainsFunc(pure, func(r string) bool { return within(p.dir, r) }) {
			return
		}
		for _, imp := range f.imports {
			if slices.ContainsFunc(effects, func(lib string) bool { return within(imp, lib) }) {
				found = append(found, breach{f.path, "imports " + imp})
			}
		}
		for _, use := range f.uses("time", clock) {
			found = append(found, breach{house.at(use.pos), "calls time." + use.name})
		}
	})
	return found
}

func findVague(house *tree) (found []breach) {
	for _, p := range house.packages {
		for _, element := range append(strings.Split(p.dir, "/"), p.name) {
			if slices.Contains(vagueNames, element) {
				found = append(found, breach{p.dir, fmt.Sprintf("is called %q", element)})
				break
			}
		}
	}
	return found
}

func findDeep(house *tree) (found []breach) {
	for _, p := range house.packages {
		levels := len(strings.Split(strings.TrimPrefix(p.dir, apart+"/"), "/"))
		version := within(p.dir, "api") && levels == 3 && strings.HasPrefix(path.Base(p.dir), "v")
		if levels > 2 && !version {
			found = append(found, breach{p.dir, fmt.Sprintf("is %d levels below the root", levels)})
		}
	}
	return found
}

func findUndocumented(house *tree) (found []breach) {
	for _, p := range house.packages {
		var documented []string
		for _, f := range p.files {
			// Tests are documented where they are all there is.
			if (f.test && !p.testsOnly()) || f.doc == "" {
				continue
			}
			documented = append(documented, path.Base(f.path))
			if p.name != "main" && !f.test && !strings.HasPrefix(f.doc, "Package "+p.name+" ") {
				found = append(found, breach{f.path, fmt.Sprintf("the package comment does not start with %q", "Package "+p.name)})
			}
		}
		switch {
		case len(documented) == 0:
			found = append(found, breach{p.dir, "has no package comment"})
		case len(documented) > 1:
			found = append(found, breach{p.dir, "has package comments in " + strings.Join(documented, ", ")})
		}
	}
	return found
}

func findInit(house *tree) (found []breach) {
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test || f.generated {
			return
		}
		for _, pos := range f.inits() {
			found = append(found, breach{house.at(pos), "has an init function"})
		}
	})
	return found
}

// findFlags lets a flag set of one's own be: klog can be configured by no other
// means.
func findFlags(house *tree) (found []breach) {
	own := []string{"NewFlagSet", "FlagSet", "Flag", "Value", "InvalidValueError", "ErrHelp", "ContinueOnError", "ExitOnError", "PanicOnError"}
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test {
			return
		}
		for _, lib := range []string{"flag", "github.com/spf13/pflag"} {
			for _, use := range f.usesBut(lib, own) {
				found = append(found, breach{house.at(use.pos), fmt.Sprintf("uses %s.%s, of the whole process", path.Base(lib), use.name)})
			}
		}
	})
	return found
}

// roomOf gives the room of a folder and whether there is one. The root is a
// room of its own, not the parent of all.
func roomOf(dir string) (string, bool) {
	for d := dir; ; d = path.Dir(d) {
		if _, ok := rooms[d]; ok && (d != "." || dir == ".") {
			return d, true
		}
		if d == "." {
			return "", false
		}
	}
}

// floorOf gives the floor of a product folder; one without a room (which has a
// law of its own) counts as the ground.
func floorOf(dir string) int {
	room, _ := roomOf(dir)
	return rooms[room]
}

func isOutside(dir string) bool {
	return slices.ContainsFunc(outside, func(o string) bool { return within(dir, o) })
}

// within tells whether p is root or lies below it.
func within(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}
