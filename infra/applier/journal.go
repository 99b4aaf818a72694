package applier

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
)

// The journal of an Apply is part of the states that it changes. Pending is a step that was
// started, Carried are the steps that have ended. Both are written together with the resulting
// resource, so that state and journal can never disagree.

// isEmpty reports whether a state records no resource and no pending change.
func isEmpty(s *v1alpha1.ResourceStateSpec) bool {
	return s.Current == nil && len(s.Deposed) == 0 && s.Pending == nil
}

// findDeposed returns the deposed resource with the key, or nil.
func findDeposed(s *infra.State, key string) *v1alpha1.DeposedResource {
	if s == nil {
		return nil
	}
	for i := range s.Spec.Deposed {
		if s.Spec.Deposed[i].Key == key {
			return &s.Spec.Deposed[i]
		}
	}
	return nil
}

// finishedStep returns the result of a step of this Apply, or nil if it has not ended.
func finishedStep(s *infra.State, applyUID, call string) *v1alpha1.CarriedStep {
	if !lastAppliedBy(s, applyUID) {
		return nil
	}
	for i := range s.Spec.Carried.Steps {
		if s.Spec.Carried.Steps[i].Call == call {
			return &s.Spec.Carried.Steps[i]
		}
	}
	return nil
}

// lastAppliedBy reports whether this Apply was the last to finish a step on the state. If so, the
// state has changed since the plan because of the Apply itself.
func lastAppliedBy(s *infra.State, applyUID string) bool {
	return s != nil && s.Spec.Carried != nil && s.Spec.Carried.ApplyUID == applyUID
}

// pendingOf returns the change that this Apply started and has not finished, or nil.
func pendingOf(s *infra.State, applyUID string) *v1alpha1.PendingChange {
	if s == nil || s.Spec.Pending == nil || s.Spec.Pending.ApplyUID != applyUID {
		return nil
	}
	return s.Spec.Pending
}

// addFinishedStep records the end of a step.
func addFinishedStep(s *v1alpha1.ResourceStateSpec, applyUID string, step v1alpha1.CarriedStep) {
	if s.Carried == nil || s.Carried.ApplyUID != applyUID {
		s.Carried = &v1alpha1.CarriedOut{ApplyUID: applyUID}
	}
	s.Carried.Steps = append(s.Carried.Steps, step)
}

// depose moves the current resource to the deposed ones, which are to be destroyed. restore moves
// it back.
func depose(s *v1alpha1.ResourceStateSpec, key string) {
	if s.Current == nil || findDeposed(&infra.State{Spec: *s}, key) != nil {
		return
	}
	s.Deposed = append(s.Deposed, v1alpha1.DeposedResource{Key: key, ResourceValue: *s.Current})
	s.Current = nil
}

func restore(s *v1alpha1.ResourceStateSpec, key string) {
	if old := findDeposed(&infra.State{Spec: *s}, key); old != nil && s.Current == nil {
		value := old.ResourceValue
		s.Current = &value
		removeDeposed(s, key)
	}
}

func removeDeposed(s *v1alpha1.ResourceStateSpec, key string) {
	var kept []v1alpha1.DeposedResource
	for _, d := range s.Deposed {
		if d.Key != key {
			kept = append(kept, d)
		}
	}
	s.Deposed = kept
}

// Writing.

const (
	// storeTries limits the attempts to write before anything is done; the backoff grows to
	// maxBackoff. Writing an outcome is retried without limit.
	storeTries = 7
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	// gracePeriod is how long an Apply keeps writing its results after its context ends.
	gracePeriod = 10 * time.Second
)

// errStateChanged is returned for a state that was changed concurrently.
var errStateChanged = errors.New("its state was changed concurrently")

// stateUpdate is a change to a stored state.
type stateUpdate struct {
	mutate func(*v1alpha1.ResourceStateSpec)
	// isApplied reports whether the stored state already has the change: the answer to an earlier
	// attempt may have been lost.
	isApplied func(*infra.State) bool
	// force retries until the write succeeds, and overwrites concurrent changes.
	force bool
	// keepEmpty stores an empty state instead of deleting it, because another step follows.
	keepEmpty bool
}

// updateState changes the stored state of a resource.
func (r *run) updateState(ctx context.Context, n *step, update stateUpdate) (*infra.State, error) {
	base := r.state(n)
	for attempt := 0; ; attempt++ {
		stored, err := r.updateStateOnce(ctx, n, base, update)
		if err == nil {
			return stored, nil
		}
		if errors.Is(err, infra.ErrStale) {
			// The Inventory learns of it sooner or later.
			now := r.e.Inventory.State(n.ref)
			if now != nil && update.isApplied(now) {
				r.setState(n.ref, now)
				return now, nil
			}
			if !base.SameVersion(now) {
				if base = now; !update.force {
					return nil, errStateChanged
				}
			}
		}
		r.e.log().Warn("storing a state failed", "resource", n.address.String(), "attempt", attempt+1, "err", err)
		if !update.force && attempt+1 >= storeTries {
			return nil, err
		}
		if wait := r.backoff(ctx, attempt); wait != nil {
			return nil, errors.Join(err, wait)
		}
	}
}

func (r *run) updateStateOnce(ctx context.Context, n *step, base *infra.State, update stateUpdate) (*infra.State, error) {
	next := &infra.State{Ref: n.ref}
	if base != nil {
		next.UID, next.ResourceVersion = base.UID, base.ResourceVersion
		base.Spec.DeepCopyInto(&next.Spec)
	}
	update.mutate(&next.Spec)
	if isEmpty(&next.Spec) && !update.keepEmpty {
		if base != nil {
			if err := r.e.States.Delete(ctx, base); err != nil {
				return nil, err
			}
		}
		r.setState(n.ref, nil)
		return nil, nil
	}
	stored, err := r.e.States.Put(ctx, next)
	if err != nil {
		return nil, err
	}
	r.setState(n.ref, stored)
	return stored, nil
}

// recordPending writes to the journal that the provider is about to be called.
func (r *run) recordPending(ctx context.Context, n *step, prepare func(*v1alpha1.ResourceStateSpec)) error {
	pending := v1alpha1.PendingChange{
		Apply: r.opts.Apply, ApplyUID: r.opts.ApplyUID, Server: r.opts.Server, Call: n.call,
		Action: n.journalAction(), Deposed: n.address.Deposed, Since: metav1.NewMicroTime(r.e.Clock.Now().Truncate(time.Microsecond)),
	}
	if n.part == decide.DestroyOld && n.createFirst {
		pending.Deposed = deposedKey(r.opts.ApplyUID, n.address)
	}
	_, err := r.updateState(ctx, n, stateUpdate{
		mutate: func(s *v1alpha1.ResourceStateSpec) {
			prepare(s)
			s.Pending = &pending
		},
		isApplied: func(s *infra.State) bool {
			p := pendingOf(s, r.opts.ApplyUID)
			return p != nil && p.Call == n.call && p.Server == r.opts.Server && p.Since.Equal(&pending.Since)
		},
	})
	return err
}

// journalAction is the step's action in the journal.
func (s *step) journalAction() string {
	switch {
	case s.part == decide.CreateNew:
		return string(change.Create)
	case s.part == decide.DestroyOld && s.keepOld:
		return string(change.Forget)
	case s.part == decide.DestroyOld:
		return string(change.Delete)
	}
	return string(s.action)
}

// recordOutcome writes the result of a step and the resulting resource. It keeps trying for the
// grace period after ctx ends. If it does not succeed, the step stays pending.
func (r *run) recordOutcome(ctx context.Context, n *step, step v1alpha1.CarriedStep, keep bool, outcome func(*v1alpha1.ResourceStateSpec)) (*infra.State, error) {
	ctx, cancel := r.withGrace(ctx)
	defer cancel()
	return r.updateState(ctx, n, stateUpdate{
		mutate: func(s *v1alpha1.ResourceStateSpec) {
			outcome(s)
			// This step resolves a change that another Apply left uncertain, but a read that finds
			// no resource does not.
			p := pendingOf(&infra.State{Spec: *s}, r.opts.ApplyUID)
			if foundNothing := n.action == change.NoOp && s.Current == nil; (p == nil || p.Call == n.call) && !foundNothing {
				s.Pending = nil
			}
			addFinishedStep(s, r.opts.ApplyUID, step)
		},
		isApplied: func(s *infra.State) bool { return finishedStep(s, r.opts.ApplyUID, step.Call) != nil },
		force:     true, keepEmpty: keep,
	})
}

// recordUncertain writes to the journal that the provider may or may not have made the change.
func (r *run) recordUncertain(ctx context.Context, n *step, undo func(*v1alpha1.ResourceStateSpec)) (*infra.State, error) {
	ctx, cancel := r.withGrace(ctx)
	defer cancel()
	uncertain := func(s *infra.State) bool {
		p := pendingOf(s, r.opts.ApplyUID)
		return p != nil && p.Call == n.call && p.Uncertain
	}
	if now := r.state(n); uncertain(now) {
		return now, nil
	}
	return r.updateState(ctx, n, stateUpdate{
		mutate: func(s *v1alpha1.ResourceStateSpec) {
			undo(s)
			if p := pendingOf(&infra.State{Spec: *s}, r.opts.ApplyUID); p != nil && p.Call == n.call {
				p.Uncertain = true
			}
		},
		isApplied: uncertain, force: true,
	})
}

// withGrace returns a context that outlives ctx by the grace period.
func (r *run) withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-r.e.after(gracePeriod):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// backoff waits longer after each attempt. It returns the error of ctx if that ends.
func (r *run) backoff(ctx context.Context, attempt int) error {
	d := maxBackoff
	if attempt < 7 {
		d = min(minBackoff<<attempt, maxBackoff)
	}
	select {
	case <-r.e.after(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
