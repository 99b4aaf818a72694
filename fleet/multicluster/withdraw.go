package multicluster

import (
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// leaving returns an endpoint whose pod is about to stop as one that terminates. Clusters send it no new requests, unless
// they have no other endpoint: then one that still serves is better than none.
func leaving(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	no, yes := false, true
	serving := valueOr(e.Conditions.Serving, valueOr(e.Conditions.Ready, true))
	e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &serving, Terminating: &yes}
	return e
}

// Projected is an EndpointSlice that clusters import from one cluster.
type Projected struct {
	// Slice of Atoll; nil if it is deleted there, and clusters may still have it.
	Slice *discoveryv1.EndpointSlice
	// Applied are the generations that the importing clusters have. Those that do not answer are left out.
	Applied map[string]int64
}

// Withdrawn reports whether no EndpointSlice of Atoll has one of some addresses as a ready endpoint, and which importing
// clusters have not applied those EndpointSlices.
func Withdrawn(addresses []string, of []Projected) (withdrawn bool, importers []string) {
	gone := map[string]bool{}
	for _, a := range addresses {
		gone[a] = true
	}
	missing := map[string]bool{}
	withdrawn = true
	for _, p := range of {
		if p.Slice != nil && slices.ContainsFunc(p.Slice.Endpoints, func(e discoveryv1.Endpoint) bool { return sendsTo(e, gone) }) {
			withdrawn = false
		}
		for cluster, generation := range p.Applied {
			if p.Slice == nil || generation < p.Slice.Generation {
				missing[cluster] = true
			}
		}
	}
	return withdrawn, slices.Sorted(maps.Keys(missing))
}

// sendsTo reports whether clusters send new requests to an endpoint with one of some addresses.
func sendsTo(e discoveryv1.Endpoint, addresses map[string]bool) bool {
	return valueOr(e.Conditions.Ready, true) && slices.ContainsFunc(e.Addresses, func(a string) bool { return addresses[a] })
}
