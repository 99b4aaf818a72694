package scheduler

import (
	"context"
	"fmt"
	"iter"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// policies is what the scheduler decides by: prepared once, and anew when a Cluster
// or a policy changes, so that a decision takes microseconds.
type policies struct {
	mu       sync.RWMutex
	fleet    *placement.Fleet
	policies *placement.Policies

	// books guards what decisions enter for one another. Those that contend for
	// something are made under it.
	books  sync.Mutex
	ledger *placement.Ledger

	// changed has an element when policies may have.
	changed chan struct{}

	// turns are what changed of Clusters since objects were last looked at for it. They are
	// looked at for many changes at once: when a leader begins, or the network is lost, a
	// thousand Clusters change, and there may be a hundred thousand objects.
	turning sync.Mutex
	turns   []turn
	turned  chan struct{} // has an element when there are any

	waiting sync.Mutex
	// hopeful are, by namespace, objects that want to be near others, and are not
	// placed for want of that.
	hopeful map[string]map[object]bool
	// lacking are objects that some cluster lacks something for, and read the clusters
	// of which something else is known since objects were last looked at for it.
	lacking map[object]bool
	read    map[string]bool
	// learnt has an element when read may have.
	learnt chan struct{}
}

func newPolicies() *policies {
	return &policies{ledger: placement.NewLedger(), changed: make(chan struct{}, 1), turned: make(chan struct{}, 1), hopeful: map[string]map[object]bool{},
		lacking: map[object]bool{}, read: map[string]bool{}, learnt: make(chan struct{}, 1)}
}

// world is what decisions are made from now.
func (s *scheduler) world() *World {
	s.by.mu.RLock()
	defer s.by.mu.RUnlock()
	return &World{Fleet: s.by.fleet, Policies: s.by.policies, Ledger: s.by.ledger, Now: s.Clock.Now(),
		Namespace: s.namespaceLabels, Obstacles: s.obstacles, Peers: s.peers,
		Autoscaler: func(k interpret.Kind, obj *unstructured.Unstructured) *unstructured.Unstructured {
			return s.autoscalerOf(refOf(k.GroupKind(), obj))
		}}
}

func (s *scheduler) namespaceLabels(name string) map[string]string {
	ns, ok := s.Namespace(name)
	if !ok {
		return nil
	}
	return ns.GetLabels()
}

func (s *scheduler) world0() *placement.Fleet {
	s.by.mu.RLock()
	defer s.by.mu.RUnlock()
	return s.by.fleet
}

func (s *scheduler) peers(namespace string) iter.Seq[Peer] {
	return peersOf(s.BindingsIn(namespace), func(b *v1alpha1.ResourceBinding) map[string]string {
		ref := b.Spec.Resource
		obj, ok := s.Object(ref.GroupVersionKind().GroupKind(), types.NamespacedName{Namespace: b.Namespace, Name: ref.Name})
		if !ok {
			return nil
		}
		return obj.GetLabels()
	})
}

// prepare reads everything before the first decision of a term: a policy that was
// not known yet would move what it is for, and move it back a moment later.
func (s *scheduler) prepare() {
	facts := make([]placement.Cluster, 0, len(s.Clusters()))
	for _, c := range s.Clusters() {
		facts = append(facts, placement.FactsOf(c, s.Started))
	}
	s.by.fleet = placement.NewFleet(facts)
	s.by.policies = placement.NewPolicies(s.Placements(), s.ClusterPlacements(), nil)
	for _, k := range s.Kinds() {
		if !k.Placed {
			continue
		}
		for obj := range s.Objects(k.GroupKind(), "") {
			if b, ok := s.Binding(refOf(k.GroupKind(), obj).binding()); ok {
				s.by.ledger.Enter(objectOf(k, obj), previous(b))
			}
		}
	}
}

// answer decides about an object. What contends with others is decided under the
// books, so that two do not take the same room.
func (s *scheduler) answer(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) Answer {
	w := s.world()
	if contended := w.contended(w.Choose(k, obj)); !contended {
		w.Ledger = nil
		a := w.Answer(k, obj, b)
		w.Ledger = s.by.ledger
		s.by.books.Lock()
		defer s.by.books.Unlock()
		w.enter(&a)
		return a
	}
	s.by.books.Lock()
	defer s.by.books.Unlock()
	a := w.Answer(k, obj, b)
	w.enter(&a)
	return a
}

// forget takes an object that is in no cluster any more out of the books.
func (s *scheduler) forget(o object) {
	s.by.books.Lock()
	s.by.ledger.Enter(placement.Object{Key: KeyOf(o.GroupKind, o.Namespace, o.Name)}, nil)
	s.by.books.Unlock()
	s.hope(o, false)
	s.lack(o, false)
}

// hope remembers who waits for others to be placed.
func (s *scheduler) hope(o object, waits bool) {
	s.by.waiting.Lock()
	defer s.by.waiting.Unlock()
	if waits {
		if s.by.hopeful[o.Namespace] == nil {
			s.by.hopeful[o.Namespace] = map[object]bool{}
		}
		s.by.hopeful[o.Namespace][o] = true
		return
	}
	delete(s.by.hopeful[o.Namespace], o)
	if len(s.by.hopeful[o.Namespace]) == 0 {
		delete(s.by.hopeful, o.Namespace)
	}
}

// cheer looks again at those who wait for others of their namespace.
func (s *scheduler) cheer(namespace string) {
	s.by.waiting.Lock()
	defer s.by.waiting.Unlock()
	for o := range s.by.hopeful[namespace] {
		s.queue.Add(o)
	}
}

// namespaceChanged looks again at what is in a namespace whose labels have changed.
func (s *scheduler) namespaceChanged(was, is metav1.Object) {
	if is == nil || was != nil && sameLabels(was.GetLabels(), is.GetLabels()) {
		return
	}
	s.enqueueAll(is.GetName())
}

func (s *scheduler) enqueueAll(namespace string) {
	for _, k := range s.Kinds() {
		for obj := range s.Metadata(k.GroupKind(), namespace) {
			if o := refOf(k.GroupKind(), obj); k.Placed || s.bound(o) {
				s.queue.Add(o)
			}
		}
	}
}

func (s *scheduler) bound(o object) bool {
	_, ok := s.Binding(o.binding())
	return ok
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, ok := b[key]; !ok || other != value {
			return false
		}
	}
	return true
}

// wakePolicies says that policies may have changed. It never blocks; many changes
// at once are read together.
func (s *scheduler) wakePolicies() {
	select {
	case s.by.changed <- struct{}{}:
	default:
	}
}

// followPolicies reads policies anew whenever they change, until ctx ends.
func (s *scheduler) followPolicies(ctx context.Context) {
	s.judgePolicies(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.by.changed:
			s.readPolicies(ctx)
		}
	}
}

// readPolicies looks again at the objects for which another policy decides now, or
// the same one otherwise.
func (s *scheduler) readPolicies(ctx context.Context) {
	s.by.mu.Lock()
	before := s.by.policies
	s.by.policies = placement.NewPolicies(s.Placements(), s.ClusterPlacements(), before)
	after := s.by.policies
	s.by.mu.Unlock()
	now := &World{Policies: after, Namespace: s.namespaceLabels}
	earlier := &World{Policies: before, Namespace: s.namespaceLabels}
	for _, k := range s.Kinds() {
		for obj := range s.Metadata(k.GroupKind(), "") {
			a, b := earlier.Choose(k, obj), now.Choose(k, obj)
			if o := refOf(k.GroupKind(), obj); a.Reference != b.Reference && (k.Placed || a.Explicit || b.Explicit || s.bound(o)) {
				s.queue.Add(o)
			}
		}
	}
	s.judgePolicies(ctx)
}

// judgePolicies says in the policies whether they can be followed.
func (s *scheduler) judgePolicies(ctx context.Context) {
	s.by.mu.RLock()
	invalid := s.by.policies.Invalid
	s.by.mu.RUnlock()
	problem := func(kind, namespace, name string) error {
		for _, i := range invalid {
			if i.Reference.Kind == kind && i.Namespace == namespace && i.Reference.Name == name {
				return i.Err
			}
		}
		return nil
	}
	for _, p := range s.Placements() {
		s.accept(ctx, "Placement", p, p.Status.Conditions, problem("Placement", p.Namespace, p.Name))
	}
	for _, p := range s.ClusterPlacements() {
		s.accept(ctx, "ClusterPlacement", p, p.Status.Conditions, problem("ClusterPlacement", "", p.Name))
	}
}

// accept sets the condition Accepted of one policy.
func (s *scheduler) accept(ctx context.Context, kind string, p metav1.Object, conditions []metav1.Condition, problem error) {
	c := metav1.Condition{Type: v1alpha1.PlacementAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPolicyAccepted,
		Message: "it is followed", ObservedGeneration: p.GetGeneration(), LastTransitionTime: metav1.NewTime(s.Clock.Now())}
	if problem != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPolicyInvalid,
			fmt.Sprintf("it cannot be followed, and what it selects stays where it is: %v", problem)
	}
	for _, was := range conditions {
		if was.Type != c.Type {
			continue
		}
		if was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message && was.ObservedGeneration == c.ObservedGeneration {
			return
		}
		if was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	resource := v1alpha1.PlacementResource
	if kind == "ClusterPlacement" {
		resource = v1alpha1.ClusterPlacementResource
	}
	u, err := toUnstructured(&c)
	if err == nil {
		apply := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": kind,
			"metadata": map[string]any{"name": p.GetName(), "uid": string(p.GetUID())},
			"status":   map[string]any{"conditions": []any{u.Object}},
		}}
		apply.SetNamespace(p.GetNamespace())
		_, err = s.Dynamic.Resource(resource).Namespace(p.GetNamespace()).ApplyStatus(ctx, p.GetName(), apply, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	}
	if err != nil && ctx.Err() == nil {
		// Nothing depends on it; the next change of a policy tries again.
		s.Log.Warn("cannot say whether a policy is followed", "kind", kind, "namespace", p.GetNamespace(), "name", p.GetName(), "error", err)
	}
}
