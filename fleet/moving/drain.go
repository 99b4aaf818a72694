package moving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// Cluster reads a Cluster.
func (c *Client) Cluster(ctx context.Context, name string) (*v1alpha1.Cluster, error) {
	u, err := c.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, c.noCluster(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read cluster %s: %w", name, err)
	}
	out := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read cluster %s: %w", name, err)
	}
	return out, nil
}

func (c *Client) noCluster(ctx context.Context, name string) error {
	list, err := c.Dynamic.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cluster %s not found: `kubectl get clusters` lists all clusters", name)
	}
	var joined []string
	for _, u := range list.Items {
		joined = append(joined, u.GetName())
	}
	return names.NoSuchCluster(name, joined)
}

// patchCluster changes the spec of a Cluster, if it is still the same one.
func (c *Client) patchCluster(ctx context.Context, cluster *v1alpha1.Cluster, spec map[string]any) (*v1alpha1.Cluster, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": cluster.UID}, "spec": spec})
	if err != nil {
		return nil, err
	}
	u, err := c.Dynamic.Resource(v1alpha1.ClusterResource).Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager, DryRun: c.dryRun()})
	if err != nil {
		return nil, fmt.Errorf("change cluster %s: %w", cluster.Name, err)
	}
	out := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read cluster %s: %w", cluster.Name, err)
	}
	return out, nil
}

// Cordon keeps new objects out of a cluster. It returns a word for the outcome.
func (c *Client) Cordon(ctx context.Context, name string) (string, error) {
	cluster, err := c.Cluster(ctx, name)
	if err != nil {
		return "", err
	}
	if cluster.Spec.Unschedulable {
		return "already cordoned", nil
	}
	_, err = c.patchCluster(ctx, cluster, map[string]any{"unschedulable": true})
	return "cordoned", err
}

// Uncordon lets new objects into a cluster, and ends its drain. It returns a word for the outcome.
func (c *Client) Uncordon(ctx context.Context, name string) (string, error) {
	cluster, err := c.Cluster(ctx, name)
	if err != nil {
		return "", err
	}
	said := "uncordoned"
	switch {
	case cluster.Spec.Drain != nil:
		said = "uncordoned, its drain is ended"
	case !cluster.Spec.Unschedulable:
		return "already uncordoned", nil
	}
	_, err = c.patchCluster(ctx, cluster, map[string]any{"unschedulable": nil, "drain": nil})
	return said, err
}

// DrainOptions are the settings of a drain; nil keeps the present one.
type DrainOptions struct {
	Rate, MaxInFlight *int32
	Paused            *bool
}

// ErrUnknownDrain means that Atoll's servers have no drains.
var ErrUnknownDrain = errors.New("this Atoll does not support drains, because its servers are older than this program: update them first")

// Drain begins to drain a cluster, or changes the settings of a drain. It returns the changed Cluster, and a word for
// the outcome.
func (c *Client) Drain(ctx context.Context, name string, o DrainOptions) (*v1alpha1.Cluster, string, error) {
	cluster, err := c.Cluster(ctx, name)
	if err != nil {
		return nil, "", err
	}
	drain, said, err := drainPatch(cluster, o)
	if err != nil {
		return nil, "", err
	}
	changed, err := c.patchCluster(ctx, cluster, map[string]any{"drain": drain})
	if err != nil {
		return nil, "", err
	}
	if changed.Spec.Drain == nil {
		return nil, "", ErrUnknownDrain
	}
	return changed, said, nil
}

func drainPatch(c *v1alpha1.Cluster, o DrainOptions) (drain map[string]any, said string, err error) {
	drains := c.Spec.Drain != nil
	switch {
	case c.DeletionTimestamp != nil:
		return nil, "", fmt.Errorf("cluster %s is leaving the fleet, which empties it", c.Name)
	case o.Paused != nil && !drains:
		return nil, "", fmt.Errorf("cluster %s is not drained: `atoll drain %s` begins to drain it", c.Name, c.Name)
	}
	drain, said = map[string]any{}, "is drained"
	if drains {
		said = "is drained already"
	}
	if o.Rate != nil {
		drain["rate"] = *o.Rate
	}
	if o.MaxInFlight != nil {
		drain["maxInFlight"] = *o.MaxInFlight
	}
	if o.Paused != nil {
		drain["paused"] = *o.Paused
		switch {
		case *o.Paused == c.Spec.Drain.Paused && *o.Paused:
			said = "drain already paused"
		case *o.Paused:
			said = "drain paused"
		default:
			said = "drain resumed"
		}
	}
	return drain, said, nil
}

// BlockedError means that a cluster cannot be emptied.
type BlockedError struct {
	Cluster string
	// Message names the objects, and why they stay.
	Message string
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("cluster %s cannot be drained completely: %s", e.Cluster, e.Message)
}

// FollowDrain waits until a cluster is drained. c is the Cluster as Drain returned it. It calls progress when the state
// changes, and returns a BlockedError if objects cannot leave.
func (c *Client) FollowDrain(ctx context.Context, drained *v1alpha1.Cluster, progress func(string)) error {
	last := ""
	return poll(ctx, func() (bool, error, error) {
		u, err := c.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, drained.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && u.GetUID() != drained.UID {
			return false, nil, fmt.Errorf("cluster %s has left the fleet meanwhile", drained.Name)
		}
		if err != nil {
			return false, fmt.Errorf("read cluster %s: %w", drained.Name, err), nil
		}
		var now v1alpha1.Cluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &now); err != nil {
			return false, nil, fmt.Errorf("read cluster %s: %w", drained.Name, err)
		}
		done, text, err := judgeDrain(&now, drained.Generation)
		if text != last && !done && err == nil {
			progress(text)
			last = text
		}
		return done, nil, err
	})
}

// judgeDrain returns how far a drain is. generation is that of the Cluster when the drain began.
func judgeDrain(c *v1alpha1.Cluster, generation int64) (done bool, text string, err error) {
	state := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterDraining)
	switch {
	case c.DeletionTimestamp != nil:
		return false, "", fmt.Errorf("cluster %s leaves the fleet, which empties it", c.Name)
	case c.Spec.Drain == nil:
		return false, "", fmt.Errorf("the drain of cluster %s was ended by another client", c.Name)
	case c.Spec.Drain.Paused:
		return false, "", fmt.Errorf("the drain of cluster %s is paused: `atoll drain %s --resume` goes on", c.Name, c.Name)
	case state == nil || state.ObservedGeneration != 0 && state.ObservedGeneration < generation || state.Reason == v1alpha1.ReasonDrainPaused:
		return false, "waiting for Atoll's leader to begin", nil
	case state.Reason == v1alpha1.ReasonDrained:
		return true, state.Message, nil
	case state.Reason == v1alpha1.ReasonDrainBlocked:
		return false, "", &BlockedError{c.Name, state.Message}
	}
	return false, state.Message, nil
}
