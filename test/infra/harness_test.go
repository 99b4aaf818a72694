// Package infra tests the packages of infrastructure together, with real providers in real processes.
package infra

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/render"
	"github.com/atoll-dev/atoll/infra/schema"
)

// harness has everything between objects and a provider's process, with maps in place of a store.
type harness struct {
	t        *testing.T
	instance *plugin.Instance
	language *expr.Language
	kinds    map[string]schema.Kind // by kind
	secrets  map[string]string      // by name/key
	objects  map[expr.Ref]*object
	states   map[expr.Ref]*storedResource
	salt     []byte
}

type object struct {
	ref  expr.Ref
	kind schema.Kind
	spec map[string]any
}

// storedResource is the state that a store would have of a resource.
type storedResource struct {
	kind  schema.Kind
	state providerapi.State
	decide.Prior
	dependencies []expr.Ref // the resources that it referred to
}

// planned is a plan: the decisions in order, and the changes to approve.
type planned struct {
	nodes     []node
	graph     *graph.Graph
	contents  *planstore.Contents
	text      string
	decisions []*decide.Decision
	sealed    [][]byte
}

type node struct {
	ref  expr.Ref
	kind schema.Kind
	spec map[string]any // nil if the object was deleted
}

// providerOf builds a test provider as a mirror, installs it from there by its digest, starts it and
// configures it.
func providerOf(t *testing.T, name string, config map[string]cty.Value) *plugin.Instance {
	t.Helper()
	mirror := t.TempDir()
	build := exec.Command("go", "-C", "../../infra/testproviders", "run", "./mirror", "-dir", mirror, "-only", name)
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	var made []struct{ Source, Version, Target, ZH string }
	if err := json.Unmarshal(out, &made); err != nil || len(made) != 1 {
		t.Fatalf("%s: %v", out, err)
	}
	source, err := packages.ParseAddress(made[0].Source, "registry.example.com")
	if err != nil {
		t.Fatal(err)
	}
	version, err := packages.ParseVersion(made[0].Version)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := packages.ParseDigest(made[0].ZH)
	if err != nil {
		t.Fatal(err)
	}
	store, err := packages.OpenStore(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	client := packages.NewClient(packages.ClientConfig{})
	t.Cleanup(client.Close)
	got, err := packages.New(store, client, packages.Limits{}).Install(t.Context(), packages.Request{
		Package: packages.Package{Source: source, Version: version, Platform: packages.ThisPlatform()},
		Origin:  packages.FilesystemMirror{Directory: filepath.Join(mirror, "packed")},
		Digests: []packages.Digest{digest},
	})
	if err != nil {
		t.Fatal(err)
	}
	private, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(private) })
	host, err := plugin.New(plugin.Config{Directory: private})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	binary := plugin.Binary{Name: name, Path: got.Executable}
	catalog, err := host.Catalog(t.Context(), binary, nil)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]cty.Value{}
	for _, a := range catalog.Config().Block.Attributes {
		values[a.Name] = cty.NullVal(a.Type)
		if v, ok := config[a.Name]; ok {
			values[a.Name] = v
		}
	}
	instance, diags, err := host.Open(t.Context(), binary, plugin.Settings{Catalog: catalog, Config: cty.ObjectVal(values)})
	if err != nil || diags.Failed() {
		t.Fatal(diags, err)
	}
	return instance
}

func newHarness(t *testing.T, instance *plugin.Instance) *harness {
	t.Helper()
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	w := &harness{
		t: t, instance: instance, language: language, kinds: map[string]schema.Kind{}, secrets: map[string]string{},
		objects: map[expr.Ref]*object{}, states: map[expr.Ref]*storedResource{}, salt: bytes.Repeat([]byte{7}, 32),
	}
	catalog := instance.Catalog()
	for _, name := range schema.Names(catalog.Resources(), catalog.DataSources()) {
		get := catalog.Resource
		if name.Data {
			get = catalog.DataSource
		}
		s, err := get(name.Type)
		if err != nil {
			t.Fatal(err)
		}
		w.kinds[name.Kind] = schema.Kind{Name: name, Group: schema.Group("demo"), Schema: s}
	}
	return w
}

// applyObjects stores objects, like kubectl apply.
func (w *harness) applyObjects(manifests string) {
	w.t.Helper()
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     map[string]any
		}
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			w.t.Fatal(err)
		}
		kind, ok := w.kinds[o.Kind]
		if !ok {
			w.t.Fatalf("unknown kind %s", o.Kind)
		}
		if errs, _ := kind.Validate(o.Spec, schema.Checks{}); len(errs) > 0 {
			w.t.Fatalf("%s %s: %v", o.Kind, o.Metadata.Name, errs.ToAggregate())
		}
		ref := w.ref(kind, o.Metadata.Name)
		w.objects[ref] = &object{ref, kind, o.Spec}
	}
}

func (w *harness) ref(kind schema.Kind, name string) expr.Ref {
	ref := expr.Ref{Kind: expr.Resource, Type: kind.Type, Namespace: "shop", Name: name}
	if kind.Data {
		ref.Kind = expr.Data
	}
	return ref
}

// delete removes an object, like kubectl delete.
func (w *harness) delete(kind, name string) { delete(w.objects, w.ref(w.kinds[kind], name)) }

// resolver evaluates the expressions and reads the secrets of a spec.
type resolver struct {
	w      *harness
	values map[expr.Ref]cty.Value
}

func (r resolver) Expression(at *field.Path, text string) (cty.Value, error) {
	parsed, err := r.w.language.Template(text, "shop")
	if err != nil {
		return cty.NilVal, err
	}
	return expr.Field{Path: at.String(), Template: parsed}.Value(expr.Scope{Lookup: func(ref expr.Ref) (cty.Value, error) {
		v, ok := r.values[ref]
		if !ok {
			return cty.NilVal, fmt.Errorf("no object %s: apply it too", ref)
		}
		return v, nil
	}})
}

func (r resolver) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	text, ok := r.w.secrets[ref.Name+"/"+ref.Key]
	if !ok {
		return cty.NilVal, fmt.Errorf("Secret %s has no key %s", ref.Name, ref.Key)
	}
	return cty.StringVal(text).Mark(providerapi.Sensitive), nil
}

// plan decides an action for each object and each state, in order, and collects the changes.
func (w *harness) plan(ctx context.Context, mode change.Mode) *planned {
	w.t.Helper()
	p := w.buildGraph()
	order, ok := p.graph.Order()
	if !ok {
		w.t.Fatal(p.graph.Cycles())
	}
	values := map[expr.Ref]cty.Value{}
	p.decisions, p.sealed = make([]*decide.Decision, len(p.nodes)), make([][]byte, len(p.nodes))
	var changes []*change.Change
	for _, i := range order {
		n := p.nodes[i]
		in := decide.Input{Address: address(n.ref), Schema: n.kind.Schema, Provider: w.instance, Mode: mode, Refresh: true}
		if s := w.states[n.ref]; s != nil {
			in.Prior = s.Prior
			in.Prior.State = s.state
		}
		if n.spec != nil {
			in.Config, in.Lifecycle = w.config(n, values), lifecycle(w.t, n)
		}
		d, err := decide.Decide(ctx, in)
		if err != nil {
			w.t.Fatalf("%s: %v", n.ref, err)
		}
		values[n.ref] = schema.Mark(&n.kind.Schema.Block, d.After)
		if p.sealed[i], err = d.Seal(n.kind.Schema); err != nil {
			w.t.Fatal(err)
		}
		change, err := d.Change(n.kind.Schema, decide.ChangeOptions{Salt: w.salt, Sealed: p.sealed[i]})
		if err != nil {
			w.t.Fatal(err)
		}
		p.decisions[i] = d
		changes = append(changes, change)
	}
	p.storeChanges(w.t, changes)
	return p
}

// storeChanges stores changes like those of a Plan, and renders them.
func (p *planned) storeChanges(t *testing.T, changes []*change.Change) {
	t.Helper()
	slices.SortFunc(changes, func(a, b *change.Change) int { return a.Address.Compare(b.Address) })
	pieces := map[int][][]byte{}
	chunks := planstore.NewChunkWriter(func(chunk int, stored [][]byte) error { pieces[chunk] = stored; return nil })
	for _, c := range changes {
		if err := chunks.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.contents, err = chunks.Finish(); err != nil {
		t.Fatal(err)
	}
	page, _, err := p.contents.Page(nil, 1000, nil, func(chunk int) ([][]byte, error) { return pieces[chunk], nil })
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, c := range page {
		if err := (render.Renderer{Namespace: "shop"}).Change(&text, c); err != nil {
			t.Fatal(err)
		}
	}
	p.text = text.String() + p.contents.Counts.Summary()
}

// buildGraph builds the graph: an object comes after the resources that it refers to. A state without
// an object comes before the resources that it referred to, because it is destroyed.
func (w *harness) buildGraph() *planned {
	w.t.Helper()
	p := &planned{}
	ids := map[expr.Ref]int32{}
	add := func(n node) { ids[n.ref] = int32(len(p.nodes)); p.nodes = append(p.nodes, n) }
	for _, o := range w.objects {
		add(node{o.ref, o.kind, o.spec})
	}
	for ref, s := range w.states {
		if w.objects[ref] == nil {
			add(node{ref, s.kind, nil})
		}
	}
	var edges []graph.Edge
	for _, n := range p.nodes {
		if n.spec == nil {
			for _, used := range w.states[n.ref].dependencies {
				if to, exists := ids[used]; exists {
					edges = append(edges, graph.Edge{From: to, To: ids[n.ref]})
				}
			}
			continue
		}
		for _, used := range w.uses(n) {
			if to, exists := ids[used]; exists {
				edges = append(edges, graph.Edge{From: ids[n.ref], To: to})
			}
		}
	}
	g, err := graph.New(len(p.nodes), edges)
	if err != nil {
		w.t.Fatal(err)
	}
	p.graph = g
	return p
}

func (w *harness) uses(n node) (out []expr.Ref) {
	w.t.Helper()
	read, err := w.language.Spec(n.spec, "shop")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range read.References() {
		out = append(out, r.Ref)
	}
	return out
}

func (w *harness) config(n node, values map[expr.Ref]cty.Value) cty.Value {
	w.t.Helper()
	config, errs := n.kind.Config(n.spec, resolver{w, values})
	if len(errs) > 0 {
		w.t.Fatalf("%s: %v", n.ref, errs.ToAggregate())
	}
	return config
}

func lifecycle(t *testing.T, n node) decide.Lifecycle {
	t.Helper()
	own, errs := n.kind.MetaArguments(n.spec)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	l := own.Lifecycle
	return decide.Lifecycle{PreventDestroy: l.PreventDestroy, CreateBeforeDestroy: l.CreateBeforeDestroy, IgnoreChanges: l.IgnoreChanges, IgnoreAll: l.IgnoreAll}
}

func address(ref expr.Ref) change.Address {
	return change.Address{Namespace: ref.Namespace, Type: ref.Type, Name: ref.Name, Data: ref.Kind == expr.Data}
}

// applyPlan applies a plan, reading its sealed decisions.
func (w *harness) applyPlan(ctx context.Context, p *planned) {
	w.t.Helper()
	values := map[expr.Ref]cty.Value{}
	walk, err := p.graph.Walk(graph.ByNumber, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, more := walk.Next(); more; i, more = walk.Next() {
		n := p.nodes[i]
		d, err := decide.Open(p.sealed[i], n.kind.Schema)
		if err != nil {
			w.t.Fatal(err)
		}
		run := decide.Execution{Planned: d, Schema: n.kind.Schema, Provider: w.instance}
		if n.spec != nil {
			run.Config, run.Lifecycle = w.config(n, values), lifecycle(w.t, n)
		}
		steps := []decide.Step{decide.OnlyStep}
		if d.Action == change.Replace {
			steps = []decide.Step{decide.DestroyOld, decide.CreateNew}
		}
		var out *decide.Outcome
		for _, run.Step = range steps {
			if out, err = decide.Execute(ctx, run); err != nil {
				w.t.Fatalf("%s %s: %v", d.Action, n.ref, err)
			}
		}
		if out.State.Value.IsNull() {
			delete(w.states, n.ref)
		} else {
			s := &storedResource{kind: n.kind, state: out.State}
			s.Prior = decide.Prior{State: out.State, Tainted: out.Tainted, Sensitive: out.Sensitive}
			if n.spec != nil {
				s.dependencies = w.uses(n)
			}
			w.states[n.ref] = s
			values[n.ref] = schema.Mark(&n.kind.Schema.Block, out.State.Value)
		}
		walk.Done(i)
	}
	if walk.Left() > 0 {
		w.t.Fatalf("%d resources are not applied", walk.Left())
	}
}
