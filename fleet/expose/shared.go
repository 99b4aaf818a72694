package expose

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// exposure is the state of one SharedAPI in one member, as this leader observed it.
type exposure struct {
	exposed         bool
	reason, message string
	versions        []string
	// undecided: it is not known yet whether the member may be written to.
	undecided bool
	// clean: no object of the SharedAPI is in the member, and none will be created.
	clean bool
}

func (v exposure) same(w exposure) bool {
	return v.exposed == w.exposed && v.reason == w.reason && v.message == w.message && v.clean == w.clean && slices.Equal(v.versions, w.versions)
}

// record records the state of each SharedAPI in a member, and enqueues those that changed.
func (c *controller) record(cluster string, f func(*v1alpha1.SharedAPI) exposure) {
	for _, s := range c.shared.All() {
		k := key{cluster: cluster, shared: s.Name}
		now := f(s)
		c.mu.Lock()
		was, known := c.exposures[k]
		c.exposures[k] = now
		c.mu.Unlock()
		if !known || !was.same(now) {
			c.queue.Add(key{shared: s.Name})
		}
	}
}

func (c *controller) recorded(cluster, shared string) (exposure, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, known := c.exposures[key{cluster: cluster, shared: shared}]
	return v, known
}

func (c *controller) forget(shared string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.exposures, func(k key, _ exposure) bool { return k.shared == shared })
}

// reconcileShared writes the status of a SharedAPI. It removes the finalizer of a deleted one when
// no member has any of its objects.
func (c *controller) reconcileShared(ctx context.Context, name string) error {
	s, exists := c.shared.Get(name)
	if !exists {
		c.forget(name)
		return nil
	}
	if s.DeletionTimestamp == nil && !slices.Contains(s.Finalizers, v1alpha1.ExposeFinalizer) {
		return c.patchFinalizers(ctx, v1alpha1.SharedAPIResource, s, true)
	}
	status := c.statusOf(s)
	if !equality.Semantic.DeepEqual(status, s.Status) {
		return c.writeStatus(ctx, s, status)
	}
	if s.DeletionTimestamp != nil && len(s.Status.Clusters) == 0 {
		return c.patchFinalizers(ctx, v1alpha1.SharedAPIResource, s, false)
	}
	return nil
}

// statusOf returns the status from the recorded states of the members.
func (c *controller) statusOf(s *v1alpha1.SharedAPI) v1alpha1.SharedAPIStatus {
	status := v1alpha1.SharedAPIStatus{ObservedGeneration: s.Generation, Conditions: slices.Clone(s.Status.Conditions)}
	names := map[string]bool{}
	for _, e := range s.Status.Clusters {
		names[e.Name] = true
	}
	for _, n := range s.Spec.Clusters {
		names[n] = true
	}
	for _, cluster := range c.Clusters.All() {
		if s.Selects(cluster) {
			names[cluster.Name] = true
		}
	}
	chosen, exposed, reasons := 0, 0, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		entry, selected, keep := c.entry(s, name)
		if !keep {
			continue
		}
		status.Clusters = append(status.Clusters, entry)
		switch {
		case selected && entry.Exposed:
			chosen, exposed = chosen+1, exposed+1
		case selected:
			chosen++
			fallthrough
		default:
			if reasons[entry.Reason] == "" {
				reasons[entry.Reason] = fmt.Sprintf("%s: %s", name, entry.Message)
			}
		}
	}
	status.Exposed = fmt.Sprintf("%d/%d", exposed, chosen)
	ready := metav1.Condition{Type: v1alpha1.SharedReady, Status: metav1.ConditionFalse, ObservedGeneration: s.Generation}
	switch len(reasons) {
	case 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, v1alpha1.ExposureExposed, "all chosen clusters serve the groups"
	case 1:
		for reason, message := range reasons {
			ready.Reason, ready.Message = reason, message
		}
	default:
		ready.Reason, ready.Message = v1alpha1.ExposureNotAllExposed, fmt.Sprintf("%s clusters serve the groups; see status.clusters", status.Exposed)
	}
	ready.LastTransitionTime = metav1.NewTime(c.Clock.Now())
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}

// entry returns the status entry of one cluster, and whether there should be one.
func (c *controller) entry(s *v1alpha1.SharedAPI, name string) (entry v1alpha1.ClusterExposure, selected, keep bool) {
	was, entered := s.Exposure(name)
	cluster, joined := c.Clusters.Get(name)
	v, judged := c.recorded(name, s.Name)
	selected = s.DeletionTimestamp == nil && (joined && cluster.DeletionTimestamp == nil && s.Selects(cluster) || !joined && slices.Contains(s.Spec.Clusters, name))
	switch {
	case !selected && (!joined || judged && v.clean):
		// A Cluster is gone only after the member is clean.
		return entry, false, false
	case !joined:
		v = exposure{reason: v1alpha1.ExposureNoSuchCluster, message: "no cluster of this name has joined: join it with `atoll join`, or correct spec.clusters"}
	case !selected && (!judged || v.exposed):
		v = exposure{reason: v1alpha1.ExposureRemoving, message: "about to be removed from the member", versions: was.Versions}
	case selected && (!judged || v.clean) && entered:
		return was, true, true // the state that a previous leader recorded holds until this one knows more
	case selected && (!judged || v.clean):
		v = exposure{reason: v1alpha1.ExposureApplying, message: "about to be written to the member"}
	}
	entry = v1alpha1.ClusterExposure{Name: name, Exposed: v.exposed, Reason: v.reason, Message: v.message, Versions: v.versions,
		LastTransitionTime: metav1.NewTime(c.Clock.Now())}
	if entered && was.Exposed == entry.Exposed && was.Reason == entry.Reason {
		entry.LastTransitionTime = was.LastTransitionTime
	}
	return entry, selected, true
}

// writeStatus writes the complete status, unless the SharedAPI has changed since it was read.
func (c *controller) writeStatus(ctx context.Context, s *v1alpha1.SharedAPI, status v1alpha1.SharedAPIStatus) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("encode the status of SharedAPI %s: %w", s.Name, err)
	}
	_, err = c.Dynamic.Resource(v1alpha1.SharedAPIResource).ApplyStatus(ctx, s.Name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "SharedAPI",
		"metadata": map[string]any{"name": s.Name, "uid": string(s.UID), "resourceVersion": s.ResourceVersion},
		"status":   fields,
	}}, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of SharedAPI %s: %w", s.Name, err)
	}
	for _, e := range status.Clusters {
		was, _ := s.Exposure(e.Name)
		if was.Reason == e.Reason {
			continue
		}
		level := corev1.EventTypeWarning
		switch e.Reason {
		case v1alpha1.ExposureExposed, v1alpha1.ExposureApplying, v1alpha1.ExposureRemoving:
			level = corev1.EventTypeNormal
		}
		message := e.Message
		if message == "" {
			message = "the member serves the groups"
		}
		c.Events.Eventf(s, level, e.Reason, "Cluster %s: %s", e.Name, message)
	}
	return nil
}
