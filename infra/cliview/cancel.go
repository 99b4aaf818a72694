package cliview

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Cancel stops an apply: running changes finish, and no others start. Unless detached, it waits for the end.
func (s *Session) Cancel(ctx context.Context, name string, detached bool, format string) error {
	a, err := get[v1alpha1.Apply](ctx, s, applyKind(), name)
	if err != nil {
		return s.explain(ctx, "cancel apply "+name, applyKind(), name, err)
	}
	if applyEnded(a.Status.Phase) {
		return fmt.Errorf("apply %s has already ended: %s", name, a.Status.Phase)
	}
	if err := s.cancel(ctx, name); err != nil {
		return err
	}
	s.infof("%s cancelled: running changes finish, and no others start", applyKind().id(name))
	if detached {
		return nil
	}
	err = s.WaitApply(ctx, name, format)
	if errors.Is(err, ErrIncomplete) {
		return nil // expected
	}
	return err
}

func (s *Session) cancel(ctx context.Context, name string) error {
	_, err := patch[v1alpha1.Apply](ctx, s, applyKind(), name, `{"spec":{"cancel":true}}`)
	return s.explain(ctx, "cancel apply "+name, applyKind(), name, err)
}

// completeMessage returns the message of an apply's condition Complete.
func completeMessage(a *v1alpha1.Apply) string {
	if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ApplyComplete); c != nil && c.Message != "" {
		return c.Message
	}
	return "no reason given"
}
