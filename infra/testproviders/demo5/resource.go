package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-sdk/v2/diag"
	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"

	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// kind is a type: its schema, and a function that sets computed attributes.
type kind struct {
	name    string
	schema  schema.Resource
	compute func(d *schema.ResourceData, seed string) error
}

// resource adds the calls.
func (k *kind) resource() *schema.Resource {
	r := k.schema
	r.CreateContext, r.ReadContext, r.DeleteContext = k.create, k.read, k.remove
	r.UpdateContext = k.update
	r.Importer = &schema.ResourceImporter{StateContext: k.find}
	return &r
}

// enter waits for the delays of provider and resource, or until the resource's timeout.
func enter(ctx context.Context, call string, d *schema.ResourceData, meta any) (*configured, diag.Diagnostics) {
	c, ok := meta.(*configured)
	if !ok {
		return nil, diag.Errorf("the provider is not configured: its directory must be known")
	}
	delay := c.delay
	if text, ok := d.Get("delay").(string); ok && text != "" && call != "read" {
		more, err := time.ParseDuration(text)
		if err != nil {
			return nil, diag.Errorf("delay: %v; write 150ms or 2s", err)
		}
		delay += more
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, diag.Errorf("%s was stopped: %v", call, ctx.Err())
	}
	if d.Get("fail") == call {
		return nil, diag.Diagnostics{{Severity: diag.Error, Summary: "The " + call + " fails", Detail: "as told"}}
	}
	return c, nil
}

func (k *kind) create(ctx context.Context, d *schema.ResourceData, meta any) diag.Diagnostics {
	c, diagnostics := enter(ctx, "create", d, meta)
	if diagnostics.HasError() {
		return diagnostics
	}
	id := world.NewID(k.name)
	attributes, err := k.attributes(d, 1)
	if err == nil {
		err = c.world.Create(id, attributes)
	}
	if err != nil {
		return diag.FromErr(err)
	}
	d.SetId(id)
	if d.Get("fail") == "made" {
		return diag.Errorf("the create fails after it was made, as told")
	}
	return nil
}

func (k *kind) update(ctx context.Context, d *schema.ResourceData, meta any) diag.Diagnostics {
	c, diagnostics := enter(ctx, "update", d, meta)
	if diagnostics.HasError() {
		d.Partial(true) // or the SDK would store the plan as if it had been applied
		return diagnostics
	}
	object, err := c.world.Get(d.Id())
	if err != nil {
		d.Partial(true)
		return diag.FromErr(err)
	}
	attributes, err := k.attributes(d, object.Version+1)
	if err == nil {
		err = c.world.Update(d.Id(), attributes)
	}
	if err != nil {
		d.Partial(true)
	}
	return diag.FromErr(err)
}

// attributes sets computed attributes, and returns all attributes as JSON.
func (k *kind) attributes(d *schema.ResourceData, version int) (map[string]json.RawMessage, error) {
	if k.compute != nil {
		if err := k.compute(d, fmt.Sprintf("%s/%v/%d", k.name, d.Get("name"), version)); err != nil {
			return nil, err
		}
	}
	all := map[string]json.RawMessage{}
	for name := range k.schema.Schema {
		encoded, err := json.Marshal(plain(d.Get(name)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = encoded
	}
	return all, nil
}

// plain converts sets to lists.
func plain(v any) any {
	switch v := v.(type) {
	case *schema.Set:
		return plain(v.List())
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = plain(v[i])
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for name := range v {
			all[name] = plain(v[name])
		}
		return all
	}
	return v
}

func (k *kind) read(ctx context.Context, d *schema.ResourceData, meta any) diag.Diagnostics {
	c, diagnostics := enter(ctx, "read", d, meta)
	if diagnostics.HasError() {
		return diagnostics
	}
	look := c.world.Read
	if !c.logReads {
		look = c.world.Get
	}
	object, err := look(d.Id())
	if errors.Is(err, world.ErrGone) {
		d.SetId("")
		return nil
	}
	if err != nil {
		return diag.FromErr(err)
	}
	for name := range k.schema.Schema {
		var v any
		if err := json.Unmarshal(object.Attributes[name], &v); err != nil && len(object.Attributes[name]) > 0 {
			return diag.Errorf("%s of %s: %v", name, d.Id(), err)
		}
		if err := d.Set(name, v); err != nil {
			return diag.Errorf("%s of %s: %v", name, d.Id(), err)
		}
	}
	return nil
}

func (k *kind) remove(ctx context.Context, d *schema.ResourceData, meta any) diag.Diagnostics {
	c, diagnostics := enter(ctx, "delete", d, meta)
	if diagnostics.HasError() {
		return diagnostics
	}
	if err := c.world.Delete(d.Id(), false); err != nil && !errors.Is(err, world.ErrGone) {
		return diag.FromErr(err)
	}
	return nil
}

// find implements import.
func (k *kind) find(ctx context.Context, d *schema.ResourceData, meta any) ([]*schema.ResourceData, error) {
	c, ok := meta.(*configured)
	if !ok {
		return nil, errors.New("the provider is not configured: its directory must be known")
	}
	if object, err := c.world.Get(d.Id()); err != nil || object.Type != k.name {
		return nil, fmt.Errorf("no object of %s has the ID %q", k.name, d.Id())
	}
	if err := c.world.Note(world.Entry{Call: "import", Type: k.name, ID: d.Id()}); err != nil {
		return nil, err
	}
	return schema.ImportStatePassthroughContext(ctx, d, meta)
}
