package v1alpha1

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSharedWith(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Unix(int64(60*minute), 0)) }
	share := func(name string, minute int, change func(*SharedAPI), groups ...string) *SharedAPI {
		s := &SharedAPI{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: at(minute)},
			Spec: SharedAPISpec{Groups: groups, Clusters: []string{"east"}}}
		if change != nil {
			change(s)
		}
		return s
	}
	by := func(selector metav1.LabelSelector) func(*SharedAPI) {
		return func(s *SharedAPI) { s.Spec.Clusters, s.Spec.ClusterSelector = nil, &selector }
	}
	gone := at(9)
	tests := []struct {
		name    string
		leaving bool
		shared  []*SharedAPI
		want    string
	}{
		{"nothing", false, nil, ""},
		{"by name", false, []*SharedAPI{share("s", 1, nil, "a.example", "b.example")}, "a.example:s b.example:s"},
		{"for another", false, []*SharedAPI{share("s", 1, func(s *SharedAPI) { s.Spec.Clusters = []string{"west"} }, "a.example")}, ""},
		{"by label", false, []*SharedAPI{share("s", 1, by(metav1.LabelSelector{MatchLabels: map[string]string{"tier": "prod"}}), "a.example")}, "a.example:s"},
		{"by another label", false, []*SharedAPI{share("s", 1, by(metav1.LabelSelector{MatchLabels: map[string]string{"tier": "test"}}), "a.example")}, ""},
		{"an empty selector chooses all", false, []*SharedAPI{share("s", 1, by(metav1.LabelSelector{}), "a.example")}, "a.example:s"},
		{"a selector that cannot be read chooses none", false, []*SharedAPI{share("s", 1, by(metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Resembles"}}}), "a.example")}, ""},
		{"the older wins", false, []*SharedAPI{share("young", 2, nil, "a.example", "b.example"), share("old", 1, nil, "a.example")}, "a.example:old b.example:young"},
		{"of the same age, the first by name", false, []*SharedAPI{share("y", 1, nil, "a.example"), share("x", 1, nil, "a.example")}, "a.example:x"},
		{"what is being deleted makes room", false, []*SharedAPI{share("young", 2, nil, "a.example"),
			share("old", 1, func(s *SharedAPI) { s.DeletionTimestamp = &gone }, "a.example")}, "a.example:young"},
		{"a member that leaves", true, []*SharedAPI{share("s", 1, nil, "a.example")}, ""},
	}
	for _, tt := range tests {
		c := &Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east", Labels: map[string]string{"tier": "prod"}}}
		if tt.leaving {
			c.DeletionTimestamp = &gone
		}
		var got []string
		for group, s := range SharedWith(c, tt.shared) {
			got = append(got, fmt.Sprintf("%s:%s", group, s.Name))
		}
		slices.Sort(got)
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
