package apiserver

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
)

// localGroups is the document of all API groups without those of APIServices that point
// to Services. Upstream lists such a group as stale although it cannot be queried. A
// client that needs all kinds then sees that its list is incomplete, for as long as the
// APIService exists: no namespace could be deleted, and kubectl would complain on each
// command. Here such a group is never served.
type localGroups struct{ aggregated.ResourceManager }

func (g localGroups) WithSource(source aggregated.Source) aggregated.ResourceManager {
	of := g.ResourceManager.WithSource(source)
	if source == aggregated.AggregatorSource { // only the aggregator's groups
		return discardGroups{of}
	}
	return of
}

type discardGroups struct{ aggregated.ResourceManager }

func (discardGroups) AddGroupVersion(string, apidiscoveryv2.APIVersionDiscovery) {}
