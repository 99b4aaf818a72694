package main

import (
	"errors"

	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"
)

// configMap is demo5_config_map. It is like a type of the provider for Kubernetes: people write what
// identifies it into an argument that is optional and computed, in a block that also has computed
// attributes; an empty generate_name is rejected; and nothing that is not configured is null when it
// is read.
func configMap() *kind {
	text := &schema.Schema{Type: schema.TypeString}
	return &kind{
		name: "demo5_config_map",
		schema: schema.Resource{
			Description: "Named by its metadata.",
			Schema: map[string]*schema.Schema{
				"data":      {Type: schema.TypeMap, Optional: true, Elem: text},
				"immutable": {Type: schema.TypeBool, Optional: true},
				"replicas":  {Type: schema.TypeString, Optional: true, Computed: true, Description: "A number in a string. The provider chooses 1."},
				"tier":      {Type: schema.TypeString, Optional: true, Computed: true, ForceNew: true, Description: "Chosen by the provider if it is not set."},
				"metadata": {Type: schema.TypeList, Required: true, MaxItems: 1, Elem: &schema.Resource{Schema: map[string]*schema.Schema{
					"annotations": {Type: schema.TypeMap, Optional: true, Elem: text},
					"labels":      {Type: schema.TypeMap, Optional: true, Elem: text},
					"name":        {Type: schema.TypeString, Optional: true, Computed: true, ForceNew: true, ConflictsWith: []string{"metadata.0.generate_name"}},
					"generate_name": {Type: schema.TypeString, Optional: true, ForceNew: true, ConflictsWith: []string{"metadata.0.name"},
						ValidateFunc: notEmpty},
					"generation": {Type: schema.TypeInt, Computed: true},
					"uid":        {Type: schema.TypeString, Computed: true},
				}}},
			},
		},
		compute: computeConfigMap,
	}
}

func notEmpty(v any, name string) ([]string, []error) {
	if v == "" {
		return nil, []error{errors.New(name + " must not be empty")}
	}
	return nil, nil
}

func computeConfigMap(d *schema.ResourceData, seed string) error {
	metadata, _ := d.Get("metadata").([]any)
	if len(metadata) == 0 || metadata[0] == nil {
		return errors.New(`ConfigMap "" is invalid: metadata.name: Required value`)
	}
	of := metadata[0].(map[string]any)
	if prefix := of["generate_name"].(string); of["name"] == "" && prefix != "" {
		of["name"] = prefix + invent(seed)
	}
	if of["name"] == "" {
		return errors.New(`ConfigMap "" is invalid: metadata.name: Required value`)
	}
	if of["uid"] == "" {
		of["uid"] = invent(seed + "/uid")
	}
	errs := []error{d.Set("metadata", metadata)}
	if d.Get("replicas") == "" {
		errs = append(errs, d.Set("replicas", "1"))
	}
	return errors.Join(append(errs, once(d, "tier", seed))...)
}
