package server

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// ownTypes returns the types whose CRDs runFleet and runProviders create.
func ownTypes() ([]schema.GroupVersionResource, error) {
	ofFleet, err := fleet.CRDs()
	if err != nil {
		return nil, err
	}
	ofInfra, err := infra.CRDs()
	if err != nil {
		return nil, err
	}
	ofServices, err := multicluster.CRDs()
	if err != nil {
		return nil, err
	}
	ofTenancy, err := tenancy.CRDs()
	if err != nil {
		return nil, err
	}
	return controllers.DefinedBy(slices.Concat(ofFleet, ofInfra, ofServices, ofTenancy))
}
