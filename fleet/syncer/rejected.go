package syncer

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// firstPodCheck is how long an object may lack pods before its events are read: most get them in a moment.
	firstPodCheck = 2 * time.Second
	// lastPodCheck is the longest pause between two checks. Each lists the events of the object's namespace in the
	// member's datastore.
	lastPodCheck = 2 * time.Minute
)

// podCheck is what the syncer knows about the pods that an object lacks.
type podCheck struct {
	generation int64 // of the member's object
	next       time.Time
	wait       time.Duration // between the last check and the next one
	// rejected is why the cluster rejected them at the last check; "" if it did not.
	rejected string
}

// rejectedPods returns why the member rejects pods of an object of a kind whose status does not say so; "" if it does
// not, or if that is not known yet. It reads the object's events at times, because nothing else changes when a
// controller tries in vain to create a pod.
func (s *Syncer) rejectedPods(ctx context.Context, t *target, live *unstructured.Unstructured) string {
	c, now := &t.record.pods, s.clock.Now()
	switch {
	case !t.LacksPods(live):
		*c = podCheck{}
		return ""
	case c.wait == 0 || c.generation != live.GetGeneration():
		*c = podCheck{generation: live.GetGeneration(), next: now.Add(firstPodCheck), wait: firstPodCheck}
	case !now.Before(c.next):
		// Without permission to read events, or without an answer, the last finding stays.
		if events, err := s.member.eventsAbout(ctx, live.GetNamespace(), live.GetUID()); err == nil {
			c.rejected = interpret.RejectedPods(events)
		}
		c.wait = min(2*c.wait, lastPodCheck)
		c.next = now.Add(c.wait)
	}
	s.queue.AddAfter(t.binding.Key(), c.next.Sub(now))
	return c.rejected
}

// eventsAbout returns the events about an object in the member.
func (c *memberClient) eventsAbout(ctx context.Context, namespace string, uid types.UID) ([]corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.dyn.Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(namespace).
		List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String()})
	if err != nil {
		return nil, err
	}
	out := make([]corev1.Event, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
