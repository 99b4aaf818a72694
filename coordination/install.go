package coordination

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// fieldManager owns the fields that this package applies.
const fieldManager = "atoll-coordination"

//go:embed lease.yaml
var leaseCRD []byte

// Install installs or updates the kind Lease in a workspace of Atoll, and returns when it
// is served. It does not expose the kind to members.
func Install(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("install the shared Lease: %w", err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(leaseCRD, &crd.Object); err != nil {
		return fmt.Errorf("install the shared Lease: %w", err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := api.Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return fmt.Errorf("install type %s: %w", crd.GetName(), err)
	}
	// The condition Established is not sufficient: the handler may follow a little later.
	var last error
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, last = client.Resource(LeaseResource).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsForbidden(last) || apierrors.IsUnauthorized(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		err = last
	}
	if err != nil {
		return fmt.Errorf("wait until type %s is served: %w", crd.GetName(), err)
	}
	return nil
}
