package infra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

const testNamespace = "shop"

func attribute(name string, ty cty.Type, flags string) providerapi.Attribute {
	has := func(flag string) bool { return slices.Contains(strings.Fields(flags), flag) }
	return providerapi.Attribute{Name: name, Type: ty, Required: has("required"), Optional: has("optional"), Computed: has("computed"),
		Sensitive: has("sensitive"), WriteOnly: has("writeonly")}
}

// thingSchema is the schema of a resource, and imageSchema that of a data source.
func thingSchema() *providerapi.Schema {
	return &providerapi.Schema{Version: 1, Block: providerapi.Block{Attributes: []providerapi.Attribute{
		attribute("content", cty.String, "optional"),
		attribute("id", cty.String, "computed"),
		attribute("labels", cty.Map(cty.String), "optional"),
		attribute("password", cty.String, "optional sensitive"),
		attribute("size", cty.Number, "optional computed"),
		attribute("token", cty.String, "computed sensitive"),
		attribute("wo", cty.String, "optional writeonly"),
		attribute("zone", cty.String, "optional"),
	}}}
}

func imageSchema() *providerapi.Schema {
	return &providerapi.Schema{Block: providerapi.Block{Attributes: []providerapi.Attribute{
		attribute("filter", cty.String, "optional"),
		attribute("id", cty.String, "computed"),
	}}}
}

// fakeProvider is a provider with unknown computed values that replaces a resource if zone changes.
// It stores nothing but its log of calls.
type fakeProvider struct {
	schema, data *providerapi.Schema

	mu       sync.Mutex
	calls    []string
	noLog    bool // log no calls
	made     int
	images   map[string]string                   // ID by filter; default is the filter itself
	gone     map[string]bool                     // IDs that Read does not find
	drifted  map[string]string                   // content by ID that Read finds
	refuses  string                              // the content that it rejects
	says     func(providerapi.PlanRequest) error // called before each Plan
	validate func(cty.Value) providerapi.Diagnostics
}

func (p *fakeProvider) note(format string, args ...any) {
	if p.noLog {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

func (p *fakeProvider) Catalog() providerapi.Catalog { return nil }

func (p *fakeProvider) ValidateResource(_ context.Context, _ string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	p.note("validate")
	if p.validate != nil {
		return p.validate(config.Value), nil
	}
	content := config.Value.GetAttr("content")
	if p.refuses != "" && content.IsKnown() && !content.IsNull() && content.AsString() == p.refuses {
		return providerapi.Diagnostics{{Summary: "Refused", Detail: "not with " + p.refuses, Attribute: cty.GetAttrPath("content")}}, nil
	}
	return nil, nil
}

func (p *fakeProvider) ValidateData(context.Context, string, cty.Value) (providerapi.Diagnostics, error) {
	p.note("validate data")
	return nil, nil
}

func (p *fakeProvider) Upgrade(_ context.Context, _ string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	p.note("upgrade")
	v, err := ctyjson.Unmarshal(stored.JSON, p.schema.Block.ImpliedType())
	return providerapi.UpgradeAnswer{Value: v}, err
}

func (p *fakeProvider) Read(_ context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	id := request.State.Value.GetAttr("id").AsString()
	p.note("read %s", id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone[id] {
		return providerapi.ReadAnswer{State: providerapi.State{Value: cty.NullVal(p.schema.Block.ImpliedType())}}, nil
	}
	if content, drifted := p.drifted[id]; drifted {
		of := request.State.Value.AsValueMap()
		of["content"] = cty.StringVal(content)
		request.State.Value = cty.ObjectVal(of)
	}
	return providerapi.ReadAnswer{State: request.State}, nil
}

func (p *fakeProvider) Plan(_ context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	p.note("plan")
	if p.says != nil {
		if err := p.says(request); err != nil {
			return providerapi.PlanAnswer{}, err
		}
	}
	if request.Proposed.IsNull() {
		return providerapi.PlanAnswer{Planned: request.Proposed}, nil
	}
	of := request.Proposed.AsValueMap()
	of["wo"] = cty.NullVal(cty.String)
	for _, name := range []string{"id", "token", "size"} {
		if of[name].IsNull() && request.Config.Value.GetAttr(name).IsNull() {
			of[name] = cty.UnknownVal(of[name].Type())
		}
	}
	answer := providerapi.PlanAnswer{Planned: cty.ObjectVal(of)}
	if !request.Prior.IsNull() {
		answer.Replace = append(answer.Replace, cty.GetAttrPath("zone"))
	}
	return answer, nil
}

func (p *fakeProvider) Apply(_ context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if request.Planned.IsNull() {
		return providerapi.ApplyAnswer{State: providerapi.State{Value: request.Planned}}, nil
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
	return providerapi.ApplyAnswer{State: providerapi.State{Value: cty.ObjectVal(of)}}, nil
}

func (p *fakeProvider) Import(_ context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	p.note("import %s", id)
	of := map[string]cty.Value{}
	for name, ty := range p.schema.Block.ImpliedType().AttributeTypes() {
		of[name] = cty.NullVal(ty)
	}
	of["id"], of["token"], of["size"] = cty.StringVal(id), cty.StringVal("t"), cty.NumberIntVal(1)
	return providerapi.ImportAnswer{Found: []providerapi.Imported{{Type: typeName, State: providerapi.State{Value: cty.ObjectVal(of)}}}}, nil
}

func (p *fakeProvider) ReadData(_ context.Context, _ string, config cty.Value) (providerapi.DataAnswer, error) {
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
	return providerapi.DataAnswer{Value: cty.ObjectVal(map[string]cty.Value{"filter": filter, "id": cty.StringVal(id)})}, nil
}

// fakeEnv is a fakeProvider as Providers, with everything else that an Engine needs.
type fakeEnv struct {
	*fakeProvider
	mu             sync.Mutex
	revision       string
	configRevision string
	unserved       map[string]bool // types without a provider
	secrets        map[string]string
	objects        map[string]cty.Value
}

func newFakeEnv() *fakeEnv {
	return &fakeEnv{
		fakeProvider: &fakeProvider{schema: thingSchema(), data: imageSchema(), images: map[string]string{}, gone: map[string]bool{}, drifted: map[string]string{}},
		revision:     "r1", configRevision: "c1", unserved: map[string]bool{}, secrets: map[string]string{}, objects: map[string]cty.Value{},
	}
}

func (s *fakeEnv) Kind(ref expr.Ref) (*ServedKind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unserved[ref.Type] {
		return nil, ErrNotServed
	}
	out := &ServedKind{Provider: "demo", Revision: s.revision, Kind: schema.Kind{Group: "demo.providers.atoll.dev"}}
	switch {
	case ref.Kind == expr.Resource && ref.Type == "demo_thing":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Kind: "Thing", Plural: "things"}, s.schema
	case ref.Kind == expr.Data && ref.Type == "demo_image":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Data: true, Kind: "DataImage", Plural: "dataimages"}, s.data
	default:
		return nil, ErrNotServed
	}
	return out, nil
}

func (s *fakeEnv) Open(_ context.Context, _, _, config string) (providerapi.Provider, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if config == "missing" {
		return nil, "", errors.New(`there is no ProviderConfig "missing": make it, or name another`)
	}
	return s.fakeProvider, s.configRevision, nil
}

func (s *fakeEnv) Secret(_ context.Context, namespace, name, key string) ([]byte, error) {
	text, is := s.secrets[name+"/"+key]
	if !is {
		return nil, fmt.Errorf("there is no key %q in a Secret %q of namespace %q", key, name, namespace)
	}
	return []byte(text), nil
}

func (s *fakeEnv) Object(_ context.Context, ref expr.Ref) (cty.Value, error) {
	v, is := s.objects[ref.Name]
	if !is {
		return cty.NilVal, fmt.Errorf("there is no %s %q", ref.Type, ref.Name)
	}
	return v, nil
}

// takeCalls returns the calls since the last time.
func (s *fakeEnv) takeCalls() []string {
	s.fakeProvider.mu.Lock()
	defer s.fakeProvider.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}

// fakePlanStore is a PlanStore.
type fakePlanStore struct {
	mu            sync.Mutex
	shown, sealed map[int][][]byte
	fails         error
}

func newFakePlanStore() *fakePlanStore {
	return &fakePlanStore{shown: map[int][][]byte{}, sealed: map[int][][]byte{}}
}

func (c *fakePlanStore) Put(_ context.Context, chunk int, shown, sealed [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown[chunk], c.sealed[chunk] = shown, sealed
	return c.fails
}

func (c *fakePlanStore) Shown(_ context.Context, chunk int) ([][]byte, error) {
	return c.shown[chunk], nil
}
func (c *fakePlanStore) Sealed(_ context.Context, chunk int) ([][]byte, error) {
	return c.sealed[chunk], nil
}

// changes reads all stored changes and checks each against its sealed part.
func (c *fakePlanStore) changes(t testing.TB, contents *planstore.Contents, salt []byte) ([]*change.Change, map[change.Address][]byte) {
	t.Helper()
	var out []*change.Change
	all := map[change.Address][]byte{}
	for i := range contents.Chunks {
		sealed, err := openSealed(c.sealed[i])
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, sealed)
		err = contents.Chunks[i].Read(c.shown[i], true, nil, func(change *change.Change) bool {
			out = append(out, change)
			switch part, is := sealed[change.Address]; {
			case is && decide.SealDigest(salt, part) != change.Sealed:
				t.Errorf("%s: the sealed part does not match", change.Address)
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

func thingRef(name string) expr.Ref {
	return expr.Ref{Kind: expr.Resource, Type: "demo_thing", Namespace: testNamespace, Name: name}
}

func imageRef(name string) expr.Ref {
	return expr.Ref{Kind: expr.Data, Type: "demo_image", Namespace: testNamespace, Name: name}
}

// newObject returns an object with a JSON spec.
func newObject(ref expr.Ref, generation int64, spec string) *Object {
	o := &Object{Ref: ref, Group: "demo.providers.atoll.dev", Kind: "Thing", Plural: "things", UID: "uid-" + ref.Name,
		ResourceVersion: fmt.Sprint("o", generation), Generation: generation, Spec: []byte(spec)}
	if ref.Kind == expr.Data {
		o.Kind, o.Plural = "DataImage", "dataimages"
	}
	return o
}

// newState returns a state with a value.
func newState(t testing.TB, ref expr.Ref, version int, value cty.Value, secret []cty.Path, dependencies ...expr.Ref) *State {
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

// actions returns the actions of a plan, one per line, without no-ops, and its problems.
func (s *fakePlanStore) actions(t testing.TB, contents *planstore.Contents, problems []v1alpha1.Problem) string {
	t.Helper()
	list, _ := s.changes(t, contents, testSalt)
	var out []string
	for _, c := range list {
		if c.Action == change.NoOp && c.Drift == nil {
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
	for _, p := range problems {
		out = append(out, fmt.Sprintf("! %s %s: %s", p.Address, p.Field, p.Message))
	}
	return strings.Join(out, "\n")
}

// randomSpec returns a spec that refers to others, mostly to those of lower numbers, so that not
// everything is a cycle.
func randomSpec(random *rand.Rand, ref expr.Ref, names int) string {
	other := func() string {
		var at int
		if _, err := fmt.Sscanf(ref.Name, "t%d", &at); err != nil || at == 0 || random.IntN(30) == 0 {
			at = names
		}
		if random.IntN(6) == 0 && ref.Kind == expr.Resource {
			return fmt.Sprintf(`data.demo_image["d%d"].id`, random.IntN(3))
		}
		return fmt.Sprintf(`demo_thing["t%d"].id`, random.IntN(at))
	}
	if ref.Kind == expr.Data {
		if random.IntN(4) == 0 {
			return fmt.Sprintf(`{"filter": %q}`, fmt.Sprintf(`${demo_thing["t%d"].content}`, random.IntN(2)))
		}
		return fmt.Sprintf(`{"filter": "x%d"}`, random.IntN(2))
	}
	spec := map[string]any{}
	switch random.IntN(4) {
	case 0:
		spec["content"] = fmt.Sprint("text ", random.IntN(3))
	case 1:
		spec["content"] = "${" + other() + "}"
	case 2:
		spec["content"] = "from ${" + other() + "}"
		spec["password"] = "${" + strings.Replace(other(), ".id", ".id", 1) + "}"
	}
	if random.IntN(3) == 0 {
		spec["zone"] = fmt.Sprint("z", random.IntN(2))
	}
	if random.IntN(5) == 0 {
		spec["depends_on"] = []string{strings.TrimSuffix(other(), ".id")}
	}
	if random.IntN(6) == 0 {
		spec["lifecycle"] = map[string]any{"create_before_destroy": true}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return string(text)
}
