// Package scheduler maintains one ResourceBinding for each object that clusters should run. It
// asks package placement for a decision, records it in the binding, and binds the object's
// dependencies to the same clusters.
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
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// FieldManager owns the decision in a ResourceBinding and its Scheduled condition.
const FieldManager = "atoll-scheduler"

// workers is the number of parallel decisions. A decision takes microseconds; the writes
// overlap.
const workers = 8

// object identifies an object that is placed.
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
	*fleet.Session
	queue workqueue.TypedRateLimitingInterface[object]
	needs *needs
	cache *cache
	use   *namespaceUse
	// namespaceClusters has the clusters with objects of each namespace.
	namespaceClusters *namespaceClusters
	// related has the objects that belong together.
	related *related
	// assumed has the decisions that the cached bindings do not have yet.
	assumed *assumed
	home    *keepers
	// departed has followers that left with their users.
	departed *departed
	edits    *edits
	known    *knownPolicies
	unknown  *unknownNeeds
	// preemptions are the objects for which others make room.
	preemptions *preemptions
	volumes     *volumeRules
	turns       *turns
	failovers   failovers
	failingOver failingOver
	Config
}

// Config is what the scheduler learns from others. Each field may be nil.
type Config struct {
	// Fields reports the gaps of clusters. Without it, no missing field is an obstacle.
	Fields Fields
	// Manual reports which objects wait for plans. Without it, none does.
	Manual Manual
	// Credentials reports which Secrets belong to providers. Without it, none does.
	Credentials Credentials
	Metrics     *Metrics
}

// NewController returns the scheduler as a controller of the fleet.
func NewController(config Config) fleet.Controller {
	return func(ctx context.Context, session *fleet.Session) error { return run(ctx, session, config) }
}

// newScheduler returns a scheduler that has decided nothing.
func newScheduler(session *fleet.Session, config Config) *scheduler {
	return &scheduler{Session: session, Config: config, needs: newNeeds(), cache: newCache(), use: newNamespaceUse(), namespaceClusters: newNamespaceClusters(), related: newRelated(), assumed: newAssumed(session.Bindings), home: newKeepers(), departed: newDeparted(),
		edits: newEdits(), known: newKnownPolicies(), unknown: newUnknownNeeds(), preemptions: newPreemptions(), volumes: newVolumeRules(), turns: newTurns(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[object](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[object]{Name: "fleet_scheduler"}),
	}
}

func run(ctx context.Context, session *fleet.Session, config Config) error {
	s := newScheduler(session, config)
	defer s.queue.ShutDown()
	defer s.watchFields()()
	s.waitForFields(ctx)
	if s.Manual != nil {
		// An object that waits for a plan must not be scheduled because its policy is not known
		// yet.
		if err := s.Manual.Ready(ctx); err != nil {
			return fmt.Errorf("read which workloads wait for plans: %w", err)
		}
	}
	if s.Credentials != nil {
		// Nor may a provider's credentials reach clusters because its configuration is not known yet.
		if err := s.Credentials.Ready(ctx); err != nil {
			return fmt.Errorf("read which Secrets configure providers: %w", err)
		}
		defer s.Credentials.OnChange(s.credentialsChanged)()
	}
	// All dependencies must be known before the first decision: an object that seems to have no
	// users would be removed from the clusters. The dependencies of kinds that are added later
	// are known once the kind is read; until then the session is not complete.
	s.Kinds.OnChange(s.kindChanged)
	s.OnAnswer(s.answerArrived)
	for _, k := range s.Kinds.All() {
		s.updateKind(k)
	}
	s.prepare()
	s.countNamespaces()
	if err := s.listen(); err != nil {
		return err
	}
	defer s.watchManual()()
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { s.followClusters(ctx) })
	reading.Go(func() { s.followRoom(ctx) })
	reading.Go(func() { s.followClusterConditions(ctx) })
	reading.Go(func() { s.followTurns(ctx) })
	reading.Go(func() { s.reviewAssumed(ctx) })
	reading.Go(func() { s.followPolicies(ctx) })
	reading.Go(func() { s.followFields(ctx) })
	controllers.RunWorkers(ctx, s.queue, workers, fleet.Measured(s.Session.Metrics, "scheduler", s.reconcile), s.onFailure)
	return nil
}

func (s *scheduler) onFailure(o object, err error) (again bool) {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false // the object will be deleted next
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		s.Log.Warn("scheduling failed; retrying", "kind", o.Kind, "namespace", o.Namespace, "name", o.Name, "error", err)
	}
	return true
}

// listen registers handlers that queue every object that an event may affect.
func (s *scheduler) listen() error {
	err := s.Objects.OnAnyChange(func(k interpret.KindInfo, was, is metav1.Object) {
		obj := is
		if is == nil {
			obj = was
		}
		s.known.arrived(obj)
		if is != nil && was != nil && was.GetUID() == is.GetUID() && fleet.OnlyStatusDiffers(was, is) && !s.mayAwaitPlan(k, was, is) {
			if !fleet.Native(k.GroupKind()) {
				s.requeueMissing(obj.GetNamespace()) // the status may name a Secret that a workload reads
			}
			return
		}
		o := refOf(k.GroupKind(), obj)
		if !fleet.Native(o.GroupKind) || isContent(o.GroupKind) && (was == nil || is == nil) {
			s.requeueMissing(o.Namespace)
		}
		s.queue.Add(o)
		if isRBAC(o.GroupKind) {
			s.requeueAccountsOf(o)
		}
		if o.GroupKind == interpret.GrantKind() {
			s.grantChanged(o.Namespace)
		}
		if k.GroupKind() == interpret.AutoscalerKind() {
			for _, target := range s.needs.usersOf(o) {
				s.queue.Add(target) // its bounds limit the replicas of all the target's clusters together
			}
		}
	})
	if err != nil {
		return err
	}
	err = s.Bindings.OnChange(func(was, is *v1alpha1.ResourceBinding) {
		b := is
		if is == nil {
			b = was
		}
		if s.assumed.observe(was, is) {
			s.queue.Add(boundBy(b))
		}
		s.home.recordType(boundBy(b), is)
		s.healthReported(was, is)
		s.edits.reported(was, is)
		s.namespaceUseChanged(was, is)
		s.preemptionChanged(was, is)
		s.turns.bindingChanged(was, is)
		s.drainChanged(was, is)
		for _, c := range s.useChanged(boundBy(b)) {
			s.queue.Add(c)
		}
		if is != nil && was != nil && was.UID == is.UID && was.Generation == is.Generation && is.DeletionTimestamp == nil {
			s.statusChanged(was, is)
			return
		}
		o := boundBy(b)
		s.queue.Add(o)
		for _, needed := range s.needs.neededBy(o) {
			s.queue.Add(needed)
		}
		for _, beside := range s.related.dependents(o) {
			s.queue.Add(beside)
		}
		if o.GroupKind == claimKind() {
			for _, user := range s.needs.usersOf(o) {
				s.queue.Add(user) // it goes where the volume is
			}
		}
		if k, served := s.Kinds.Get(o.GroupKind); served && !fleet.Native(o.GroupKind) {
			s.queue.Add(definitionOf(k)) // the object may wait for a cluster that has its type
			s.requeueMissing(o.Namespace)
		}
		s.requeueObjectsOf(o)
		s.requeueWaiting(b.Namespace)
	})
	if err != nil {
		return err
	}
	if err := s.Types.OnServedBy(func(_ string, gk schema.GroupKind) {
		for obj := range s.Objects.AllMetadata(gk, "") {
			s.queue.Add(refOf(gk, obj))
		}
	}); err != nil {
		return err
	}
	if err := s.Policies.OnChange(s.signalPolicies); err != nil {
		return err
	}
	if err := s.Quotas.OnChange(s.quotaChanged); err != nil {
		return err
	}
	if err := s.Namespaces.OnChange(s.namespaceChanged); err != nil {
		return err
	}
	if err := s.Policies.Volumes.OnChange(s.volumePolicyChanged); err != nil {
		return err
	}
	return s.Clusters.OnChange(s.clusterChanged)
}

// updateKind records the dependencies of all objects of a kind.
func (s *scheduler) updateKind(k interpret.KindInfo) {
	for obj := range s.Objects.All(k.GroupKind(), "") {
		changed, _ := s.updateNeeds(k, obj) // reconcile reports the error
		for _, o := range changed {
			s.queue.Add(o)
		}
	}
}

// kindChanged queues all objects of a kind that was added or removed, or whose interpretation
// changed.
func (s *scheduler) kindChanged(k interpret.KindInfo) {
	s.cache.signalNames()
	if _, served := s.Kinds.Get(k.GroupKind()); served {
		s.updateKind(k)
	}
	for obj := range s.Objects.AllMetadata(k.GroupKind(), "") {
		s.queue.Add(refOf(k.GroupKind(), obj))
	}
	for _, b := range s.Bindings.Of(k.GroupKind()) {
		s.queue.Add(boundBy(b))
	}
}
