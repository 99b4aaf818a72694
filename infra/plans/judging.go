package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// lookEvery is how often a plan is read to see whether what it is about has moved, or under which policies it is, at most.
const lookEvery = 3 * time.Second

// namespaceNotes are what the desk remembers of a namespace.
type namespaceNotes struct {
	// moves counts what was written, and states that changed.
	moves int64
	// firstWrite and lastWrite are since when and until when something was written that no policy has looked at
	// yet; zero if all has been.
	firstWrite, lastWrite time.Time
	plans                 map[string]*planNotes // by UID
	// drift is when a policy last had providers asked, by its label.
	drift map[string]time.Time
}

// planNotes are what the desk found out about a plan, and when.
type planNotes struct {
	moves     int64 // of the namespace, when it was last compared
	compared  time.Time
	policies  []*policy
	concerned time.Time
	ranked    []*policy // those that were chosen from: a policy that changes is another
}

// written takes in what Feed tells.
func (d *desk) written(namespace string, state bool) {
	d.mu.Lock()
	n := d.notesOf(namespace)
	n.moves++
	if !state {
		n.lastWrite = d.clock.Now()
		if n.firstWrite.IsZero() {
			n.firstWrite = n.lastWrite
		}
	}
	d.mu.Unlock()
	d.queue.AddAfter(namespace, lookEvery/3)
}

// notesOf is called with the lock held.
func (d *desk) notesOf(namespace string) *namespaceNotes {
	n := d.notes[namespace]
	if n == nil {
		n = &namespaceNotes{plans: map[string]*planNotes{}}
		d.notes[namespace] = n
	}
	return n
}

// notesOfPlan gives those of a plan, and how much has moved in its namespace. Only one looks at a
// namespace at a time, so nobody else has the plan's.
func (d *desk) notesOfPlan(p *v1alpha1.Plan) (*planNotes, int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.notesOf(p.Namespace)
	notes := n.plans[string(p.UID)]
	if notes == nil {
		notes = &planNotes{moves: -1}
		n.plans[string(p.UID)] = notes
	}
	return notes, n.moves
}

// forget drops the notes of plans that are gone, and of namespaces without any.
func (d *desk) forget(s *scene) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.notes[s.namespace]
	if n == nil {
		return
	}
	for uid := range n.plans {
		if !slices.ContainsFunc(s.plans, func(p *v1alpha1.Plan) bool { return string(p.UID) == uid }) {
			delete(n.plans, uid)
		}
	}
}

// speculative plans are of what nobody wrote.
func speculative(p *v1alpha1.Plan) bool { return len(p.Spec.Objects) > 0 }

// nothingToDo tells whether carrying a plan out would do nothing at all.
func nothingToDo(p *v1alpha1.Plan) bool {
	s := p.Status.Summary
	return s.Changes() == 0 && s.Read == 0 && s.Drift == 0
}

// judgePlans says of each plan that is there to be carried out whether it may be, and whether it still can.
func (d *desk) judgePlans(ctx context.Context, s *scene) error {
	var errs []error
	for _, p := range s.plans {
		if p.Status.Phase != v1alpha1.PlanPlanned || p.DeletionTimestamp != nil {
			continue
		}
		if err := d.judgePlan(ctx, s, p); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("judge plan %s: %w", p.Name, err))
		}
	}
	d.forget(s)
	return errors.Join(errs...)
}

func (d *desk) judgePlan(ctx context.Context, s *scene, p *v1alpha1.Plan) error {
	approved, err := d.approval(ctx, s, p)
	if err != nil {
		return err
	}
	moved, err := d.moved(ctx, s, p)
	if err != nil {
		return err
	}
	change := func(p *v1alpha1.Plan) bool {
		if p.Status.Phase != v1alpha1.PlanPlanned {
			return false
		}
		changed := setCondition(&p.Status.Conditions, p.Generation, s.now, approved)
		if moved != "" {
			changed = setCondition(&p.Status.Conditions, p.Generation, s.now, condition(v1alpha1.PlanCurrent, false, v1alpha1.ReasonMoved, moved)) || changed
		}
		return changed
	}
	if !change(p.DeepCopy()) {
		return nil
	}
	_, err = d.api.plans.updateStatus(ctx, p.Namespace, p.Name, p.UID, change)
	return err
}

func (d *desk) approval(ctx context.Context, s *scene, p *v1alpha1.Plan) (metav1.Condition, error) {
	switch {
	case speculative(p):
		return condition(v1alpha1.PlanApproved, false, v1alpha1.ReasonSpeculative,
			"It is of objects that nobody wrote, and cannot be applied: write them with kubectl apply, and make another plan."), nil
	case nothingToDo(p):
		return condition(v1alpha1.PlanApproved, true, v1alpha1.ReasonNothingToDo, "There is nothing to do."), nil
	}
	policies, err := d.concerned(ctx, s, p, false)
	if err != nil {
		return metav1.Condition{}, err
	}
	v := judge(ctx, p, s.approvals, policies, s.now)
	return condition(v1alpha1.PlanApproved, v.approved, v.reason, v.message), nil
}

// changesOf reads the changes of a plan that do something, until visit has enough.
func (d *desk) changesOf(ctx context.Context, p *v1alpha1.Plan, visit func(*plan.Change) bool) error {
	contents, store := infra.Contents(&p.Status), newPlanStore(d.api, p)
	for n := range contents.Chunks {
		chunk := &contents.Chunks[n]
		if chunk.Changes == chunk.Actions[plan.NoOp] && p.Status.Summary.Drift == 0 {
			continue
		}
		pieces, err := store.Shown(ctx, n)
		if err != nil {
			return err
		}
		enough := false
		err = chunk.Read(pieces, true, nil, func(c *plan.Change) bool {
			if c.Action == plan.NoOp && c.Drift == nil && c.Importing == "" {
				return true
			}
			enough = !visit(c)
			return !enough
		})
		if err != nil {
			return fmt.Errorf("chunk %d of plan %s: %w", n, p.Name, err)
		}
		if enough {
			return nil
		}
	}
	return nil
}

func refOf(a plan.Address) reference.Ref {
	ref := reference.Ref{Type: a.Type, Namespace: a.Namespace, Name: a.Name}
	if a.Data {
		ref.Kind = reference.Data
	}
	return ref
}

// subject is what policies go by: the labels of what a change is about, and its Provider.
func (d *desk) subject(ref reference.Ref) (labels.Set, string) {
	if o := d.world.Object(ref); o != nil {
		return o.Labels, strings.TrimSuffix(o.Group, "."+v1alpha1.ProvidersDomain)
	}
	if state := d.world.State(ref); state != nil {
		return nil, state.Spec.Provider
	}
	return nil, ""
}

// concerned are the policies that anything in a plan is under; nil among them is that something is under none.
// Anew has it found out even if it was a moment ago.
func (d *desk) concerned(ctx context.Context, s *scene, p *v1alpha1.Plan, anew bool) ([]*policy, error) {
	if only, is := uniform(s.policies); is && (!ofWorkloads(p, s) || p.Status.Summary.Place+p.Status.Summary.Delete == 0) {
		return []*policy{only}, nil
	}
	holding := slices.Concat(s.policies, s.workloads)
	notes, _ := d.notesOfPlan(p)
	if !anew && slices.Equal(notes.ranked, holding) && s.now.Sub(notes.concerned) < lookEvery {
		return notes.policies, nil
	}
	var out []*policy
	var waiting []plan.Address
	err := d.changesOf(ctx, p, func(c *plan.Change) bool {
		if _, _, is := c.Address.Workload(); is {
			waiting = append(waiting, c.Address)
			return true
		}
		a := c.Address
		if a.Namespace == "" {
			a.Namespace = p.Namespace
		}
		set, provider := d.subject(refOf(a))
		if one := governing(s.policies, set, provider); !slices.Contains(out, one) {
			out = append(out, one)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if out, err = d.concernedOfWorkloads(ctx, s, waiting, out); err != nil {
		return nil, err
	}
	notes.policies, notes.concerned, notes.ranked = out, s.now, holding
	return out, nil
}

// moved says what a plan was computed from that is not as it was any more: the first thing found. What has moved
// does not move back.
func (d *desk) moved(ctx context.Context, s *scene, p *v1alpha1.Plan) (string, error) {
	for _, c := range p.Status.Conditions {
		if c.Type == v1alpha1.PlanCurrent && c.Status == metav1.ConditionFalse {
			return c.Message, nil
		}
	}
	notes, moves := d.notesOfPlan(p)
	workloads := ofWorkloads(p, s) && p.Status.Summary.Place+p.Status.Summary.Delete > 0
	if notes.moves == moves && !workloads || speculative(p) {
		return "", nil
	}
	if wait := lookEvery - s.now.Sub(notes.compared); !notes.compared.IsZero() && wait > 0 {
		d.later(s.namespace, wait)
		return "", nil
	}
	var found string
	var failed error
	err := d.changesOf(ctx, p, func(c *plan.Change) bool {
		if _, _, is := c.Address.Workload(); is {
			var moved bool
			if moved, failed = d.movedWorkload(ctx, s, c); moved {
				found = fmt.Sprintf("%s has changed since, or something else is to become of it: it would be refused. Make another plan.", c.Address)
			}
			return found == "" && failed == nil
		}
		a := c.Address
		if a.Namespace == "" {
			a.Namespace = p.Namespace
		}
		ref := refOf(a)
		if infra.IsStale(d.world.Object(ref), d.world.State(ref), c.Preconditions) {
			found = fmt.Sprintf("%s has changed since: it would be refused. Make another plan.", c.Address)
		}
		return found == ""
	})
	if err := errors.Join(err, failed); err != nil {
		return "", err
	}
	if workloads {
		d.later(s.namespace, lookAtWorkloads) // nobody tells of what is proposed for them
	}
	notes.moves, notes.compared = moves, s.now
	return found, nil
}
