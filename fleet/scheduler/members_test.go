package scheduler

import (
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

// members has clusters run at once what bindings choose, and report it, until the test ends. The copies of objects that
// leave a cluster stay there with keep. With names, only those bindings are reported.
func members(t *testing.T, c *control, keep bool, names ...string) {
	t.Helper()
	playMembers(t, c, func(b *v1alpha1.ResourceBinding) { runAtOnce(b, keep) }, names...)
}

// playMembers calls run with each binding, or with those of the given names, every few milliseconds until the test
// ends. run sets the entries of the clusters. Like a syncer, it writes only changes: each write makes a write of the
// scheduler fail that is based on an earlier version.
func playMembers(t *testing.T, c *control, run func(*v1alpha1.ResourceBinding), names ...string) {
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
				if len(names) > 0 && !slices.Contains(names, u.GetName()) || !setEntries(u, run) {
					continue
				}
				c.Change(v1alpha1.ResourceBindingResource, u.GetNamespace(), u.GetName(), func(u *unstructured.Unstructured) {
					setEntries(u, run) // again: the binding may be another one by now
				})
			}
		}
	}()
	t.Cleanup(func() { close(done); <-ended })
}

// setEntries has run set the entries of a binding, and reports whether that changed them.
func setEntries(u *unstructured.Unstructured, run func(*v1alpha1.ResourceBinding)) (changed bool) {
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return false // a test that writes such a binding waits for its effect
	}
	was := b.DeepCopy()
	if run(b); equality.Semantic.DeepEqual(b.Status.Clusters, was.Status.Clusters) {
		return false
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return false
	}
	u.Object["status"] = content["status"]
	return true
}

// runAtOnce sets the entries of a binding: all replicas of its shares are available.
func runAtOnce(b *v1alpha1.ResourceBinding, keep bool) {
	if !keep {
		b.Status.Clusters = slices.DeleteFunc(b.Status.Clusters, func(s v1alpha1.ClusterState) bool {
			_, chosen := b.Share(s.Name)
			return !chosen
		})
	}
	for _, share := range b.Spec.Clusters {
		state := entryOf(share)
		if share.Replicas != nil {
			setReplicas(&state, *share.Replicas, *share.Replicas)
		}
		if at := slices.IndexFunc(b.Status.Clusters, func(s v1alpha1.ClusterState) bool { return s.Name == share.Name }); at >= 0 {
			b.Status.Clusters[at] = state
		} else {
			b.Status.Clusters = append(b.Status.Clusters, state)
		}
	}
}

// entryOf returns the entry of a cluster that applied its share.
func entryOf(share v1alpha1.ClusterShare) v1alpha1.ClusterState {
	return v1alpha1.ClusterState{Name: share.Name, UID: "there", Generation: 1 << 40, Health: v1alpha1.Healthy, Replicas: share.Replicas, ShareRevision: share.Revision}
}

// setReplicas sets the status of a Deployment and its health.
func setReplicas(state *v1alpha1.ClusterState, replicas, available int32) {
	if state.Health = v1alpha1.Healthy; available < replicas {
		state.Health = v1alpha1.Progressing
	}
	state.Status = &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"availableReplicas":%d,"readyReplicas":%d,"replicas":%d,"updatedReplicas":%d}`, available, available, replicas, replicas)}
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
