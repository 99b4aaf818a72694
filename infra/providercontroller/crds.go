package providercontroller

import (
	"context"
	"fmt"

	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// fieldManager is the field manager of the CRDs.
const fieldManager = "atoll-infra"

// InstallCRDs installs or updates the CRDs of infra.atoll.dev and returns when they are served.
func InstallCRDs(ctx context.Context, client dynamic.Interface) error {
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return fmt.Errorf("install the CRDs of infra.atoll.dev: %w", err)
	}
	return controllers.InstallCRDs(ctx, client, fieldManager, crds)
}
