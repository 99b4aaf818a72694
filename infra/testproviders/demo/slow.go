package main

import (
	"time"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
)

// newSlow returns demo_slow, whose arguments set the duration of its calls. A stopped call changes
// nothing.
func newSlow() resource.Resource {
	delay := schema.StringAttribute{Optional: true, Validators: durations}
	return &common{kind: kind{
		name: "slow",
		schema: schema.Schema{
			Description: "Takes as long as configured.",
			Attributes: withName(map[string]schema.Attribute{
				"value":  schema.StringAttribute{Optional: true},
				"create": delay,
				"read":   delay,
				"update": delay,
				"delete": delay,
			}),
		},
		pause: func(call string, now attributes) time.Duration {
			length, _ := time.ParseDuration(now.text(call)) // validated; 0 if not set
			return length
		},
	}}
}
