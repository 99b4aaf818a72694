package apiserver

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
)

// ownGroups is the document of all API groups without those that APIServices point
// to Services for. Upstream lists such a group although it cannot be asked, as stale.
// Whoever has to know all kinds then knows that it does not, for as long as the
// APIService is there: no namespace could be deleted any more, and kubectl would
// complain with each command. Here such a group is never served.
type ownGroups struct{ aggregated.ResourceManager }

func (g ownGroups) WithSource(source aggregated.Source) aggregated.ResourceManager {
	of := g.ResourceManager.WithSource(source)
	if source == aggregated.AggregatorSource { // those and no others
		return unlisted{of}
	}
	return of
}

type unlisted struct{ aggregated.ResourceManager }

func (unlisted) AddGroupVersion(string, apidiscoveryv2.APIVersionDiscovery) {}
