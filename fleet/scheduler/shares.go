package scheduler

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

func shares(d placement.Decision) []v1alpha1.ClusterShare {
	var out []v1alpha1.ClusterShare
	for _, v := range d.Chosen {
		share := v1alpha1.ClusterShare{Name: v.Cluster, Reason: v.Reason, Message: v.Message}
		if v.Counted {
			share.Replicas = &v.Replicas
		}
		out = append(out, share)
	}
	return out
}

// setOverrides sets which overrides each share has, and returns those.
func setOverrides(policy *placement.Policy, fleet *placement.Fleet, k interpret.KindInfo, shares []v1alpha1.ClusterShare) []v1alpha1.Override {
	names := make([]string, len(shares))
	for i := range shares {
		names[i] = shares[i].Name
	}
	overrides, where := policy.Overrides(fleet, k.Group, k.GroupVersionKind.Kind, names)
	for i := range shares {
		shares[i].Overrides = where[shares[i].Name]
	}
	return overrides
}

// ignoredMessage explains why the policy's mode does not apply to the kind.
func (a *Result) ignoredMessage(k interpret.KindInfo, obj *unstructured.Unstructured) string {
	wanted := a.Choice.Policy.Mode()
	if wanted == "" || wanted == a.Decision.Mode || a.Request.Fixed != "" || a.Together != nil && a.Together.Undivided != "" {
		return ""
	}
	return fmt.Sprintf("; not in mode %s: %s", wanted, k.CheckMode(obj, interpret.Mode(wanted)))
}
