package applier

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
)

// step is one unit of work: a whole change, or one half of a replacement.
type step struct {
	*approvedChange
	part decide.Step
	// call is its unique name, which is the same for every attempt of the same Apply.
	call string
}

// upserts reports whether the step creates, updates or reads its resource, rather than destroys or
// forgets it.
func (s *step) upserts() bool {
	switch s.action {
	case change.Delete, change.Forget:
		return false
	}
	return s.part != decide.DestroyOld
}

// callName returns an opaque name that is unique to one step of one Apply.
func callName(applyUID string, address change.Address, part decide.Step) string {
	sum := sha256.Sum256([]byte("atoll call 1\n" + applyUID + "\n" + address.String() + "\n" + string(part)))
	return hex.EncodeToString(sum[:20])
}

// deposedKey is the key under which one Apply keeps the old resource during a replacement.
func deposedKey(applyUID string, address change.Address) string {
	return callName(applyUID, address, "deposed")[:8]
}

// noStep is the index of no step.
const noStep int32 = -1

// objectSteps are the steps of one object.
type objectSteps struct {
	change          *approvedChange // of the current resource; nil if only deposed ones change
	upsert, destroy int32
	deposed         []int32
}

// stepSet is all steps and their order.
type stepSet struct {
	all    []step
	byRef  map[expr.Ref]*objectSteps
	byCall map[string]int32
	// dataReads are the data sources that were read by the plan.
	dataReads map[expr.Ref]*approvedChange
	order     *stepOrder
}

// steps splits changes into steps and orders them.
func (e *Applier) steps(opts Options, changes []*approvedChange) (*stepSet, error) {
	s := &stepSet{byRef: map[expr.Ref]*objectSteps{}, byCall: map[string]int32{}, dataReads: map[expr.Ref]*approvedChange{}}
	for _, c := range changes {
		if c.action == change.NoOp {
			switch {
			case c.address.Data:
				s.dataReads[c.ref] = c
				continue
			case c.sealed == nil && !e.isAbandoned(c):
				continue
			}
		}
		s.add(opts, c)
	}
	order, err := e.order(opts.ApplyUID, s)
	if err != nil {
		return nil, err
	}
	s.order = order
	return s, nil
}

// isAbandoned reports, for a no-op change, whether only cleanup is left: the object waits for its
// finalizer, or the state is empty.
func (e *Applier) isAbandoned(c *approvedChange) bool {
	object, state := e.Inventory.Object(c.ref), e.Inventory.State(c.ref)
	if state != nil && !isEmpty(&state.Spec) {
		return false
	}
	return object == nil && state != nil || object != nil && object.Deleting && object.HasFinalizer
}

func (s *stepSet) add(opts Options, c *approvedChange) {
	p := s.byRef[c.ref]
	if p == nil {
		p = &objectSteps{upsert: noStep, destroy: noStep}
		s.byRef[c.ref] = p
	}
	addStep := func(part decide.Step) int32 {
		n := int32(len(s.all))
		call := callName(opts.ApplyUID, c.address, part)
		s.all = append(s.all, step{approvedChange: c, part: part, call: call})
		s.byCall[call] = n
		c.left++
		return n
	}
	if c.address.Deposed != "" {
		p.deposed = append(p.deposed, addStep(decide.OnlyStep))
		return
	}
	p.change = c
	switch c.action {
	case change.Replace:
		p.destroy, p.upsert = addStep(decide.DestroyOld), addStep(decide.CreateNew)
	case change.Delete, change.Forget:
		p.destroy = addStep(decide.OnlyStep)
	default:
		p.upsert = addStep(decide.OnlyStep)
	}
}

// name describes a step in an error.
func (s *stepSet) name(n int32) string {
	action := string(s.all[n].action)
	if s.all[n].part != decide.OnlyStep {
		action = string(s.all[n].part)
	}
	return fmt.Sprintf("%s of %s", action, s.all[n].address)
}
