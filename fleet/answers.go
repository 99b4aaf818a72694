package fleet

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// AnswerSource has the answers of webhooks during one session, and asks for those that it lacks: see
// package webhooks.
type AnswerSource interface {
	interpret.Answers
	// Run asks until ctx ends. It calls notify with each question that has been answered, or could not be
	// answered. notify does not block.
	Run(ctx context.Context, notify func(interpret.Question))
}

// answered notifies the controllers of answers.
type answered struct {
	mu       sync.Mutex
	handlers []func(interpret.Question)
}

func (a *answered) publish(q interpret.Question) {
	a.mu.Lock()
	handlers := slices.Clone(a.handlers)
	a.mu.Unlock()
	for _, handle := range handlers {
		handle(q)
	}
}

// OnAnswer calls f with each question to a webhook that is answered from now on, or could not be answered.
// Only what depends on the answer has to be decided again. f must not block.
func (s *Session) OnAnswer(f func(interpret.Question)) {
	s.answered.mu.Lock()
	defer s.answered.mu.Unlock()
	s.answered.handlers = append(s.answered.handlers, f)
}

// bindingAbout returns the key of the binding of the object that a question is about.
func bindingAbout(q interpret.Question) types.NamespacedName {
	return types.NamespacedName{Namespace: q.Namespace, Name: v1alpha1.BindingName(q.Kind.GroupKind(), q.Name)}
}

// BindingAbout returns the binding of the object that a question is about.
func (s *Session) BindingAbout(q interpret.Question) (*v1alpha1.ResourceBinding, bool) {
	return s.Bindings.Get(bindingAbout(q))
}
