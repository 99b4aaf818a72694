package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// installed returns the types that have controllers here. A type without a controller would accept
// objects and do nothing with them.
func installed() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{v1alpha1.ClusterResource, v1alpha1.SharedAPIResource,
		v1alpha1.ResourceBindingResource, v1alpha1.ClusterResourceBindingResource,
		v1alpha1.PlacementResource, v1alpha1.ClusterPlacementResource,
		v1alpha1.APIResourceImportResource, v1alpha1.NegotiatedAPIResourceResource, v1alpha1.TypePolicyResource,
		v1alpha1.ResourceInterpretationResource}
}

// InstallCRDs installs or updates the fleet's CRDs and returns when they are served.
func InstallCRDs(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("install the fleet's types: %w", err)
	}
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return fmt.Errorf("install the fleet's types: %w", err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, data := range crds {
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &crd.Object); err != nil {
			return fmt.Errorf("install the fleet's types: %w", err)
		}
		if !slices.ContainsFunc(installed(), func(r schema.GroupVersionResource) bool { return r.GroupResource().String() == crd.GetName() }) {
			continue
		}
		_, err := api.Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: "atoll-fleet", Force: true})
		if err != nil {
			return fmt.Errorf("install type %s: %w", crd.GetName(), err)
		}
	}
	for _, gvr := range installed() {
		if err := waitServed(ctx, client, gvr); err != nil {
			return err
		}
	}
	return nil
}

// waitServed waits until a type can be listed. The CRD's condition Established is not enough: the
// request handler is ready a little later.
func waitServed(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, last = client.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
		if last == nil {
			return true, nil
		}
		if apierrors.IsForbidden(last) || apierrors.IsUnauthorized(last) {
			return false, last
		}
		return false, nil
	})
	if err != nil && last != nil {
		err = last
	}
	if err != nil {
		return fmt.Errorf("wait until type %s is served: %w", gvr.GroupResource(), err)
	}
	return nil
}
