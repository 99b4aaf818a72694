// Package scheduler keeps one ResourceBinding for each object that clusters
// should run: it asks placement where, writes the answer down, and lets what an
// object needs follow it.
package scheduler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// FieldManager owns the decision in a ResourceBinding and its Scheduled condition.
const FieldManager = "atoll-scheduler"

// workers decide in parallel. A decision takes microseconds; the writes overlap.
const workers = 8

// object names what is placed.
type object struct {
	schema.GroupKind
	types.NamespacedName
}

func (o object) binding() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: v1alpha1.BindingName(o.GroupKind, o.Name)}
}

func refOf(gk schema.GroupKind, obj metav1.Object) object {
	return object{gk, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

func boundBy(b *v1alpha1.ResourceBinding) object {
	return object{b.Spec.Resource.GroupVersionKind().GroupKind(),
		types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}}
}

type scheduler struct {
	*fleet.Term
	queue workqueue.TypedRateLimitingInterface[object]
	needs *needs
}

// Run is the scheduler as a controller of the fleet.
func Run(ctx context.Context, term *fleet.Term) error {
	s := &scheduler{Term: term, needs: newNeeds(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[object](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[object]{Name: "fleet_scheduler"}),
	}
	defer s.queue.ShutDown()
	// Who needs what must be known of everybody before the first decision: an
	// object that seems to be needed by nobody is taken out of the clusters. Of kinds
	// that come later it is known when they have come, and until then the term is
	// not complete.
	s.OnKind(s.kindChanged)
	for _, k := range s.Kinds() {
		s.learnAll(k)
	}
	if err := s.listen(); err != nil {
		return err
	}
	fleet.Work(ctx, s.queue, workers, s.reconcile, s.failed)
	return nil
}

func (s *scheduler) failed(o object, err error) (again bool) {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false // the object is next to go
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		s.Log.Warn("cannot schedule; will try again", "kind", o.Kind, "namespace", o.Namespace, "name", o.Name, "error", err)
	}
	return true
}

// listen puts into the queue whatever an event may concern.
func (s *scheduler) listen() error {
	err := s.OnObjects(func(k interpret.Kind, was, is metav1.Object) {
		obj := is
		if is == nil {
			obj = was
		} else if was != nil && was.GetUID() == is.GetUID() && fleet.OnlyStatusDiffers(was, is) {
			return
		}
		s.queue.Add(refOf(k.GroupKind(), obj))
	})
	if err != nil {
		return err
	}
	err = s.OnBinding(func(was, is *v1alpha1.ResourceBinding) {
		b := is
		if is == nil {
			b = was
		} else if was != nil && was.UID == is.UID && was.Generation == is.Generation && is.DeletionTimestamp == nil {
			return // only the status changed
		}
		o := boundBy(b)
		s.queue.Add(o)
		for _, needed := range s.needs.of(o) {
			s.queue.Add(needed)
		}
	})
	if err != nil {
		return err
	}
	if err := s.OnServed(func(_ string, gk schema.GroupKind) {
		for obj := range s.Objects(gk, "") {
			s.queue.Add(refOf(gk, obj))
		}
	}); err != nil {
		return err
	}
	return s.OnCluster(func(was, is *v1alpha1.Cluster) {
		if was != nil && is != nil && s.facts(was) == s.facts(is) {
			return
		}
		s.enqueuePlaced()
		if is == nil {
			for _, b := range s.BindingsOn(was.Name) {
				s.queue.Add(boundBy(b))
			}
		}
	})
}

// learnAll learns what the objects of a kind state.
func (s *scheduler) learnAll(k interpret.Kind) {
	for obj := range s.Objects(k.GroupKind(), "") {
		changed, err := s.learn(k, obj)
		if err != nil {
			continue // reconcile says so
		}
		for _, o := range changed {
			s.queue.Add(o)
		}
	}
}

// kindChanged looks again at everything of a kind that came, went, or is now
// understood differently.
func (s *scheduler) kindChanged(k interpret.Kind) {
	if _, served := s.Served(k.GroupKind()); served {
		s.learnAll(k)
	}
	for obj := range s.Objects(k.GroupKind(), "") {
		s.queue.Add(refOf(k.GroupKind(), obj))
	}
	for _, b := range s.BindingsOf(k.GroupKind()) {
		s.queue.Add(boundBy(b))
	}
}

func (s *scheduler) enqueuePlaced() {
	for _, k := range s.Kinds() {
		if !k.Placed {
			continue
		}
		for obj := range s.Objects(k.GroupKind(), "") {
			s.queue.Add(refOf(k.GroupKind(), obj))
		}
	}
}

// facts is what placement needs to know of a cluster.
func (s *scheduler) facts(c *v1alpha1.Cluster) placement.Cluster {
	f := placement.Cluster{Name: c.Name, Joined: c.CreationTimestamp.Time,
		Since: c.CreationTimestamp.Time, EvictAfter: c.Tolerates(), Unschedulable: c.Spec.Unschedulable}
	f.Leaving, _ = c.Leaves()
	for _, condition := range c.Status.Conditions {
		if condition.Type == v1alpha1.ClusterReady {
			f.Ready = condition.Status == "True"
			f.Since = condition.LastTransitionTime.Time
			if !f.Ready {
				f.Why = condition.Reason
			}
		}
	}
	// Times in the API have whole seconds.
	f.Confirmed = c.Status.LastProbeTime != nil && !c.Status.LastProbeTime.Time.Before(s.Started.Truncate(time.Second))
	if f.Ready {
		// A ready cluster needs no confirmation, and a change of it no decision.
		f.Confirmed = true
	}
	return f
}

func (s *scheduler) fleet() []placement.Cluster {
	clusters := s.Clusters()
	out := make([]placement.Cluster, 0, len(clusters))
	for _, c := range clusters {
		out = append(out, s.facts(c))
	}
	return out
}

// request asks placement about one object.
func (s *scheduler) request(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) placement.Request {
	r := placement.Request{Clusters: s.fleet(), Now: s.Clock.Now()}
	if k.DefaultMode == interpret.Divided {
		r.Object.Replicas, r.Object.Divided = k.Replicas(obj)
	}
	r.Object.Finished = k.Finished(obj)
	if b != nil {
		for _, c := range b.Spec.Clusters {
			share := placement.Share{Cluster: c.Name}
			if c.Replicas != nil {
				share.Replicas = *c.Replicas
			}
			r.Previous = append(r.Previous, share)
		}
	}
	return r
}
