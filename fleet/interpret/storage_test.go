package interpret

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestAClaimIsOneVolume: a claim of one volume that two clusters have is not Bound, and says why.
func TestAClaimIsOneVolume(t *testing.T) {
	k, _ := Find(schema.GroupKind{Kind: "PersistentVolumeClaim"})
	bound := func(cluster string) MemberStatus {
		return MemberStatus{Cluster: cluster, Current: true, Status: map[string]any{"phase": "Bound"}}
	}
	for _, tt := range []struct {
		mode    string
		members []MemberStatus
		phase   string
	}{
		{"ReadWriteOnce", []MemberStatus{bound("east")}, "Bound"},
		{"ReadWriteOnce", []MemberStatus{bound("east"), bound("west")}, "Pending"},
		{"ReadWriteOncePod", []MemberStatus{bound("east"), bound("west")}, "Pending"},
		{"ReadWriteMany", []MemberStatus{bound("east"), bound("west")}, "Bound"},
	} {
		claim := parse(t, "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: x, namespace: n}\nspec: {accessModes: ["+tt.mode+"]}")
		status, ok, err := k.Aggregate(claim, tt.members)
		if err != nil || !ok || status["phase"] != tt.phase {
			t.Errorf("%s in %d clusters: %v, %v", tt.mode, len(tt.members), status, err)
			continue
		}
		conditions, _, _ := unstructured.NestedSlice(status, "conditions")
		if (len(conditions) > 0) != (tt.phase == "Pending") {
			t.Errorf("%s: %v", tt.mode, conditions)
		} else if len(conditions) > 0 && !strings.Contains(conditions[0].(map[string]any)["message"].(string), "east, west each have a volume of this claim") {
			t.Error(conditions)
		}
	}
}
