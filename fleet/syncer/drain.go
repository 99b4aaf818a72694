package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

const (
	// leavingGrace is how long the addresses of pods that were told to stop count as leaving afterwards: the member's
	// controllers delete pods, and change EndpointSlices, a moment later.
	leavingGrace = 30 * time.Second
	// drainRetry is the pause after a failure.
	drainRetry = 2 * time.Second
	// maxDrainedPods bounds the pods of one object that are read.
	maxDrainedPods = 5000
)

// drainEndpoints takes the pods that a smaller share is about to stop out of the endpoints of exported Services, and takes that
// back if the share stays. The next report has the result. Without an announcement it does nothing.
func (s *Syncer) drainEndpoints(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) {
	share, chosen := b.Share(s.cluster)
	switch {
	case !chosen && m.entry == nil:
		s.endpoints.expire(b.Key(), s.clock.Now())
	case !chosen || b.Spec.Suspend:
		// While the object is removed, its pods are about to stop.
	case share.Drain != nil:
		s.withdraw(ctx, k, b, m, share.Drain)
	case m.drain == nil:
		s.endpoints.expire(b.Key(), s.clock.Now())
	case share.Replicas == nil || *share.Replicas > m.drain.Replicas:
		s.endDrain(ctx, k, b, m) // called off
	}
}

// withdraw chooses the pods that are about to stop.
func (s *Syncer) withdraw(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record, d *v1alpha1.EndpointDrain) {
	report := &v1alpha1.EndpointDrainReport{Revision: d.Revision, Replicas: d.Replicas}
	// Pods of the step before may be gone, and still be in EndpointSlices of the member.
	leave := s.endpoints.leavingOf(b.Key())
	pods, err := s.podsOf(ctx, k, b, m)
	if err == nil {
		var plan multicluster.PodDrain
		if k.GroupVersionKind.Kind == "StatefulSet" {
			plan = multicluster.StoppingOrdinals(pods, d.OrdinalStart, d.Replicas)
		} else {
			plan = multicluster.Stopping(pods, d.Replicas)
		}
		if err = s.mark(ctx, b, plan); err == nil {
			terminating := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !multicluster.IsTerminating(p) })
			report.Addresses = multicluster.Addresses(slices.Concat(plan.Stop, terminating))
			all := multicluster.Addresses(pods)
			leave = slices.DeleteFunc(slices.Clone(leave), func(a string) bool { return slices.Contains(all, a) })
		}
	}
	if err != nil {
		report.Message = bounded(explain(err))
		s.queue.AddAfter(b.Key(), drainRetry)
		s.log.Debug("pods that leave are not known; retrying", "binding", b.Key().String(), "error", err)
		if m.drain != nil {
			report.Addresses = m.drain.Addresses // those of an earlier announcement still leave
		}
	}
	m.drain = report
	leave = slices.Concat(leave, report.Addresses)
	slices.Sort(leave)
	s.endpoints.setLeaving(b.Key(), slices.Compact(leave), time.Time{})
}

// mark has the member's controller stop exactly the pods of a plan.
func (s *Syncer) mark(ctx context.Context, b *v1alpha1.ResourceBinding, plan multicluster.PodDrain) error {
	for _, p := range plan.Mark {
		err := s.member.annotatePod(ctx, p, strconv.Itoa(int(plan.Cost)), "true")
		if lacksPermission(err) {
			// It chooses by itself then, most often the same pods.
			s.Event(b, corev1.EventTypeWarning, v1alpha1.StateForbidden, fmt.Sprintf("Cluster %s: pods that are about to stop are out of the endpoints of exported Services, but the cluster may stop others: allow `patch` of `pods` (%s)", s.cluster, explain(err)))
			return nil
		}
		if err != nil {
			return err
		}
	}
	return s.unmark(ctx, plan.Unmark)
}

func (s *Syncer) unmark(ctx context.Context, pods []*corev1.Pod) error {
	for _, p := range pods {
		if err := s.member.annotatePod(ctx, p, nil, nil); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// settleDrain ends a drain when the member's controllers have stopped the pods. Those that stay, because others became
// unready, are endpoints again.
func (s *Syncer) settleDrain(ctx context.Context, t *target, live *unstructured.Unstructured) {
	if t.record.drain == nil || t.share.Drain != nil || t.binding.Spec.Suspend {
		return
	}
	observed, _ := t.ObservedGeneration(live)
	wanted, _, _ := unstructured.NestedInt64(live.Object, "spec", "replicas")
	running, _, _ := unstructured.NestedInt64(live.Object, "status", "replicas")
	if observed >= live.GetGeneration() && running <= wanted {
		s.endDrain(ctx, t.KindInfo, t.binding, t.record)
	}
}

// endDrain has the pods of an object that stay be endpoints again, and takes the costs back that were set on them.
func (s *Syncer) endDrain(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) {
	pods, err := s.podsOf(ctx, k, b, m)
	if err == nil {
		active := slices.DeleteFunc(slices.Clone(pods), multicluster.IsTerminating)
		stays := multicluster.Addresses(active)
		gone := slices.DeleteFunc(slices.Clone(m.drain.Addresses), func(a string) bool { return slices.Contains(stays, a) })
		s.endpoints.setLeaving(b.Key(), gone, s.clock.Now().Add(leavingGrace))
		if len(gone) > 0 {
			s.queue.AddAfter(b.Key(), leavingGrace+time.Second)
		}
		err = s.unmark(ctx, multicluster.Stopping(active, int32(len(active))).Unmark)
	}
	if err != nil && !lacksPermission(err) {
		s.queue.AddAfter(b.Key(), drainRetry)
		s.log.Debug("pods that stay are not known; retrying", "binding", b.Key().String(), "error", err)
		return
	}
	m.drain = nil
}

// leftWithDrain keeps the addresses of an object that was removed out of endpoints until its pods are gone, too.
func (s *Syncer) leftWithDrain(b *v1alpha1.ResourceBinding, m *record) {
	if m.drain != nil {
		s.endpoints.setLeaving(b.Key(), m.drain.Addresses, s.clock.Now().Add(leavingGrace))
		s.queue.AddAfter(b.Key(), leavingGrace+time.Second)
		m.drain = nil
	}
}

// podsOf returns the pods of an object in the member.
func (s *Syncer) podsOf(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) ([]*corev1.Pod, error) {
	live, err := s.live(ctx, k, b, m)
	if err != nil || live == nil {
		return nil, err
	}
	var selector metav1.LabelSelector
	fields, _, _ := unstructured.NestedMap(live.Object, "spec", "selector")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &selector); err != nil {
		return nil, fmt.Errorf("read the selector of %s %s: %w", k.Kind, live.GetName(), err)
	}
	selected, err := s.member.pods(ctx, live.GetNamespace(), metav1.FormatLabelSelector(&selector))
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s %s: %w", k.Kind, live.GetName(), err)
	}
	return slices.DeleteFunc(selected, func(p *corev1.Pod) bool { return !isPodOf(p, live) }), nil
}

// isPodOf reports whether a pod belongs to an object: of a Deployment, by one of its ReplicaSets.
func isPodOf(p *corev1.Pod, live *unstructured.Unstructured) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	switch {
	case owner == nil:
		return false
	case live.GetKind() == "Deployment":
		return owner.Kind == "ReplicaSet" && owner.Name == live.GetName()+"-"+p.Labels["pod-template-hash"]
	}
	return owner.UID == live.GetUID()
}

// pods returns the pods in the member that a selector selects.
func (c *memberClient) pods(ctx context.Context, namespace, selector string) ([]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.dyn.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: maxDrainedPods})
	if err != nil {
		return nil, err
	}
	if list.GetContinue() != "" {
		return nil, fmt.Errorf("there are more than %d", maxDrainedPods)
	}
	out := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[i] = &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// annotatePod sets the cost of a pod and Atoll's mark, or removes both, unless the pod has changed since it was read.
func (c *memberClient) annotatePod(ctx context.Context, p *corev1.Pod, cost, mark any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion,
		"annotations": map[string]any{corev1.PodDeletionCost: cost, v1alpha1.PodDrainedAnnotation: mark}}})
	if err != nil {
		return err
	}
	if _, err = c.dyn.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(p.Namespace).
		Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
		return fmt.Errorf("set annotation %s of pod %s: %w", corev1.PodDeletionCost, p.Name, err)
	}
	return nil
}
