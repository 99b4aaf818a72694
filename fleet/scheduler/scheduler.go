// Package scheduler keeps one ResourceBinding for each object that clusters
// should run: it asks placement where, writes the answer down, and lets what an
// object needs follow it.
package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
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
	by    *policies
	// fields may be nil: then no field is an obstacle.
	fields Fields
	// manual may be nil: then nothing waits for a plan.
	manual Manual
}

// With makes the scheduler, as a controller of the fleet. It asks fields, unless that is
// nil, what clusters lack for objects; and manual, unless that is nil, which objects wait for plans.
func With(fields Fields, manual Manual) fleet.Controller {
	return func(ctx context.Context, term *fleet.Term) error { return run(ctx, term, fields, manual) }
}

func run(ctx context.Context, term *fleet.Term, fields Fields, manual Manual) error {
	s := &scheduler{Term: term, needs: newNeeds(), by: newPolicies(), fields: fields, manual: manual,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[object](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[object]{Name: "fleet_scheduler"}),
	}
	defer s.queue.ShutDown()
	defer s.heedFields()()
	s.awaitFields(ctx)
	if manual != nil {
		// What waits for a plan must not slip through because a policy is not known yet.
		if err := manual.Ready(ctx); err != nil {
			return fmt.Errorf("find out which workloads wait for plans: %w", err)
		}
	}
	// Who needs what must be known of everybody before the first decision: an
	// object that seems to be needed by nobody is taken out of the clusters. Of kinds
	// that come later it is known when they have come, and until then the term is
	// not complete.
	s.OnKind(s.kindChanged)
	for _, k := range s.Kinds() {
		s.learnAll(k)
	}
	s.prepare()
	if err := s.listen(); err != nil {
		return err
	}
	defer s.heedManual()()
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { s.followClusters(ctx) })
	reading.Go(func() { s.followPolicies(ctx) })
	reading.Go(func() { s.followFields(ctx) })
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
		o := refOf(k.GroupKind(), obj)
		s.queue.Add(o)
		if k.GroupKind() == scalerKind() {
			for _, target := range s.needs.by(o) {
				s.queue.Add(target) // its bounds are those of what the target's clusters share
			}
		}
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
		s.cheer(b.Namespace)
	})
	if err != nil {
		return err
	}
	if err := s.OnServed(func(_ string, gk schema.GroupKind) {
		for obj := range s.Metadata(gk, "") {
			s.queue.Add(refOf(gk, obj))
		}
	}); err != nil {
		return err
	}
	if err := s.OnPolicy(s.wakePolicies); err != nil {
		return err
	}
	if err := s.OnNamespace(s.namespaceChanged); err != nil {
		return err
	}
	return s.OnCluster(s.clusterChanged)
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
	for obj := range s.Metadata(k.GroupKind(), "") {
		s.queue.Add(refOf(k.GroupKind(), obj))
	}
	for _, b := range s.BindingsOf(k.GroupKind()) {
		s.queue.Add(boundBy(b))
	}
}
