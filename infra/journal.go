package infra

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
)

// The journal of an Apply is in the states of what it changes: what was begun (Pending) and what has come to
// an end (Carried), written together with what there is by then. So there is no moment at which a state says one thing and
// the journal another.

// nothing tells whether a state says that there is nothing.
func nothing(s *v1alpha1.ResourceStateSpec) bool {
	return s.Current == nil && len(s.Deposed) == 0 && s.Pending == nil
}

// deposed finds a predecessor, nil if there is none of the key.
func deposed(s *State, key string) *v1alpha1.DeposedResource {
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

// carried finds what came of a step in this Apply, nil if it has not come to an end.
func carried(s *State, applyUID, call string) *v1alpha1.CarriedStep {
	if !touched(s, applyUID) {
		return nil
	}
	for i := range s.Spec.Carried.Steps {
		if s.Spec.Carried.Steps[i].Call == call {
			return &s.Spec.Carried.Steps[i]
		}
	}
	return nil
}

// touched tells whether the Apply was the last to carry out something: what has changed since the plan
// was changed by itself.
func touched(s *State, applyUID string) bool {
	return s != nil && s.Spec.Carried != nil && s.Spec.Carried.ApplyUID == applyUID
}

// began gives what the Apply began and of which no end is known.
func began(s *State, applyUID string) *v1alpha1.PendingChange {
	if s == nil || s.Spec.Pending == nil || s.Spec.Pending.ApplyUID != applyUID {
		return nil
	}
	return s.Spec.Pending
}

// carry notes that a step has come to an end.
func carry(s *v1alpha1.ResourceStateSpec, applyUID string, step v1alpha1.CarriedStep) {
	if s.Carried == nil || s.Carried.ApplyUID != applyUID {
		s.Carried = &v1alpha1.CarriedOut{ApplyUID: applyUID}
	}
	s.Carried.Steps = append(s.Carried.Steps, step)
}

// depose puts the present resource among those that are to be deleted, and restore puts it back.
func depose(s *v1alpha1.ResourceStateSpec, key string) {
	if s.Current == nil || deposed(&State{Spec: *s}, key) != nil {
		return
	}
	s.Deposed = append(s.Deposed, v1alpha1.DeposedResource{Key: key, ResourceValue: *s.Current})
	s.Current = nil
}

func restore(s *v1alpha1.ResourceStateSpec, key string) {
	if old := deposed(&State{Spec: *s}, key); old != nil && s.Current == nil {
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
	// storeTries is how often it is tried to write before anything is done; the time between grows to
	// longestPause. What was done is written for as long as it takes.
	storeTries   = 7
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
	// grace is how long after its end an Apply still writes down what it knows.
	grace = 10 * time.Second
)

// errElsewhere is of a state that somebody else has changed.
var errElsewhere = errors.New("its state was changed by somebody else")

// edit is a change of what is stored.
type edit struct {
	change func(*v1alpha1.ResourceStateSpec)
	// there tells whether what is stored has the change already: the answer to an earlier attempt may
	// have been lost.
	there func(*State) bool
	// outcome has it written over whatever somebody else wrote in between, and until it is.
	outcome bool
	// keep leaves a state that says that there is nothing: another step follows.
	keep bool
}

// put changes what is stored of a resource.
func (r *carrier) put(ctx context.Context, n *task, what edit) (*State, error) {
	base := r.state(n)
	for attempt := 0; ; attempt++ {
		stored, err := r.putOnce(ctx, n, base, what)
		if err == nil {
			return stored, nil
		}
		if errors.Is(err, ErrMoved) {
			// The World is told of it sooner or later.
			now := r.e.World.State(n.ref)
			if now != nil && what.there(now) {
				r.remember(n, now)
				return now, nil
			}
			if !same(base, now) {
				if base = now; !what.outcome {
					return nil, errElsewhere
				}
			}
		}
		r.e.log().Warn("a state is not stored yet", "resource", n.address.String(), "attempt", attempt+1, "error", err)
		if !what.outcome && attempt+1 >= storeTries {
			return nil, err
		}
		if wait := r.pause(ctx, attempt); wait != nil {
			return nil, errors.Join(err, wait)
		}
	}
}

func same(a, b *State) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
}

func (r *carrier) putOnce(ctx context.Context, n *task, base *State, what edit) (*State, error) {
	next := &State{Ref: n.ref}
	if base != nil {
		next.UID, next.ResourceVersion = base.UID, base.ResourceVersion
		base.Spec.DeepCopyInto(&next.Spec)
	}
	what.change(&next.Spec)
	if nothing(&next.Spec) && !what.keep {
		if base != nil {
			if err := r.e.States.Delete(ctx, base); err != nil {
				return nil, err
			}
		}
		r.remember(n, nil)
		return nil, nil
	}
	stored, err := r.e.States.Put(ctx, next)
	if err != nil {
		return nil, err
	}
	r.remember(n, stored)
	return stored, nil
}

// begin writes down that the provider is going to be asked, before it is.
func (r *carrier) begin(ctx context.Context, n *task, prepare func(*v1alpha1.ResourceStateSpec)) error {
	pending := v1alpha1.PendingChange{
		Apply: r.what.Apply, ApplyUID: r.what.ApplyUID, Server: r.what.Server, Call: n.call,
		Action: n.verb(), Deposed: n.address.Deposed, Since: metav1.NewMicroTime(r.e.Clock.Now().Truncate(time.Microsecond)),
	}
	if n.part == plan.DestroyOld && n.createFirst {
		pending.Deposed = deposedKey(r.what.ApplyUID, n.address)
	}
	_, err := r.put(ctx, n, edit{
		change: func(s *v1alpha1.ResourceStateSpec) {
			prepare(s)
			s.Pending = &pending
		},
		there: func(s *State) bool {
			p := began(s, r.what.ApplyUID)
			return p != nil && p.Call == n.call && p.Server == r.what.Server && p.Since.Equal(&pending.Since)
		},
	})
	return err
}

// verb is what the journal calls the step.
func (s *task) verb() string {
	switch {
	case s.part == plan.CreateNew:
		return string(plan.Create)
	case s.part == plan.DestroyOld:
		return string(plan.Delete)
	}
	return string(s.action)
}

// record writes down what came of a step, with what there is now. It goes on trying when ctx has ended, for a
// while: what cannot be written then is still pending.
func (r *carrier) record(ctx context.Context, n *task, step v1alpha1.CarriedStep, keep bool, outcome func(*v1alpha1.ResourceStateSpec)) (*State, error) {
	ctx, cancel := r.late(ctx)
	defer cancel()
	return r.put(ctx, n, edit{
		change: func(s *v1alpha1.ResourceStateSpec) {
			outcome(s)
			// What another Apply left uncertain is settled by what is done now, but not by looking
			// where nothing is known to be.
			p := began(&State{Spec: *s}, r.what.ApplyUID)
			if looked := n.action == plan.NoOp && s.Current == nil; (p == nil || p.Call == n.call) && !looked {
				s.Pending = nil
			}
			carry(s, r.what.ApplyUID, step)
		},
		there:   func(s *State) bool { return carried(s, r.what.ApplyUID, step.Call) != nil },
		outcome: true, keep: keep,
	})
}

// doubt writes down that nobody knows whether the provider did it.
func (r *carrier) doubt(ctx context.Context, n *task, undo func(*v1alpha1.ResourceStateSpec)) (*State, error) {
	ctx, cancel := r.late(ctx)
	defer cancel()
	uncertain := func(s *State) bool {
		p := began(s, r.what.ApplyUID)
		return p != nil && p.Call == n.call && p.Uncertain
	}
	if now := r.state(n); uncertain(now) {
		return now, nil
	}
	return r.put(ctx, n, edit{
		change: func(s *v1alpha1.ResourceStateSpec) {
			undo(s)
			if p := began(&State{Spec: *s}, r.what.ApplyUID); p != nil && p.Call == n.call {
				p.Uncertain = true
			}
		},
		there: uncertain, outcome: true,
	})
}

// late is a context that goes on for a while when ctx has ended.
func (r *carrier) late(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-r.e.after(grace):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// pause waits longer each time, and gives the error of a context that ends.
func (r *carrier) pause(ctx context.Context, attempt int) error {
	d := longestPause
	if attempt < 7 {
		d = min(firstPause<<attempt, longestPause)
	}
	select {
	case <-r.e.after(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// after is when so much time is over, by the engine's clock if that can wait.
func (e *Engine) after(d time.Duration) <-chan time.Time {
	if c, can := e.Clock.(interface {
		After(time.Duration) <-chan time.Time
	}); can {
		return c.After(d)
	}
	return time.After(d)
}
