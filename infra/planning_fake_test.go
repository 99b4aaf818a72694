package infra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

const testNamespace = "shop"

func trait(name string, ty cty.Type, flags string) contract.Attribute {
	has := func(flag string) bool { return slices.Contains(strings.Fields(flags), flag) }
	return contract.Attribute{Name: name, Type: ty, Required: has("required"), Optional: has("optional"), Computed: has("computed"),
		Sensitive: has("sensitive"), WriteOnly: has("writeonly")}
}

// thingSchema is a resource, and imageSchema a data source.
func thingSchema() *contract.Schema {
	return &contract.Schema{Version: 1, Block: contract.Block{Attributes: []contract.Attribute{
		trait("content", cty.String, "optional"),
		trait("id", cty.String, "computed"),
		trait("labels", cty.Map(cty.String), "optional"),
		trait("password", cty.String, "optional sensitive"),
		trait("size", cty.Number, "optional computed"),
		trait("token", cty.String, "computed sensitive"),
		trait("wo", cty.String, "optional writeonly"),
		trait("zone", cty.String, "optional"),
	}}}
}

func imageSchema() *contract.Schema {
	return &contract.Schema{Block: contract.Block{Attributes: []contract.Attribute{
		trait("filter", cty.String, "optional"),
		trait("id", cty.String, "computed"),
	}}}
}

// pretender is a provider that makes unknown what it computes, replaces for zone, and remembers nothing but what it was asked.
type pretender struct {
	schema, data *contract.Schema

	mu       sync.Mutex
	calls    []string
	quiet    bool // calls are not noted
	made     int
	images   map[string]string                // by filter, the ID; empty is the filter itself
	gone     map[string]bool                  // by ID, what a Read finds no more
	drifted  map[string]string                // by ID, the content that a Read finds
	refuses  string                           // a content that it has something against
	says     func(contract.PlanRequest) error // asked before each Plan
	validate func(cty.Value) contract.Diagnostics
}

func (p *pretender) note(format string, args ...any) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

func (p *pretender) Catalog() contract.Catalog { return nil }

func (p *pretender) ValidateResource(_ context.Context, _ string, config *contract.Configuration) (contract.Diagnostics, error) {
	p.note("validate")
	if p.validate != nil {
		return p.validate(config.Value), nil
	}
	content := config.Value.GetAttr("content")
	if p.refuses != "" && content.IsKnown() && !content.IsNull() && content.AsString() == p.refuses {
		return contract.Diagnostics{{Summary: "Refused", Detail: "not with " + p.refuses, Attribute: cty.GetAttrPath("content")}}, nil
	}
	return nil, nil
}

func (p *pretender) ValidateData(context.Context, string, cty.Value) (contract.Diagnostics, error) {
	p.note("validate data")
	return nil, nil
}

func (p *pretender) Upgrade(_ context.Context, _ string, stored contract.StoredState) (contract.UpgradeAnswer, error) {
	p.note("upgrade")
	v, err := ctyjson.Unmarshal(stored.JSON, p.schema.Block.ImpliedType())
	return contract.UpgradeAnswer{Value: v}, err
}

func (p *pretender) Read(_ context.Context, request contract.ReadRequest) (contract.ReadAnswer, error) {
	id := request.State.Value.GetAttr("id").AsString()
	p.note("read %s", id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone[id] {
		return contract.ReadAnswer{State: contract.State{Value: cty.NullVal(p.schema.Block.ImpliedType())}}, nil
	}
	if content, drifted := p.drifted[id]; drifted {
		of := request.State.Value.AsValueMap()
		of["content"] = cty.StringVal(content)
		request.State.Value = cty.ObjectVal(of)
	}
	return contract.ReadAnswer{State: request.State}, nil
}

func (p *pretender) Plan(_ context.Context, request contract.PlanRequest) (contract.PlanAnswer, error) {
	p.note("plan")
	if p.says != nil {
		if err := p.says(request); err != nil {
			return contract.PlanAnswer{}, err
		}
	}
	if request.Proposed.IsNull() {
		return contract.PlanAnswer{Planned: request.Proposed}, nil
	}
	of := request.Proposed.AsValueMap()
	of["wo"] = cty.NullVal(cty.String)
	for _, name := range []string{"id", "token", "size"} {
		if of[name].IsNull() && request.Config.Value.GetAttr(name).IsNull() {
			of[name] = cty.UnknownVal(of[name].Type())
		}
	}
	answer := contract.PlanAnswer{Planned: cty.ObjectVal(of)}
	if !request.Prior.IsNull() {
		answer.Replace = append(answer.Replace, cty.GetAttrPath("zone"))
	}
	return answer, nil
}

func (p *pretender) Apply(_ context.Context, request contract.ApplyRequest) (contract.ApplyAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if request.Planned.IsNull() {
		return contract.ApplyAnswer{State: contract.State{Value: request.Planned}}, nil
	}
	of := request.Planned.AsValueMap()
	p.made++
	for name, v := range of {
		if !v.IsKnown() {
			if v.Type() == cty.Number {
				of[name] = cty.NumberIntVal(int64(p.made))
			} else {
				of[name] = cty.StringVal(fmt.Sprintf("%s-%d", name, p.made))
			}
		}
	}
	return contract.ApplyAnswer{State: contract.State{Value: cty.ObjectVal(of)}}, nil
}

func (p *pretender) Import(_ context.Context, typeName, id string) (contract.ImportAnswer, error) {
	p.note("import %s", id)
	of := map[string]cty.Value{}
	for name, ty := range p.schema.Block.ImpliedType().AttributeTypes() {
		of[name] = cty.NullVal(ty)
	}
	of["id"], of["token"], of["size"] = cty.StringVal(id), cty.StringVal("t"), cty.NumberIntVal(1)
	return contract.ImportAnswer{Found: []contract.Imported{{Type: typeName, State: contract.State{Value: cty.ObjectVal(of)}}}}, nil
}

func (p *pretender) ReadData(_ context.Context, _ string, config cty.Value) (contract.DataAnswer, error) {
	p.note("read data")
	p.mu.Lock()
	defer p.mu.Unlock()
	filter := config.GetAttr("filter")
	text := "none"
	if !filter.IsNull() {
		text = filter.AsString()
	}
	id := p.images[text]
	if id == "" {
		id = "image of " + text
	}
	return contract.DataAnswer{Value: cty.ObjectVal(map[string]cty.Value{"filter": filter, "id": cty.StringVal(id)})}, nil
}

// stand is a pretender as Providers, and what else an Engine needs.
type stand struct {
	*pretender
	mu       sync.Mutex
	revision string
	opened   string
	unserved map[string]bool // types that nobody serves
	secrets  map[string]string
	objects  map[string]cty.Value
}

func newStand() *stand {
	return &stand{
		pretender: &pretender{schema: thingSchema(), data: imageSchema(), images: map[string]string{}, gone: map[string]bool{}, drifted: map[string]string{}},
		revision:  "r1", opened: "c1", unserved: map[string]bool{}, secrets: map[string]string{}, objects: map[string]cty.Value{},
	}
}

func (s *stand) Kind(ref reference.Ref) (*Served, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unserved[ref.Type] {
		return nil, ErrNotServed
	}
	out := &Served{Provider: "demo", Revision: s.revision, Kind: schema.Kind{Group: "demo.providers.atoll.dev"}}
	switch {
	case ref.Kind == reference.Resource && ref.Type == "demo_thing":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Kind: "Thing", Plural: "things"}, s.schema
	case ref.Kind == reference.Data && ref.Type == "demo_image":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Data: true, Kind: "DataImage", Plural: "dataimages"}, s.data
	default:
		return nil, ErrNotServed
	}
	return out, nil
}

func (s *stand) Open(_ context.Context, _, _, config string) (contract.Provider, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if config == "missing" {
		return nil, "", errors.New(`there is no ProviderConfig "missing": make it, or name another`)
	}
	return s.pretender, s.opened, nil
}

func (s *stand) Secret(_ context.Context, namespace, name, key string) ([]byte, error) {
	text, is := s.secrets[name+"/"+key]
	if !is {
		return nil, fmt.Errorf("there is no key %q in a Secret %q of namespace %q", key, name, namespace)
	}
	return []byte(text), nil
}

func (s *stand) Kubernetes(_ context.Context, ref reference.Ref) (cty.Value, error) {
	v, is := s.objects[ref.Name]
	if !is {
		return cty.NilVal, fmt.Errorf("there is no %s %q", ref.Type, ref.Name)
	}
	return v, nil
}

// took gives the calls that were made since it was asked last.
func (s *stand) took() []string {
	s.pretender.mu.Lock()
	defer s.pretender.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}

func (s *stand) engine(t testing.TB, world *World) *Engine {
	t.Helper()
	language, err := reference.New()
	if err != nil {
		t.Fatal(err)
	}
	if world == nil {
		world = NewWorld(language, s)
	}
	return &Engine{World: world, Language: language, Providers: s, Values: s, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}
}

// chunks is a PlanStore.
type chunks struct {
	mu            sync.Mutex
	shown, sealed map[int][][]byte
	fails         error
}

func newChunks() *chunks { return &chunks{shown: map[int][][]byte{}, sealed: map[int][][]byte{}} }

func (c *chunks) Put(_ context.Context, chunk int, shown, sealed [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown[chunk], c.sealed[chunk] = shown, sealed
	return c.fails
}

func (c *chunks) Shown(_ context.Context, chunk int) ([][]byte, error)  { return c.shown[chunk], nil }
func (c *chunks) Sealed(_ context.Context, chunk int) ([][]byte, error) { return c.sealed[chunk], nil }

// changes reads all that is stored, each held to its sealed part.
func (c *chunks) changes(t testing.TB, planned *Planned, salt []byte) ([]*plan.Change, map[plan.Address][]byte) {
	t.Helper()
	var out []*plan.Change
	all := map[plan.Address][]byte{}
	for i := range planned.Contents.Chunks {
		sealed, err := openSealed(c.sealed[i])
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, sealed)
		err = planned.Contents.Chunks[i].Read(c.shown[i], true, nil, func(change *plan.Change) bool {
			out = append(out, change)
			switch part, is := sealed[change.Address]; {
			case is && plan.SealDigest(salt, part) != change.Sealed:
				t.Errorf("%s: the sealed part is another", change.Address)
			case !is && change.Sealed != "":
				t.Errorf("%s: the sealed part is in another chunk", change.Address)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out, all
}

var testSalt = []byte("0123456789abcdef0123456789abcdef")

func thing(name string) reference.Ref {
	return reference.Ref{Kind: reference.Resource, Type: "demo_thing", Namespace: testNamespace, Name: name}
}

func image(name string) reference.Ref {
	return reference.Ref{Kind: reference.Data, Type: "demo_image", Namespace: testNamespace, Name: name}
}

// written makes an object of YAML-like JSON.
func written(ref reference.Ref, generation int64, spec string) *Object {
	o := &Object{Ref: ref, Group: "demo.providers.atoll.dev", Kind: "Thing", Plural: "things", UID: "uid-" + ref.Name,
		ResourceVersion: fmt.Sprint("o", generation), Generation: generation, Spec: []byte(spec)}
	if ref.Kind == reference.Data {
		o.Kind, o.Plural = "DataImage", "dataimages"
	}
	return o
}

// stateOf makes a state of a value.
func stateOf(t testing.TB, ref reference.Ref, version int, value cty.Value, secret []cty.Path, dependencies ...reference.Ref) *State {
	t.Helper()
	text, err := ctyjson.Marshal(value, value.Type())
	if err != nil {
		t.Fatal(err)
	}
	s := &State{Ref: ref, UID: "state-" + ref.Name, ResourceVersion: fmt.Sprint("s", version)}
	s.Spec = v1alpha1.ResourceStateSpec{
		Object: v1alpha1.StateOwner{Group: "demo.providers.atoll.dev", Kind: "Thing", Name: ref.Name, UID: "uid-" + ref.Name},
		Type:   ref.Type, Provider: "demo", ProviderConfig: "demo",
		Current: &v1alpha1.ResourceValue{SchemaVersion: 1, Value: text, Sensitive: writePaths(secret)},
	}
	for _, d := range dependencies {
		s.Spec.Current.Dependencies = append(s.Spec.Current.Dependencies, v1alpha1.StateName("things", "demo", d.Name))
	}
	return s
}

func planOf(t testing.TB, e *Engine, what Planning) (*Planned, *chunks) {
	t.Helper()
	if what.Namespace == "" {
		what.Namespace = testNamespace
	}
	if what.Mode == "" {
		what.Mode = plan.Normal
	}
	what.Salt = testSalt
	store := newChunks()
	planned, err := e.Plan(t.Context(), what, store)
	if err != nil {
		t.Fatal(err)
	}
	return planned, store
}

// actions is what a plan does, a line for each: no-ops are left out.
func actions(t testing.TB, planned *Planned, store *chunks) string {
	t.Helper()
	list, _ := store.changes(t, planned, testSalt)
	var out []string
	for _, c := range list {
		if c.Action == plan.NoOp && c.Drift == nil {
			continue
		}
		text := fmt.Sprintf("%s %s", c.Action, strings.TrimPrefix(c.Address.String(), `namespace["shop"].`))
		if c.Reason != "" {
			text += fmt.Sprintf(" (%s%s)", c.Reason, c.Detail)
		}
		if c.CreateFirst {
			text += " first"
		}
		out = append(out, text)
	}
	for _, p := range planned.Problems {
		out = append(out, fmt.Sprintf("! %s %s: %s", p.Address, p.Field, p.Message))
	}
	return strings.Join(out, "\n")
}
