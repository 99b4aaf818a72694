package infra

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// attribute returns an attribute with flags, separated by spaces.
func attribute(name string, ty cty.Type, flags string) providerapi.Attribute {
	has := func(flag string) bool { return slices.Contains(strings.Fields(flags), flag) }
	return providerapi.Attribute{Name: name, Type: ty, Required: has("required"), Optional: has("optional"), Computed: has("computed"),
		Sensitive: has("sensitive"), WriteOnly: has("writeonly")}
}

// thingSchema is the schema of a resource.
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

// imageSchema is the schema of a data source.
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

// setImage sets the ID that a data source has for a filter.
func (p *fakeProvider) setImage(filter, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images[filter] = id
}
