package syncer

import (
	"cmp"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestWaitsForAPlan: an object that waits for a plan is neither written nor removed; one that a
// plan allowed is.
func TestWaitsForAPlan(t *testing.T) {
	there := &v1alpha1.ClusterState{UID: "there", Generation: 1, Health: v1alpha1.Healthy}
	const another = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for name, tt := range map[string]struct {
		binding *unstructured.Unstructured
		member  []*unstructured.Unstructured
		allowed string // "" is the content of the object as it is
		removal bool
		waits   bool
	}{
		"new, and not allowed":           {binding(true, nil), nil, another, false, true},
		"new, and allowed":               {binding(true, nil), nil, "", false, false},
		"changed since":                  {binding(true, there), objects(managed("there", "source")), another, false, true},
		"leaves by a decision":           {binding(false, there), objects(managed("there", "source")), "", false, false},
		"leaves, and was changed since":  {binding(false, there), objects(managed("there", "source")), another, false, true},
		"leaves, and removal is allowed": {binding(false, there), objects(managed("there", "source")), another, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(configMap("source"), withSpec(tt.binding, "manual", map[string]any{})), tt.member)
			s.eventually("the suspension is reported", s.contains("control apply configmap-conf Suspended"))
			content := cmp.Or(tt.allowed, kindInfo("", "ConfigMap").Digest(s.control.Get(configMaps, "shop", "conf")))
			s.control.Change(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", func(u *unstructured.Unstructured) {
				withSpec(u, "manual", map[string]any{"content": content, "removal": tt.removal})
			})
			if !tt.waits {
				s.eventually("the member is written to", func() bool { return len(wroteToMember(s.writes())) > 0 })
				return
			}
			if wrote := wroteToMember(s.settle()); len(wrote) > 0 {
				t.Errorf("wrote to the member: %q", wrote)
			}
		})
	}
}
