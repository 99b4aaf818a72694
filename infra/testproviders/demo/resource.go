package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/value"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// common is the base of all resource types: an object of the world has every attribute and is the
// source of truth. Types with additional behaviour embed it.
type common struct {
	kind
	provider *configured
}

// kind is the specific part of a type. Functions may be nil.
type kind struct {
	name   string // without "demo_"
	schema schema.Schema
	// complete makes additional changes to the world, and sets unknown attributes of the plan.
	// Attributes that it leaves unknown are generated.
	complete func(*change) diag.Diagnostics
	// refresh reads parts of the world other than the object. It returns false if the resource is
	// gone.
	refresh func(*world.World, attributes) (there bool, err error)
	// remove reverts complete.
	remove func(*world.World, attributes) error
	// references returns IDs of other objects that must exist.
	references func(attributes) []string
	// pause returns the duration of a call.
	pause func(call string, now attributes) time.Duration
}

// change is a create or an update.
type change struct {
	world  *world.World
	id     string
	prior  attributes // nil for a create
	config attributes
	next   attributes // as planned; becomes the state
}

func (r *common) full() string { return "demo_" + r.name }

func (r *common) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = r.full()
}

func (r *common) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = r.schema
}

func (r *common) Configure(_ context.Context, req resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	r.provider, _ = req.ProviderData.(*configured) // nil before the provider is configured
}

// enter begins a call: it waits for the delay or until the call is stopped.
func (r *common) enter(ctx context.Context, call string, now attributes, diagnostics *diag.Diagnostics) bool {
	if r.provider == nil {
		diagnostics.AddError("The provider is not configured", "Its directory must be known.")
		return false
	}
	delay := r.provider.delay
	if r.pause != nil {
		delay += r.pause(call, now)
	}
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		diagnostics.AddError("The call was stopped", fmt.Sprintf("%s of %s: %v", call, r.full(), ctx.Err()))
		return false
	}
}

// ModifyPlan only waits for the delay.
func (r *common) ModifyPlan(ctx context.Context, _ resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if r.provider != nil {
		r.enter(ctx, "plan", nil, &resp.Diagnostics)
	}
}

func (r *common) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	next := attributesOf(req.Plan.Raw)
	if !r.enter(ctx, "create", next, &resp.Diagnostics) {
		return
	}
	c := &change{world: r.provider.world, id: world.NewID(r.full()), config: attributesOf(req.Config.Raw), next: next}
	c.next.set("id", c.id)
	resp.State.Raw = r.carryOut(c, req.Plan.Schema.Type().TerraformType(ctx), 1, &resp.Diagnostics)
	setIdentity(ctx, resp.Identity, c.next, &resp.Diagnostics)
}

func (r *common) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	next := attributesOf(req.Plan.Raw)
	if !r.enter(ctx, "update", next, &resp.Diagnostics) {
		return
	}
	c := &change{world: r.provider.world, prior: attributesOf(req.State.Raw), config: attributesOf(req.Config.Raw), next: next}
	c.id = c.prior.text("id")
	object, err := c.world.Get(c.id)
	if err != nil {
		resp.Diagnostics.AddError("The object cannot be updated", err.Error())
		return
	}
	state := r.carryOut(c, req.Plan.Schema.Type().TerraformType(ctx), object.Version+1, &resp.Diagnostics)
	if !state.IsNull() {
		resp.State.Raw = state
	}
	setIdentity(ctx, resp.Identity, c.next, &resp.Diagnostics)
}

// carryOut creates or changes the object. If that fails, the returned state is null.
func (r *common) carryOut(c *change, typ tftypes.Type, version int, diagnostics *diag.Diagnostics) tftypes.Value {
	nothing := tftypes.NewValue(typ, nil)
	before, after := r.refersTo(c.prior), r.refersTo(c.next)
	for _, id := range after {
		if err := c.world.Use(id, c.id); err != nil {
			diagnostics.AddError("The referenced object does not exist", err.Error())
			return nothing
		}
	}
	if r.complete != nil {
		diagnostics.Append(r.complete(c)...)
		if diagnostics.HasError() {
			return nothing
		}
	}
	state, err := value.Fill(tftypes.NewValue(typ, map[string]tftypes.Value(c.next)), fmt.Sprintf("%s/%s/%d", r.full(), c.next.text("name"), version))
	if err == nil {
		err = c.store(state, typ)
	}
	for _, id := range before {
		if err == nil && !slices.Contains(after, id) {
			err = c.world.Release(id, c.id)
		}
	}
	if err != nil {
		diagnostics.AddError("The object cannot be stored", err.Error())
		return nothing
	}
	return state
}

func (c *change) store(state tftypes.Value, typ tftypes.Type) error {
	encoded, err := value.EncodeObject(state, typ)
	if err != nil {
		return err
	}
	if c.prior == nil {
		return c.world.Create(c.id, encoded)
	}
	return c.world.Update(c.id, encoded)
}

func (r *common) refersTo(now attributes) []string {
	if r.references == nil || now == nil {
		return nil
	}
	return slices.DeleteFunc(r.references(now), func(id string) bool { return id == "" })
}

func (r *common) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	state := attributesOf(req.State.Raw)
	if !r.enter(ctx, "read", state, &resp.Diagnostics) {
		return
	}
	look := r.provider.world.Read
	if !r.provider.logReads {
		look = r.provider.world.Get
	}
	object, err := look(state.text("id"))
	if errors.Is(err, world.ErrGone) {
		resp.State.RemoveResource(ctx)
		return
	}
	typ := req.State.Schema.Type().TerraformType(ctx)
	var now tftypes.Value
	if err == nil {
		now, err = value.DecodeObject(object.Attributes, typ)
	}
	if err != nil {
		resp.Diagnostics.AddError("The object cannot be read", err.Error())
		return
	}
	found := attributesOf(now)
	if r.refresh != nil {
		there, err := r.refresh(r.provider.world, found)
		if err != nil {
			resp.Diagnostics.AddError("The object cannot be read", err.Error())
			return
		}
		if !there {
			resp.State.RemoveResource(ctx)
			return
		}
	}
	resp.State.Raw = tftypes.NewValue(typ, map[string]tftypes.Value(found))
	setIdentity(ctx, resp.Identity, found, &resp.Diagnostics)
}

func (r *common) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	state := attributesOf(req.State.Raw)
	if !r.enter(ctx, "delete", state, &resp.Diagnostics) {
		return
	}
	w, id := r.provider.world, state.text("id")
	err := w.Delete(id, r.provider.refuseInUse)
	if err != nil && !errors.Is(err, world.ErrGone) { // already deleted
		resp.Diagnostics.AddError("The object cannot be deleted", err.Error())
		return
	}
	if r.remove != nil {
		if err := r.remove(w, state); err != nil {
			resp.Diagnostics.AddError("Not all of the object was deleted", err.Error())
		}
	}
	for _, used := range r.refersTo(state) {
		if err := w.Release(used, id); err != nil {
			resp.Diagnostics.AddError("The object still refers to another one", err.Error())
		}
	}
}

func (r *common) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	if !r.enter(ctx, "import", nil, &resp.Diagnostics) {
		return
	}
	if object, err := r.provider.world.Get(req.ID); err != nil || object.Type != r.full() {
		resp.Diagnostics.AddError("There is nothing to import", fmt.Sprintf("No object of %s has the ID %q.", r.full(), req.ID))
		return
	}
	if err := r.provider.world.Note(world.Entry{Call: "import", Type: r.full(), ID: req.ID}); err != nil {
		resp.Diagnostics.AddError("The log cannot be written", err.Error())
		return
	}
	resource.ImportStatePassthroughID(ctx, path.Root("id"), req, resp)
}

// attributes are the attributes of an object, by name.
type attributes map[string]tftypes.Value

// attributesOf returns a copy, so that changes do not affect the request. It is nil for null.
func attributesOf(v tftypes.Value) attributes {
	var all map[string]tftypes.Value
	if v.IsNull() || v.As(&all) != nil {
		return nil
	}
	return maps.Clone(all) // As returns the value's own map
}

// text returns a string, or "" for null, unknown, and other types.
func (a attributes) text(name string) string {
	var text string
	if v, found := a[name]; !found || v.IsNull() || !v.IsKnown() || v.As(&text) != nil {
		return ""
	}
	return text
}

// texts returns the strings of a list, set or map.
func (a attributes) texts(name string) []string {
	v, found := a[name]
	if !found || v.IsNull() || !v.IsKnown() {
		return nil
	}
	var elements []tftypes.Value
	if v.As(&elements) != nil {
		return nil
	}
	var texts []string
	for _, element := range elements {
		var text string
		if element.IsKnown() && !element.IsNull() && element.As(&text) == nil {
			texts = append(texts, text)
		}
	}
	return texts
}

func (a attributes) set(name, text string) { a[name] = tftypes.NewValue(tftypes.String, text) }

func (a attributes) changed(before attributes, name string) bool {
	return before == nil || !a[name].Equal(before[name])
}

// joined is for types that show their references.
func joined(texts []string) string { return strings.Join(texts, ",") }
