// Package enginetest has what the tests of the engine's rooms share: a provider, an environment and
// a store of plans in memory, and objects and states to fill them with. Only tests import it.
package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Attribute returns an attribute with flags, separated by spaces.
func Attribute(name string, ty cty.Type, flags string) providerapi.Attribute {
	has := func(flag string) bool { return slices.Contains(strings.Fields(flags), flag) }
	return providerapi.Attribute{Name: name, Type: ty, Required: has("required"), Optional: has("optional"), Computed: has("computed"),
		Sensitive: has("sensitive"), WriteOnly: has("writeonly")}
}

// ThingSchema is the schema of a resource.
func ThingSchema() *providerapi.Schema {
	return &providerapi.Schema{Version: 1, Block: providerapi.Block{Attributes: []providerapi.Attribute{
		Attribute("content", cty.String, "optional"),
		Attribute("id", cty.String, "computed"),
		Attribute("labels", cty.Map(cty.String), "optional"),
		Attribute("password", cty.String, "optional sensitive"),
		Attribute("size", cty.Number, "optional computed"),
		Attribute("token", cty.String, "computed sensitive"),
		Attribute("wo", cty.String, "optional writeonly"),
		Attribute("zone", cty.String, "optional"),
	}}}
}

// ImageSchema is the schema of a data source.
func ImageSchema() *providerapi.Schema {
	return &providerapi.Schema{Block: providerapi.Block{Attributes: []providerapi.Attribute{
		Attribute("filter", cty.String, "optional"),
		Attribute("id", cty.String, "computed"),
	}}}
}

// Provider is a provider with unknown computed values that replaces a resource if zone changes.
// It stores nothing but its log of calls.
type Provider struct {
	Schema, data *providerapi.Schema

	mu         sync.Mutex
	calls      []string
	NoLog      bool // log no calls
	NoImport   bool // nothing can be imported
	made       int
	images     map[string]string                   // ID by filter; default is the filter itself
	Gone       map[string]bool                     // IDs that Read does not find
	Drifted    map[string]string                   // content by ID that Read finds
	refuses    string                              // the content that it rejects
	BeforePlan func(providerapi.PlanRequest) error // called before each Plan
	Validate   func(cty.Value) providerapi.Diagnostics
}

func (p *Provider) note(format string, args ...any) {
	if p.NoLog {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

func (p *Provider) Catalog() providerapi.Catalog { return nil }

func (p *Provider) ValidateResource(_ context.Context, _ string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	p.note("validate")
	if p.Validate != nil {
		return p.Validate(config.Value), nil
	}
	content := config.Value.GetAttr("content")
	if p.refuses != "" && content.IsKnown() && !content.IsNull() && content.AsString() == p.refuses {
		return providerapi.Diagnostics{{Summary: "Refused", Detail: "not with " + p.refuses, Attribute: cty.GetAttrPath("content")}}, nil
	}
	return nil, nil
}

func (p *Provider) ValidateData(context.Context, string, cty.Value) (providerapi.Diagnostics, error) {
	p.note("validate data")
	return nil, nil
}

func (p *Provider) Upgrade(_ context.Context, _ string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	p.note("upgrade")
	v, err := ctyjson.Unmarshal(stored.JSON, p.Schema.Block.ImpliedType())
	return providerapi.UpgradeAnswer{Value: v}, err
}

func (p *Provider) Read(_ context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	id := request.State.Value.GetAttr("id").AsString()
	p.note("read %s", id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Gone[id] {
		return providerapi.ReadAnswer{State: providerapi.State{Value: cty.NullVal(p.Schema.Block.ImpliedType())}}, nil
	}
	if content, drifted := p.Drifted[id]; drifted {
		of := request.State.Value.AsValueMap()
		of["content"] = cty.StringVal(content)
		request.State.Value = cty.ObjectVal(of)
	}
	return providerapi.ReadAnswer{State: request.State}, nil
}

func (p *Provider) Plan(_ context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	p.note("plan")
	if p.BeforePlan != nil {
		if err := p.BeforePlan(request); err != nil {
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

func (p *Provider) Apply(_ context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
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

func (p *Provider) Import(_ context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	p.note("import %s", id)
	if p.NoImport {
		return providerapi.ImportAnswer{Diagnostics: providerapi.Diagnostics{{Summary: "Resource Import Not Implemented"}}}, nil
	}
	of := map[string]cty.Value{}
	for name, ty := range p.Schema.Block.ImpliedType().AttributeTypes() {
		of[name] = cty.NullVal(ty)
	}
	of["id"], of["token"], of["size"] = cty.StringVal(id), cty.StringVal("t"), cty.NumberIntVal(1)
	return providerapi.ImportAnswer{Found: []providerapi.Imported{{Type: typeName, State: providerapi.State{Value: cty.ObjectVal(of)}}}}, nil
}

// Move continues any type whose state has an id.
func (p *Provider) Move(_ context.Context, r providerapi.MoveRequest) (providerapi.MoveAnswer, error) {
	p.note("move %s from %s", r.SourceType, r.SourceProvider)
	var from struct{ ID string }
	if err := json.Unmarshal(r.SourceState.JSON, &from); err != nil || from.ID == "" {
		return providerapi.MoveAnswer{Diagnostics: providerapi.Diagnostics{{Summary: "unknown source"}}}, nil
	}
	of := map[string]cty.Value{}
	for name, ty := range p.Schema.Block.ImpliedType().AttributeTypes() {
		of[name] = cty.NullVal(ty)
	}
	of["id"], of["token"], of["size"] = cty.StringVal(from.ID), cty.StringVal("t"), cty.NumberIntVal(1)
	return providerapi.MoveAnswer{State: providerapi.State{Value: cty.ObjectVal(of)}}, nil
}

func (p *Provider) ReadData(_ context.Context, _ string, config cty.Value) (providerapi.DataAnswer, error) {
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

// SetImage sets the ID that a data source has for a filter.
func (p *Provider) SetImage(filter, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images[filter] = id
}
