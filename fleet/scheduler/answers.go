package scheduler

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// ReasonWaitingForWebhook means that a webhook has not answered what a decision about the object depends on.
// Nothing changes until it answers.
const ReasonWaitingForWebhook = "WaitingForWebhook"

// unanswered returns the decision about an object while a webhook has not answered: as with an invalid policy,
// everything stays.
func unanswered(a Result, b *v1alpha1.ResourceBinding, err error) Result {
	a.Choice.Err = err
	a.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionFalse, Reason: ReasonWaitingForWebhook,
		Message: "the placement stays unchanged: " + err.Error()}
	if b != nil {
		a.Shares, a.Overrides = b.Decided(), b.Spec.Overrides
	}
	return a
}

// keepsDecision reports whether a condition says that a binding stays as it is.
func keepsDecision(reason string) bool {
	return reason == ReasonPolicyInvalid || reason == ReasonWaitingForWebhook
}

// answerArrived queues the object of a question to a webhook, if a decision depends on the answer.
func (s *scheduler) answerArrived(q interpret.Question) {
	switch q.Operation {
	case v1alpha1.InterpretReplica, v1alpha1.InterpretComponent, v1alpha1.InterpretDependency:
		s.queue.Add(objectOfRef(q.Subject()))
	}
}

// unknownNeeds are the objects whose dependencies this leader does not know, because a webhook has not answered.
// Another leader may have known them, so whatever seems to be needed by no object stays.
type unknownNeeds struct {
	mu      sync.Mutex
	objects map[object]bool
	held    map[object]bool // the followers that were kept because of them
}

func newUnknownNeeds() *unknownNeeds {
	return &unknownNeeds{objects: map[object]bool{}, held: map[object]bool{}}
}

// add records an object.
func (u *unknownNeeds) add(o object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.objects[o] = true
}

// remove forgets an object, and returns the followers that may go now.
func (u *unknownNeeds) remove(o object) (released []object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.objects, o)
	if len(u.objects) > 0 {
		return nil
	}
	for held := range u.held {
		released = append(released, held)
	}
	clear(u.held)
	return released
}

// hold reports whether an object has to be kept because dependencies are unknown.
func (u *unknownNeeds) hold(o object) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.objects) == 0 {
		return false
	}
	u.held[o] = true
	return true
}

// isUnknown reports whether the dependencies of an object are not known, although followers may be in
// clusters because of them: no answer was seen in this session, and the object is older than the session.
func (s *scheduler) isUnknown(o object, obj *unstructured.Unstructured) bool {
	return !s.needs.isDeclared(o) && !obj.GetCreationTimestamp().After(s.Started)
}
