package infra

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// task is one step: what is done at a time: all of a change, or one part of a replacement.
type task struct {
	*change
	part plan.Step
	// call names it, the same whenever the same step of the same Apply is tried.
	call string
}

// makes tells steps that make, change or look at something from those that take something away.
func (s *task) makes() bool {
	switch s.action {
	case plan.Delete, plan.Forget:
		return false
	}
	return s.part != plan.DestroyOld
}

// callName is a name for a step that says nothing, and is no other step's of any Apply.
func callName(applyUID string, address plan.Address, part plan.Step) string {
	sum := sha256.Sum256([]byte("atoll call 1\n" + applyUID + "\n" + address.String() + "\n" + string(part)))
	return hex.EncodeToString(sum[:20])
}

// deposedKey is under what the replacement of a resource keeps the old one, in one Apply.
func deposedKey(applyUID string, address plan.Address) string {
	return callName(applyUID, address, "deposed")[:8]
}

// none of the steps.
const noStep int32 = -1

// parts are the steps about one object.
type parts struct {
	change        *change // of what is not deposed; nil if there is only what is
	make, destroy int32
	deposed       []int32
}

// steps are all steps, and what each waits for.
type steps struct {
	all    []task
	of     map[reference.Ref]*parts
	byCall map[string]int32
	// looked are data sources that were read when it was planned.
	looked map[reference.Ref]*change
	order  *order
}

// steps divides changes into steps and puts them in order.
func (e *Engine) steps(what Applying, changes []*change) (*steps, error) {
	s := &steps{of: map[reference.Ref]*parts{}, byCall: map[string]int32{}, looked: map[reference.Ref]*change{}}
	for _, c := range changes {
		if c.action == plan.NoOp {
			switch {
			case c.address.Data:
				s.looked[c.ref] = c
				continue
			case c.sealed == nil && !e.abandoned(c):
				continue
			}
		}
		s.add(what, c)
	}
	order, err := e.order(what.ApplyUID, s)
	if err != nil {
		return nil, err
	}
	s.order = order
	return s, nil
}

// abandoned tells of a change that changes nothing whether its object waits for nothing but
// being let go, or all that is stored is that there is nothing.
func (e *Engine) abandoned(c *change) bool {
	object, state := e.World.Object(c.ref), e.World.State(c.ref)
	if state != nil && !nothing(&state.Spec) {
		return false
	}
	return object == nil && state != nil || object != nil && object.Deleting && object.Held
}

func (s *steps) add(what Applying, c *change) {
	p := s.of[c.ref]
	if p == nil {
		p = &parts{make: noStep, destroy: noStep}
		s.of[c.ref] = p
	}
	one := func(part plan.Step) int32 {
		n := int32(len(s.all))
		call := callName(what.ApplyUID, c.address, part)
		s.all = append(s.all, task{change: c, part: part, call: call})
		s.byCall[call] = n
		c.left++
		return n
	}
	if c.address.Deposed != "" {
		p.deposed = append(p.deposed, one(plan.Whole))
		return
	}
	p.change = c
	switch c.action {
	case plan.Replace:
		p.destroy, p.make = one(plan.DestroyOld), one(plan.CreateNew)
	case plan.Delete, plan.Forget:
		p.destroy = one(plan.Whole)
	default:
		p.make = one(plan.Whole)
	}
}

// name of a step, for an error.
func (s *steps) name(n int32) string {
	what := string(s.all[n].action)
	if s.all[n].part != plan.Whole {
		what = string(s.all[n].part)
	}
	return fmt.Sprintf("%s of %s", what, s.all[n].address)
}
