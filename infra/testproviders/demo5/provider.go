package main

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-sdk/v2/diag"
	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"

	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// configured is the part of the configuration that resources need.
type configured struct {
	world    *world.World
	delay    time.Duration
	logReads bool
}

// New returns the unconfigured provider.
func New() *schema.Provider {
	return &schema.Provider{
		Schema: map[string]*schema.Schema{
			"directory": {Type: schema.TypeString, Required: true, Description: "The world: an absolute path. It is created if necessary."},
			"token":     {Type: schema.TypeString, Optional: true, Sensitive: true, Description: "A credential. \"wrong\" is rejected."},
			"delay":     {Type: schema.TypeString, Optional: true, Description: "Added to each create, read, update and delete, such as 20ms."},
			"log_reads": {Type: schema.TypeBool, Optional: true, Default: true, Description: "Whether calls that only read are logged."},
		},
		ResourcesMap: map[string]*schema.Resource{
			"demo5_network": network().resource(),
			"demo5_server":  server().resource(),
			"demo5_legacy":  legacy().resource(),

			"demo5_config_map": configMap().resource(),
		},
		DataSourcesMap:       map[string]*schema.Resource{"demo5_lookup": lookup()},
		ConfigureContextFunc: configure,
	}
}

func configure(_ context.Context, d *schema.ResourceData) (any, diag.Diagnostics) {
	if d.Get("token") == "wrong" {
		return nil, diag.Errorf("the token is refused: set another token")
	}
	var delay time.Duration
	if text := d.Get("delay").(string); text != "" {
		var err error
		if delay, err = time.ParseDuration(text); err != nil {
			return nil, diag.Errorf("delay: %v; write 150ms or 2s", err)
		}
	}
	w, err := world.Open(d.Get("directory").(string))
	if err == nil {
		err = w.Note(world.Entry{Call: "configure"})
	}
	if err != nil {
		return nil, diag.FromErr(err)
	}
	return &configured{world: w, delay: delay, logReads: d.Get("log_reads").(bool)}, nil
}

// lookup is the data source demo5_lookup.
func lookup() *schema.Resource {
	return &schema.Resource{
		Description: "Finds an object by its name.",
		Schema: map[string]*schema.Schema{
			"type":    {Type: schema.TypeString, Required: true},
			"name":    {Type: schema.TypeString, Required: true},
			"version": {Type: schema.TypeInt, Computed: true, Description: "Counts the object's changes."},
		},
		ReadContext: func(_ context.Context, d *schema.ResourceData, meta any) diag.Diagnostics {
			found, err := meta.(*configured).world.Find(d.Get("type").(string), d.Get("name").(string))
			if err != nil {
				return diag.FromErr(err)
			}
			d.SetId(found.ID)
			return diag.FromErr(d.Set("version", found.Version))
		},
	}
}
