package join

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// checkSuspended returns an error if a cluster has a share of a suspended object: it would be removed with the
// cluster, and nothing is written elsewhere to make it up.
func checkSuspended(ctx context.Context, dyn dynamic.Interface, cluster string) error {
	var found []string
	for _, resource := range []schema.GroupVersionResource{v1alpha1.ResourceBindingResource, v1alpha1.ClusterResourceBindingResource} {
		options := metav1.ListOptions{Limit: 500}
		for {
			list, err := dyn.Resource(resource).List(ctx, options)
			if apierrors.IsForbidden(err) {
				return nil // without the permission to read bindings there is no advice
			}
			if err != nil {
				return fmt.Errorf("look for suspended objects: %w", err)
			}
			for i := range list.Items {
				var b v1alpha1.ResourceBinding
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &b); err != nil {
					return fmt.Errorf("look for suspended objects: %w", err)
				}
				if share, has := b.Share(cluster); has && b.Spec.Suspend && (share.Replicas == nil || *share.Replicas > 0) {
					found = append(found, b.Spec.Resource.Kind+" "+strings.TrimPrefix(b.ObjectName().String(), "/"))
				}
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				break
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("a policy suspends %s: the share in %s would be removed, and not made up in other clusters. Remove suspend from the policy first, or use --cascade=orphan, which leaves it running there",
		names.List(found), cluster)
}
