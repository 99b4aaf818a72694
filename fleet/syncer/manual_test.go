package syncer

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestWaitsForAPlan: an object that waits for a plan is neither written nor removed; one that a
// plan allowed is.
func TestWaitsForAPlan(t *testing.T) {
	there := &v1alpha1.ClusterState{UID: "there", Generation: 1, Health: v1alpha1.Healthy}
	is := configMap("source")
	allowed := map[string]any{"content": interpret.ContentDigest(is)}
	another := map[string]any{"content": "sha256:" + strings.Repeat("0", 64)}
	leaving := func(manual map[string]any) *unstructured.Unstructured {
		return withSpec(binding(false, there), "manual", manual)
	}
	for name, tt := range map[string]struct {
		binding *unstructured.Unstructured
		member  []*unstructured.Unstructured
		waits   bool
	}{
		"new, and not allowed":           {withSpec(binding(true, nil), "manual", map[string]any{}), nil, true},
		"new, and allowed":               {withSpec(binding(true, nil), "manual", allowed), nil, false},
		"changed since":                  {withSpec(binding(true, there), "manual", another), objects(managed("there", "source")), true},
		"leaves by a decision":           {leaving(allowed), objects(managed("there", "source")), false},
		"leaves, and was changed since":  {leaving(another), objects(managed("there", "source")), true},
		"leaves, and removal is allowed": {leaving(map[string]any{"content": "sha256:" + strings.Repeat("0", 64), "removal": true}), objects(managed("there", "source")), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(is, tt.binding), tt.member)
			if !tt.waits {
				s.eventually("the member is written to", func() bool {
					for _, entry := range s.writes() {
						if strings.HasPrefix(entry, "member") {
							return true
						}
					}
					return false
				})
				return
			}
			s.eventually("the suspension is reported", s.contains("control apply configmap-conf Suspended"))
			for _, entry := range s.waitIdle() {
				if strings.HasPrefix(entry, "member") {
					t.Errorf("wrote to the member: %s", entry)
				}
			}
		})
	}
}
