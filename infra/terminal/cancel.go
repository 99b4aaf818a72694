package terminal

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Cancel ends an apply: what runs comes to its end, and nothing else begins. Unless detached, it waits for that.
func (s *Session) Cancel(ctx context.Context, name string, detached bool, format string) error {
	a, err := get[v1alpha1.Apply](ctx, s, anApply(), name)
	if err != nil {
		return s.explained(ctx, "cancel apply "+name, anApply(), name, err)
	}
	if applyEnded(a.Status.Phase) {
		return fmt.Errorf("apply %s has ended already: %s", name, a.Status.Phase)
	}
	if err := s.cancel(ctx, name); err != nil {
		return err
	}
	s.tell("%s is cancelled: what runs comes to its end, and nothing else begins", anApply().id(name))
	if detached {
		return nil
	}
	err = s.Finish(ctx, name, format)
	if errors.Is(err, ErrIncomplete) {
		return nil // as was wanted
	}
	return err
}

func (s *Session) cancel(ctx context.Context, name string) error {
	_, err := patch[v1alpha1.Apply](ctx, s, anApply(), name, `{"spec":{"cancel":true}}`)
	return s.explained(ctx, "cancel apply "+name, anApply(), name, err)
}

// complete is what an apply's own condition says.
func complete(a *v1alpha1.Apply) string {
	if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ApplyComplete); c != nil && c.Message != "" {
		return c.Message
	}
	return "it does not say why"
}
