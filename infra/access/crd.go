package access

import (
	"context"
	_ "embed" // for the CRD
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/controllers"
)

// referenceGrantCRD is Gateway API's file, unchanged: sigs.k8s.io/gateway-api v1.3.0,
// config/crd/standard. Its licence is the Apache License 2.0.
//
//go:embed crds/gateway.networking.k8s.io_referencegrants.yaml
var referenceGrantCRD []byte

// managedByLabel on the CRD means that it is this one. A CRD that a user installed does not have it, and is
// left as it is.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "atoll"
)

// InstallReferenceGrants installs the CRD of ReferenceGrants, unless Gateway API is installed, and returns
// when the type is served.
func InstallReferenceGrants(ctx context.Context, client dynamic.Interface, fieldManager string) error {
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(referenceGrantCRD, &crd.Object); err != nil {
		return fmt.Errorf("parse the CRD of ReferenceGrants: %w", err)
	}
	delete(crd.Object, "status")
	unstructured.RemoveNestedField(crd.Object, "metadata", "creationTimestamp")
	crd.SetLabels(map[string]string{managedByLabel: managedBy})
	api := client.Resource(kschema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	stored, err := api.Get(ctx, crd.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// Create fails if a user installs theirs at this moment. The next attempt finds it.
		_, err = api.Create(ctx, crd, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) { // another server
			stored, err = api.Get(ctx, crd.GetName(), metav1.GetOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("install CRD %s: %w", crd.GetName(), err)
	}
	if stored != nil && stored.GetLabels()[managedByLabel] != managedBy {
		return nil
	}
	if stored != nil {
		text, err := yaml.Marshal(crd.Object)
		if err != nil {
			return err
		}
		return controllers.InstallCRDs(ctx, client, fieldManager, [][]byte{text})
	}
	return controllers.WaitServed(ctx, client, ReferenceGrants())
}
