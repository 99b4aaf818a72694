package view

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	// A revoked credential may ask as often as it likes: so many questions reach the API server.
	confirmationsPerSecond = 5
	confirmationsAtOnce    = 20
	// confirmInterval and confirmTimeout are how often and how long a request waits for the caches.
	confirmInterval = 10 * time.Millisecond
	confirmTimeout  = 5 * time.Second
)

// confirmRefusal reads the Cluster again before a syncer is refused: the caches may not have a credential that was
// issued a moment ago, perhaps by another server, and the syncer would be told that it is revoked. If the refusal
// was wrong, it returns nil once the caches have the credential, because the view is served from them.
func (h *Host) confirmRefusal(ctx context.Context, c *caches, cluster string, groups []string, refusal error) error {
	if !h.confirming.Allow() {
		return refusal
	}
	u, err := c.session.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, cluster, metav1.GetOptions{})
	if err != nil {
		return refusal // it does not exist, or that is not known
	}
	live := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, live); err != nil {
		return refusal
	}
	if err := authorizeSyncer(live, true, cluster, groups); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, confirmInterval, confirmTimeout, true, func(context.Context) (bool, error) {
		cached, exists := c.session.Clusters.Get(cluster)
		return authorizeSyncer(cached, exists, cluster, groups) == nil, nil
	})
	if err != nil {
		return newStatusError(metav1.StatusReasonServiceUnavailable, "this server has not read the new credential of cluster %s yet; retry", cluster)
	}
	return nil
}
