package providers

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// fieldManager is the field manager of the CRDs.
const fieldManager = "atoll-infra"

// InstallCRDs installs or updates the CRDs of infra.atoll.dev and returns when they are served.
// Every server does this at its start, with the same result.
func InstallCRDs(ctx context.Context, client dynamic.Interface) error {
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return fmt.Errorf("install the CRDs of infra.atoll.dev: %w", err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	var resources []string
	for _, data := range crds {
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &crd.Object); err != nil {
			return fmt.Errorf("install the CRDs of infra.atoll.dev: %w", err)
		}
		if _, err := api.Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("install CRD %s: %w", crd.GetName(), err)
		}
		plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
		resources = append(resources, plural)
	}
	for _, plural := range resources {
		if err := waitServed(ctx, client, schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: plural}); err != nil {
			return err
		}
	}
	return nil
}

// waitServed waits until the resource can be listed. A CRD's condition Established is no guarantee:
// the handler follows a little later.
func waitServed(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, last = client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsForbidden(last) || apierrors.IsUnauthorized(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		err = last
	}
	if err != nil {
		return fmt.Errorf("wait for %s to be served: %w", resource.GroupResource(), err)
	}
	return nil
}
