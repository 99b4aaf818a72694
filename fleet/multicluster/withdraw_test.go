package multicluster

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestLeaving: the endpoint of a pod that is about to stop is one that terminates. It stays one that serves, if it is.
func TestLeaving(t *testing.T) {
	found := []*discoveryv1.EndpointSlice{slice(t, `{addressType: IPv4, endpoints: [{addresses: [10.0.0.1], zone: z1}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3], conditions: {ready: false, serving: false}}]}`)}
	got := Collect(found, map[string]bool{"10.0.0.1": true, "10.0.0.3": true})
	text := ""
	for _, e := range got.Slices[0].Endpoints {
		text += fmt.Sprint(e.Addresses[0], " ", valueOr(e.Conditions.Ready, true), " ", valueOr(e.Conditions.Serving, true), " ", valueOr(e.Conditions.Terminating, false), " ", valueOr(e.Zone, ""), "; ")
	}
	if text != "10.0.0.2 true true false ; 10.0.0.1 false true true z1; 10.0.0.3 false false true ; " || got.Problem() != "" {
		t.Errorf("%s (%s)", text, got.Problem())
	}
}

// TestWithdrawn: addresses are withdrawn when no EndpointSlice of Atoll has them as ready endpoints. Then the clusters are
// awaited that have an earlier EndpointSlice, or one that is deleted.
func TestWithdrawn(t *testing.T) {
	with := func(conditions string) *discoveryv1.EndpointSlice {
		return slice(t, `{metadata: {generation: 3}, addressType: IPv4, endpoints: [{addresses: [10.0.0.9]}, {addresses: [10.0.0.1], conditions: `+conditions+`}]}`)
	}
	const gone = "{ready: false, serving: true, terminating: true}"
	for _, test := range []struct {
		name string
		of   []Projected
		want string
	}{
		{"no importer", nil, "true []"},
		{"applied", []Projected{{with(gone), map[string]int64{"west": 3, "north": 4}}}, "true []"},
		{"applied by one", []Projected{{with(gone), map[string]int64{"west": 3, "north": 2, "south": 0}}}, "true [north south]"},
		{"still ready", []Projected{{with("{}"), map[string]int64{"west": 3}}}, "false []"},
		{"a deleted slice", []Projected{{with(gone), map[string]int64{"west": 3}}, {nil, map[string]int64{"west": 7}}}, "true [west]"},
	} {
		withdrawn, importers := Withdrawn([]string{"10.0.0.1"}, test.of)
		if got := fmt.Sprint(withdrawn, " ", importers); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
