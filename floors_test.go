// The rules of the architecture: which package may import which, where heavy
// libraries may be imported, and what no package may do. docs/architecture.md
// shows the floors and rooms. These tests check the sources against it in a few
// seconds:
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

// rooms maps every room of the product to its floor. A package belongs to the
// room with the longest matching path, so a new package below apiserver/ needs
// no entry. A new room needs one, so that its author chooses a floor for it.
var rooms = map[string]int{
	// Floor 0: nouns, no I/O.
	"api":               0,
	"kv":                0,
	"kv/kvtest":         0,
	"infra/providerapi": 0,
	"infra/tfplugin5":   0,
	"infra/tfplugin6":   0,
	// Floor 1: engines and pure decisions. No Kubernetes client, no listener.
	"kv/mvcc":            1,
	"kv/sqlite":          1,
	"kv/postgres":        1,
	"fleet/schema":       1,
	"fleet/interpret":    1,
	"fleet/override":     1,
	"fleet/multicluster": 1,
	"fleet/groups":       1,
	"fleet/preemption":   1,
	"fleet/capacity":     1,
	"fleet/quota":        1,
	"fleet/placement":    1,
	"fleet/taints":       1,
	"tenancy/mapping":    1,
	"fleet/names":        1,
	"fleet/pace":         1,
	"fleet/scaling":      1,
	"fleet/transition":   1,
	"fleet/volumes":      1,
	"infra/schema":       1,
	"infra/graph":        1,
	"infra/expr":         1,
	"infra/grants":       1,
	"infra/change":       1,
	"infra/approval":     1,
	"infra/decide":       1,
	"infra/render":       1,
	"infra/planstore":    1,
	"infra/packages":     1,
	"infra/plugin":       1,
	"infra/containment":  1,
	"infra/statefile":    1,
	// The engine's calculation; see steps.
	"infra":            1,
	"infra/problems":   1,
	"infra/inventory":  1,
	"infra/evaluate":   1,
	"infra/enginetest": 1,
	"infra/planner":    1,
	"infra/applier":    1,
	// Floor 2: adapters, each to one technology.
	"controllers":              2,
	"kv/etcd":                  2,
	"kv/partition":             2,
	"kv/inspect":               2,
	"kv/transfer":              2,
	"apiserver":                2,
	"apiserver/workspaces":     2,
	"coordination":             2,
	"aggregate":                2,
	"fleet":                    2,
	"tenancy":                  2,
	"tenancy/placing":          2,
	"tenancy/reach":            2,
	"infra/access":             2,
	"infra/apistore":           2,
	"infra/feed":               2,
	"infra/placing":            2,
	"infra/plancontroller":     2,
	"infra/providercontroller": 2,
	"infra/changesapi":         2,
	"infra/cliview":            2,
	"console":                  2,
	// Floor 3: composition.
	"server": 3,
	// Floor 4: the entry points. Commands call the floors below; nothing calls a command.
	"cli": 4,
	".":   5,
}

// shared lists the rooms that their siblings may import: they need a library that
// the floors below may not contain, and have what the siblings would each write
// again. They import no sibling themselves, so two rooms that use one of them still
// do not import each other.
var shared = []string{"controllers"}

// steps puts rooms of one floor above others of it. A room may import those of
// its floor that stand on a lower step. A room that is not listed stands on
// step 0. The engine of infra/ needs steps: it is one calculation, cut where its
// parts have different reasons to change, and a floor for each part would say
// nothing about the other rooms.
var steps = map[string]int{
	// A decision counts the room that nodes have.
	"fleet/placement": 1,
	// Policies for taints select clusters as placement does.
	"fleet/taints": 2,
	// Objects are copied as kinds are interpreted.
	"tenancy/mapping": 1,
	// A process is started as its containment was decided.
	"infra/plugin":    1,
	"infra/decide":    1,
	"infra/render":    1,
	"infra/planstore": 1,
	"infra":           1,
	"infra/problems":  1,
	// Everything that plans and applies are made of.
	"infra/inventory":  2,
	"infra/evaluate":   2,
	"infra/enginetest": 2,
	// The two of them.
	"infra/planner": 3,
	"infra/applier": 3,
	// Workspaces are served by parts that know nothing of the chain.
	"apiserver/workspaces": 1,
	// Pods of workspaces are shown as those of clusters are.
	"tenancy/reach": 1,
	// What connects the engine with the API.
	"infra/placing":        1,
	"infra/plancontroller": 2,
}

// outside lists the folders that are not part of the product. They may import
// anything; the product may not import them.
var outside = []string{"playground", "bench", "test", "deploy", "docs", "examples", separateModule}

// separateModule is a folder among the rooms with a go.mod of its own. Its depth counts
// from its own root.
const separateModule = "infra/testproviders"

// testFixtures are packages outside the product that its tests may import: they
// run third-party programs or create keys, and import no package of ours.
var testFixtures = []string{"playground/postgres", "playground/pgproxy", "playground/keys", "test/fakeapi", "test/fakewebhook"}

// pure lists the rooms without side effects: the same data always gives the same
// decision.
var pure = []string{"fleet/schema", "fleet/interpret", "fleet/override", "fleet/placement", "fleet/taints", "fleet/capacity", "fleet/quota", "fleet/groups", "fleet/preemption", "fleet/names", "fleet/multicluster", "fleet/pace", "fleet/scaling", "fleet/transition", "fleet/volumes", "infra/schema", "infra/graph", "infra/expr", "infra/change", "infra/render", "infra/problems", "infra/approval", "infra/grants", "infra/containment", "tenancy/mapping"}

// heavyLibraries lists the rooms that may import a heavy library. No other room
// imports it, so a change anywhere else compiles and tests in seconds.
var heavyLibraries = []struct {
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
	{"github.com/hashicorp/go-plugin", []string{"infra/plugin"}},
	{"github.com/hashicorp/terraform-plugin-go", []string{"infra/plugin"}},
	{"github.com/landlock-lsm/go-landlock", []string{"infra/plugin"}},
	{"github.com/spf13/cobra", []string{"cli"}},
}

// testOnlyLibraries are libraries that the product must not contain. Its tests
// compare it with etcd's server and run it on kwok's nodes.
var testOnlyLibraries = []string{"go.etcd.io/etcd/server/v3", "sigs.k8s.io/kwok"}

// etcdRecipes are packages of etcd's server without its storage: they run locks and
// elections on any client, and kv/etcd serves them.
var etcdRecipes = []string{"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock", "go.etcd.io/etcd/server/v3/etcdserver/api/v3election"}

// vagueNames say nothing about a package's content, so anything ends up in it.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "base", "types", "misc", "pkg"}

// A rule finds violations and reports them with its reason and a remedy. A rule
// without a known reason gets exceptions instead of fixes.
type rule struct {
	name, why, remedy string
	find              func(*tree) []violation
}

// A violation is one place that violates a rule.
type violation struct{ where, what string }

var rules = []rule{
	{
		name:   "every package has a room",
		why:    "a package without a floor may import anything, and soon every package does",
		remedy: "move it into a room of docs/architecture.md, or give it one there and in floors_test.go",
		find:   findWithoutRoom,
	},
	{
		name:   "imports point down",
		why:    "the lower floors stay small, quick to test and usable without the floors above",
		remedy: "declare the interface you need in the lower package and let server/ pass the implementation in",
		find:   findUpward,
	},
	{
		name:   "siblings on one floor and step do not import each other",
		why:    "two adapters that import each other can only be changed, tested and replaced together; only a child may import its parent, and all may import a room that imports none of them",
		remedy: "move the shared noun down a floor, or have the floor above pass one to the other",
		find:   findSiblings,
	},
	{
		name:   "the product does not import what is outside",
		why:    "playground/, bench/ and test/ import anything they like, and their dependencies would ship",
		remedy: "move the part that the product needs into a room, or the test into test/",
		find:   findOutside,
	},
	{
		name:   "heavy libraries are imported in few rooms",
		why:    "Kubernetes takes minutes to compile and a SQL dialect leaks; behind one package neither affects the others",
		remedy: "let the room that imports the library expose what you need in the types of floor 0",
		find:   findHeavy,
	},
	{
		name:   "the product contains no test-only library",
		why:    "tests compare the keyspace with etcd's server and simulate nodes with kwok: a product that contains them proves nothing",
		remedy: "use them in _test.go files, playground/, bench/ or test/",
		find:   findTestOnlyLibraries,
	},
	{
		name:   "floors 0 and 1 import no Kubernetes client and no network",
		why:    "types, engines and decisions must run in a test without a server, and under any adapter",
		remedy: "take data and return data; the caller on floor 2 does the I/O",
		find:   findLowFloorIO,
	},
	{
		name:   "pure rooms take no client, no clock and no context",
		why:    "a decision that depends on more than its arguments can be neither previewed nor explained",
		remedy: "pass the time, the objects and the previous decision in as data",
		find:   findImpure,
	},
	{
		name:   "specs take values of other objects only for their authors",
		why:    "the control plane has all rights: an expression that is evaluated with them reads for its author what that author may not read",
		remedy: "read through infra.ValueReader, with the object whose spec takes the value; infra/access implements it",
		find:   findReadsWithoutReader,
	},
	{
		name:   "package names are specific",
		why:    "anything fits into a package called util",
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
		why:    "without a comment the purpose of a package is unknown; with two, one of them is wrong",
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
		why:    "every program that links the package shows a globally registered flag to its users",
		remedy: "take a Config; cli/ turns flags into it",
		find:   findFlags,
	},
	{
		name:   "no package-level mutable state",
		why:    "two servers in one process would share it, and one test could change it for the next",
		remedy: "hang it off a value. A package-level var may only be an error, an embedded file, or a table spelled out in its declaration that no code writes to",
		find:   findMutable,
	},
}

// TestFloors checks every rule on the repository.
func TestFloors(t *testing.T) {
	house := readTree(t)
	if len(house.packages) < 2 {
		t.Fatalf("found %d packages: the test does not see the repository", len(house.packages))
	}
	for _, r := range rules {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			r.report(t, r.find(house))
		})
	}
}

func (r rule) report(t *testing.T, violations []violation) {
	t.Helper()
	if len(violations) == 0 {
		return
	}
	var places strings.Builder
	for _, b := range violations {
		fmt.Fprintf(&places, "\n  %s: %s", b.where, b.what)
	}
	t.Errorf("%s%s\n  why: %s\n  remedy: %s", r.name, places.String(), r.why, r.remedy)
}

func findWithoutRoom(house *tree) (found []violation) {
	for _, p := range house.product() {
		if _, ok := roomOf(p.dir); !ok {
			found = append(found, violation{p.dir, "belongs to no room"})
		}
	}
	return found
}

func findUpward(house *tree) (found []violation) {
	for _, e := range house.productImports() {
		switch {
		case floorOf(e.to) > floorOf(e.from):
			found = append(found, violation{e.file.path, fmt.Sprintf("%s (floor %d) imports %s (floor %d)",
				e.from, floorOf(e.from), e.to, floorOf(e.to))})
		case floorOf(e.to) == floorOf(e.from) && stepOf(e.to) > stepOf(e.from) && !e.file.test:
			found = append(found, violation{e.file.path, fmt.Sprintf("%s (floor %d, step %d) imports %s (step %d)",
				e.from, floorOf(e.from), stepOf(e.from), e.to, stepOf(e.to))})
		}
	}
	return found
}

// findSiblings ignores test files, which do not ship: the tests of an engine need a
// database, and those of an adapter an engine.
func findSiblings(house *tree) (found []violation) {
	for _, e := range house.productImports() {
		child := strings.HasPrefix(e.from, e.to+"/")
		if !e.file.test && e.from != e.to && floorOf(e.to) == floorOf(e.from) && stepOf(e.to) == stepOf(e.from) && !child && !slices.Contains(shared, e.to) {
			found = append(found, violation{e.file.path, fmt.Sprintf("%s and %s are both on floor %d",
				e.from, e.to, floorOf(e.to))})
		}
	}
	return found
}

func findOutside(house *tree) (found []violation) {
	house.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			if dir, ok := house.dirOf(imp); ok && isOutside(dir) && !(f.test && slices.Contains(testFixtures, dir)) {
				found = append(found, violation{f.path, "imports " + dir})
			}
		}
	})
	return found
}

func findHeavy(house *tree) (found []violation) {
	house.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			for _, h := range heavyLibraries {
				if within(imp, h.library) && !slices.ContainsFunc(h.rooms, func(r string) bool { return within(p.dir, r) }) {
					found = append(found, violation{f.path, fmt.Sprintf("imports %s, which only %s may import",
						imp, strings.Join(h.rooms, " and "))})
				}
			}
		}
	})
	return found
}

func findTestOnlyLibraries(house *tree) (found []violation) {
	house.eachProductFile(func(p *pkg, f *source) {
		for _, imp := range f.imports {
			if p.dir == "kv/etcd" && slices.ContainsFunc(etcdRecipes, func(s string) bool { return within(imp, s) }) {
				continue
			}
			if !f.test && slices.ContainsFunc(testOnlyLibraries, func(s string) bool { return within(imp, s) }) {
				found = append(found, violation{f.path, "imports " + imp})
			}
		}
	})
	return found
}

func findLowFloorIO(house *tree) (found []violation) {
	talk := []string{"net", "k8s.io/client-go", "google.golang.org/grpc", "sigs.k8s.io/controller-runtime"}
	house.eachProductFile(func(p *pkg, f *source) {
		// infra/plugin talks gRPC to child processes that accept no connection from
		// outside. infra/packages downloads them from a registry. kv/postgres needs its
		// database, wherever that runs.
		if f.test || floorOf(p.dir) > 1 || within(p.dir, "infra/plugin") || within(p.dir, "infra/packages") || within(p.dir, "kv/postgres") {
			return
		}
		for _, imp := range f.imports {
			harmless := imp == "net/netip" || imp == "net/url"
			if !harmless && slices.ContainsFunc(talk, func(lib string) bool { return within(imp, lib) }) {
				found = append(found, violation{f.path, fmt.Sprintf("on floor %d imports %s", floorOf(p.dir), imp)})
			}
		}
	})
	return found
}

func findImpure(house *tree) (found []violation) {
	effects := []string{"context", "os", "math/rand", "crypto/rand", "k8s.io/utils/clock"}
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test || !slices.ContainsFunc(pure, func(r string) bool { return within(p.dir, r) }) {
			return
		}
		for _, imp := range f.imports {
			if slices.ContainsFunc(effects, func(lib string) bool { return within(imp, lib) }) {
				found = append(found, violation{f.path, "imports " + imp})
			}
		}
		for _, use := range f.uses("time", clock) {
			found = append(found, violation{house.at(use.pos), "calls time." + use.name})
		}
	})
	return found
}

func findVague(house *tree) (found []violation) {
	for _, p := range house.packages {
		for _, element := range append(strings.Split(p.dir, "/"), p.name) {
			if slices.Contains(vagueNames, element) {
				found = append(found, violation{p.dir, fmt.Sprintf("is called %q", element)})
				break
			}
		}
	}
	return found
}

func findDeep(house *tree) (found []violation) {
	for _, p := range house.packages {
		levels := len(strings.Split(strings.TrimPrefix(p.dir, separateModule+"/"), "/"))
		version := within(p.dir, "api") && levels == 3 && strings.HasPrefix(path.Base(p.dir), "v")
		if levels > 2 && !version {
			found = append(found, violation{p.dir, fmt.Sprintf("is %d levels below the root", levels)})
		}
	}
	return found
}

func findUndocumented(house *tree) (found []violation) {
	for _, p := range house.packages {
		var documented []string
		for _, f := range p.files {
			// A test file's comment counts only in a package without other files.
			if (f.test && !p.testsOnly()) || f.doc == "" {
				continue
			}
			documented = append(documented, path.Base(f.path))
			if p.name != "main" && !f.test && !strings.HasPrefix(f.doc, "Package "+p.name+" ") {
				found = append(found, violation{f.path, fmt.Sprintf("the package comment does not start with %q", "Package "+p.name)})
			}
		}
		switch {
		case len(documented) == 0:
			found = append(found, violation{p.dir, "has no package comment"})
		case len(documented) > 1:
			found = append(found, violation{p.dir, "has package comments in " + strings.Join(documented, ", ")})
		}
	}
	return found
}

func findInit(house *tree) (found []violation) {
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test || f.generated {
			return
		}
		for _, pos := range f.inits() {
			found = append(found, violation{house.at(pos), "has an init function"})
		}
	})
	return found
}

// findFlags allows a flag set of one's own: klog cannot be configured otherwise.
func findFlags(house *tree) (found []violation) {
	own := []string{"NewFlagSet", "FlagSet", "Flag", "Value", "InvalidValueError", "ErrHelp", "ContinueOnError", "ExitOnError", "PanicOnError"}
	house.eachProductFile(func(p *pkg, f *source) {
		if f.test {
			return
		}
		for _, lib := range []string{"flag", "github.com/spf13/pflag"} {
			for _, use := range f.usesBut(lib, own) {
				found = append(found, violation{house.at(use.pos), fmt.Sprintf("uses %s.%s, which is process-wide", path.Base(lib), use.name)})
			}
		}
	})
	return found
}

// roomOf returns the room of a folder and whether it has one. The root is a room
// of its own, not the parent of all.
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

// floorOf returns the floor of a product folder, or 0 for one without a room, which
// another rule reports.
func floorOf(dir string) int {
	room, _ := roomOf(dir)
	return rooms[room]
}

// stepOf returns the step of a product folder on its floor.
func stepOf(dir string) int {
	room, _ := roomOf(dir)
	return steps[room]
}

func isOutside(dir string) bool {
	return slices.ContainsFunc(outside, func(o string) bool { return within(dir, o) })
}

// within reports whether p is root or lies below it.
func within(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}
