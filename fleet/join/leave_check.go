package join

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// CheckLeave returns why a cluster cannot leave the fleet with its objects removed, and changes nothing: objects are
// suspended, the Cluster is protected from deletion, or the user may not delete it. A cluster should not be emptied
// before these are known.
func CheckLeave(ctx context.Context, atoll *rest.Config, cluster string) error {
	dyn, err := dynamic.NewForConfig(atoll)
	if err != nil {
		return fmt.Errorf("leave %s: make a client of Atoll: %w", cluster, err)
	}
	if err := checkAtoll(ctx, atoll); err != nil {
		return fmt.Errorf("leave %s: %w", cluster, err)
	}
	if err := checkSuspended(ctx, dyn, cluster); err != nil {
		return fmt.Errorf("leave %s: %w", cluster, err)
	}
	err = dyn.Resource(v1alpha1.ClusterResource).Delete(ctx, cluster, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("leave %s: %w", cluster, err)
	}
	return nil
}
