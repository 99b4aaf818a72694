package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"
)

func named(more map[string]*schema.Schema) map[string]*schema.Schema {
	more["name"] = &schema.Schema{Type: schema.TypeString, Required: true}
	return more
}

// network is demo5_network.
func network() *kind {
	return &kind{
		name: "demo5_network",
		schema: schema.Resource{
			Description: "A network.",
			Schema: named(map[string]*schema.Schema{
				"cidr":    {Type: schema.TypeString, Required: true, ForceNew: true},
				"mtu":     {Type: schema.TypeInt, Optional: true, Default: 1500},
				"tags":    {Type: schema.TypeMap, Optional: true, Elem: &schema.Schema{Type: schema.TypeString}},
				"gateway": {Type: schema.TypeString, Computed: true},
			}),
		},
		compute: func(d *schema.ResourceData, seed string) error { return once(d, "gateway", seed) },
	}
}

// server is demo5_server, with all special features of the SDK's schemas.
func server() *kind {
	quarter := 15 * time.Minute
	return &kind{
		name: "demo5_server",
		schema: schema.Resource{
			Description:   "A server.",
			Schema:        serverSchema(),
			CustomizeDiff: customizeServer,
			Timeouts:      &schema.ResourceTimeout{Create: &quarter, Update: &quarter, Delete: &quarter},
		},
		compute: computeServer,
	}
}

func serverSchema() map[string]*schema.Schema {
	return named(map[string]*schema.Schema{
		"network_id": {Type: schema.TypeString, Required: true},
		"zone":       {Type: schema.TypeString, Required: true, ForceNew: true},
		"size":       {Type: schema.TypeString, Optional: true, Default: "small"},
		"image":      {Type: schema.TypeString, Optional: true, Computed: true, Description: "Chosen by the provider if it is not set."},
		"capacity":   {Type: schema.TypeInt, Optional: true, Description: "Decreasing it replaces the server. Must not be negative."},
		"region": {Type: schema.TypeString, Optional: true, Description: "In any case of letters.",
			DiffSuppressFunc: func(_, before, after string, _ *schema.ResourceData) bool { return strings.EqualFold(before, after) }},
		"label": {Type: schema.TypeString, Optional: true, Description: "Stored in lower case.",
			StateFunc: func(v any) string { return strings.ToLower(v.(string)) }},
		"ratio":    {Type: schema.TypeFloat, Optional: true},
		"enabled":  {Type: schema.TypeBool, Optional: true, Default: true},
		"password": {Type: schema.TypeString, Optional: true, Sensitive: true},
		"token":    {Type: schema.TypeString, Computed: true, Sensitive: true},
		"address":  {Type: schema.TypeString, Computed: true, Description: "Differs after each change of the network."},
		"tags":     {Type: schema.TypeSet, Optional: true, Elem: &schema.Schema{Type: schema.TypeString}},
		"ports":    {Type: schema.TypeList, Optional: true, Elem: &schema.Schema{Type: schema.TypeInt}},
		"delay":    {Type: schema.TypeString, Optional: true, Description: "Added to each create, update and delete."},
		"fail":     {Type: schema.TypeString, Optional: true, Description: "create, made, read, update or delete: what fails."},
		"disk": {Type: schema.TypeList, Required: true, MinItems: 1, MaxItems: 3, Elem: &schema.Resource{Schema: map[string]*schema.Schema{
			"size": {Type: schema.TypeInt, Required: true},
			"kind": {Type: schema.TypeString, Optional: true, Default: "ssd"},
			"id":   {Type: schema.TypeString, Computed: true},
		}}},
		"boot": {Type: schema.TypeList, Optional: true, MaxItems: 1, Elem: &schema.Resource{Schema: map[string]*schema.Schema{
			"device": {Type: schema.TypeString, Optional: true},
			"secure": {Type: schema.TypeBool, Optional: true, ForceNew: true},
		}}},
		"rule": {Type: schema.TypeSet, Optional: true, Description: "Rules of the same port are one.",
			Set: func(v any) int { return v.(map[string]any)["port"].(int) },
			Elem: &schema.Resource{Schema: map[string]*schema.Schema{
				"port":     {Type: schema.TypeInt, Required: true},
				"protocol": {Type: schema.TypeString, Optional: true},
			}}},
		"endpoint": {Type: schema.TypeList, Computed: true, Description: "A block that only the provider writes.",
			Elem: &schema.Resource{Schema: map[string]*schema.Schema{
				"port": {Type: schema.TypeInt, Computed: true},
				"url":  {Type: schema.TypeString, Computed: true},
			}}},
	})
}

func customizeServer(_ context.Context, d *schema.ResourceDiff, _ any) error {
	before, after := d.GetChange("capacity")
	switch {
	case after.(int) < 0:
		return errors.New("capacity: it cannot be negative")
	case d.Id() != "" && after.(int) < before.(int):
		if err := d.ForceNew("capacity"); err != nil {
			return err
		}
	}
	if d.Id() == "" {
		return nil
	}
	if d.HasChange("network_id") {
		if err := d.SetNewComputed("address"); err != nil {
			return err
		}
	}
	if d.HasChange("ports") {
		return d.SetNewComputed("endpoint")
	}
	return nil
}

func computeServer(d *schema.ResourceData, seed string) error {
	var endpoints []any
	for _, port := range d.Get("ports").([]any) {
		endpoints = append(endpoints, map[string]any{"port": port, "url": fmt.Sprintf("https://%v:%v", d.Get("name"), port)})
	}
	disks := d.Get("disk").([]any)
	for i, disk := range disks {
		disk := disk.(map[string]any)
		if disk["id"] == "" {
			disk["id"] = invent(fmt.Sprint(seed, "/disk/", i))
		}
	}
	err := errors.Join(once(d, "token", seed), once(d, "image", seed), d.Set("endpoint", endpoints), d.Set("disk", disks), d.Set("label", strings.ToLower(d.Get("label").(string))))
	if d.HasChange("network_id") {
		return errors.Join(err, d.Set("address", invent(seed+"/address")))
	}
	return err
}

// once sets a value that is not set.
func once(d *schema.ResourceData, name, seed string) error {
	if d.Get(name) != "" {
		return nil
	}
	return d.Set(name, invent(seed+"/"+name))
}

func invent(seed string) string {
	sum := sha256.Sum256([]byte(seed))
	return hex.EncodeToString(sum[:6])
}

// legacy is demo5_legacy, whose state had "10GB" before it had 10.
func legacy() *kind {
	return &kind{
		name: "demo5_legacy",
		schema: schema.Resource{
			Description:   "State of the older version is upgraded.",
			SchemaVersion: 1,
			Schema:        named(map[string]*schema.Schema{"size_gb": {Type: schema.TypeInt, Optional: true}}),
			StateUpgraders: []schema.StateUpgrader{{
				Version: 0,
				Type: (&schema.Resource{Schema: map[string]*schema.Schema{
					"name": {Type: schema.TypeString, Required: true}, "size": {Type: schema.TypeString, Optional: true},
				}}).CoreConfigSchema().ImpliedType(),
				Upgrade: upgradeSize,
			}},
		},
	}
}

func upgradeSize(_ context.Context, state map[string]any, _ any) (map[string]any, error) {
	text, _ := state["size"].(string)
	delete(state, "size")
	if text == "" {
		return state, nil
	}
	gb, err := strconv.Atoi(strings.TrimSuffix(text, "GB"))
	if err != nil {
		return nil, fmt.Errorf("size: %q is not a number of GB", text)
	}
	state["size_gb"] = gb
	return state, nil
}
