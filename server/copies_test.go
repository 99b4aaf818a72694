package server

import (
	"context"
	"errors"
	"testing"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

// TestCopies: a workspace has one attempt at a time, and few run. One that is over makes room, and stays until its result is read. The
// deletion of a workspace ends its attempt.
func TestCopies(t *testing.T) {
	s := &copies{}
	wait := func(ctx context.Context, _ *copying) error { <-ctx.Done(); return ctx.Err() }
	first := s.begin(t.Context(), "first", wait, nil)
	if again := s.begin(t.Context(), "first", wait, nil); again != first {
		t.Error("a workspace has two attempts")
	}
	failed := errors.New("failed")
	second := s.begin(t.Context(), "second", func(context.Context, *copying) error { return failed }, nil)
	<-second.done
	if got := s.begin(t.Context(), "second", wait, nil); got != second || !errors.Is(got.err, failed) {
		t.Errorf("the result of an attempt is lost: %v", got)
	}
	if s.begin(t.Context(), "third", wait, nil) == nil {
		t.Error("an attempt that is over takes a place")
	}
	if s.begin(t.Context(), "fourth", wait, nil) != nil {
		t.Error("too many attempts run")
	}
	s.end("first")
	select {
	case <-first.done:
	default:
		t.Error("the attempt goes on after the deletion")
	}
	if s.begin(t.Context(), "fourth", wait, nil) == nil {
		t.Error("there is no room after an attempt")
	}
	s.endAll()
	if n := s.active(); n > 0 {
		t.Errorf("%d attempts run after the server has stopped", n)
	}
}

// TestTransfers: one user leaves room for others, and all together are bounded.
func TestTransfers(t *testing.T) {
	all := &transfers{running: map[string]int{}}
	for i := range maxTransfers / maxOfUser {
		user := string(rune('a' + i))
		for range maxOfUser {
			if !all.enter(user) {
				t.Fatalf("user %s is refused", user)
			}
		}
		if all.enter(user) {
			t.Errorf("user %s has too many", user)
		}
	}
	if all.enter("another") {
		t.Error("too many run")
	}
	all.leave("a")
	if !all.enter("another") {
		t.Error("there is no room after one has ended")
	}
}

// TestCopyProblem: the status of a workspace says why it cannot be a copy, and what to do.
func TestCopyProblem(t *testing.T) {
	w := &tenancyv1alpha1.Workspace{Spec: tenancyv1alpha1.WorkspaceSpec{Source: &tenancyv1alpha1.WorkspaceSource{Name: "team"}}}
	for _, c := range []struct {
		err             error
		reason, message string
	}{
		{&kv.LimitError{Resource: "keys", Limit: 5}, "LimitExceeded", "workspace team has more objects than spec.limits.objects permits, which is 5: raise it"},
		{&kv.LimitError{Resource: "bytes", Limit: 5}, "LimitExceeded", "workspace team is larger than spec.limits.bytes permits, which is 5: raise it"},
		{errSourceGone, "SourceNotFound", "workspace team, which this one is a copy of, does not exist any more: delete this one"},
	} {
		unready, ok := errors.AsType[*tenancy.Unready](copyProblem(w, c.err))
		if !ok || unready.Reason != c.reason || unready.Message != c.message {
			t.Errorf("%v: %v", c.err, unready)
		}
	}
	if other := errors.New("the database is read-only"); !errors.Is(copyProblem(w, other), other) {
		t.Error("another error is lost")
	}
}
