package scheduler

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// members are clusters that run at once what bindings choose, and report it, until the test ends. The copies of objects
// that leave a cluster stay there with keep. With names, only those bindings are reported.
func members(t *testing.T, c *control, keep bool, names ...string) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			for _, u := range c.List(v1alpha1.ResourceBindingResource) {
				if len(names) == 0 || slices.Contains(names, u.GetName()) {
					reportShares(c, u, keep)
				}
			}
		}
	}()
	t.Cleanup(func() { close(done); <-ended })
}

// reportShares makes a binding's entries say that clusters run their shares.
func reportShares(c *control, u *unstructured.Unstructured, keep bool) {
	if up, err := upToDate(u, keep); err != nil || up {
		return
	}
	c.Change(v1alpha1.ResourceBindingResource, u.GetNamespace(), u.GetName(), func(u *unstructured.Unstructured) {
		_, _ = upToDate(u, keep)
	})
}

// upToDate brings the entries of a binding up to date, and reports whether they were.
func upToDate(u *unstructured.Unstructured, keep bool) (bool, error) {
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return false, fmt.Errorf("read binding %s: %w", u.GetName(), err)
	}
	was := b.DeepCopy()
	if !keep {
		b.Status.Clusters = slices.DeleteFunc(b.Status.Clusters, func(s v1alpha1.ClusterState) bool {
			_, chosen := b.Share(s.Name)
			return !chosen
		})
	}
	for _, share := range b.Spec.Clusters {
		state := v1alpha1.ClusterState{Name: share.Name, UID: "there", Generation: 1 << 40, Health: v1alpha1.Healthy, Replicas: share.Replicas, ShareRevision: share.Revision}
		if share.Replicas != nil {
			n := *share.Replicas
			raw, err := json.Marshal(map[string]any{"replicas": n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n})
			if err != nil {
				return false, fmt.Errorf("encode the status of %s: %w", u.GetName(), err)
			}
			state.Status = &runtime.RawExtension{Raw: raw}
		}
		if at := slices.IndexFunc(b.Status.Clusters, func(s v1alpha1.ClusterState) bool { return s.Name == share.Name }); at >= 0 {
			b.Status.Clusters[at] = state
		} else {
			b.Status.Clusters = append(b.Status.Clusters, state)
		}
	}
	if equality.Semantic.DeepEqual(b.Status, was.Status) {
		return true, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return false, fmt.Errorf("encode binding %s: %w", u.GetName(), err)
	}
	u.Object["status"] = content["status"]
	return false, nil
}

// leave removes a cluster's entry from a binding, as a syncer does when the object is gone there.
func leave(t *testing.T, c *control, binding, cluster string) {
	t.Helper()
	for _, b := range c.bindings(t) {
		if b.Name != binding {
			continue
		}
		c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) {
			b.Status.Clusters = slices.DeleteFunc(b.Status.Clusters, func(s v1alpha1.ClusterState) bool { return s.Name == cluster })
		})
	}
}

// reported waits until the clusters of all bindings have reported.
func reported(t *testing.T, c *control) {
	t.Helper()
	fakeapi.Until(t, "all clusters have reported", func() bool {
		for _, b := range c.bindings(t) {
			for _, share := range b.Spec.Clusters {
				if _, is := b.State(share.Name); !is {
					return false
				}
			}
		}
		return true
	})
}
