package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// applyMoves finds the resources whose object gets another name. A slot that takes a resource over is
// planned with the state of the other one, which is not planned itself.
func (r *run) applyMoves() {
	for i := range r.count {
		if s := &r.slots[i]; s.State != nil {
			r.findLeftover(s)
			r.findRelease(s)
		}
	}
	if r.opts.Mode != "" && r.opts.Mode != change.Normal {
		return
	}
	taken := map[expr.Ref]*slot{}
	for i := range r.count {
		s := &r.slots[i]
		if !s.isDesired() || s.State != nil && s.State.Spec.HasResource() {
			continue // a resource of its own wins over spec.movedFrom, as in OpenTofu
		}
		from := s.MovedFrom()
		if from == nil {
			if s.Object.ImportID != "" {
				s.forgotten = r.forgottenAs(s)
			}
			continue
		}
		if why := r.move(s, *from, taken[*from]); why != "" {
			s.moveProblem, s.moveField = why, "spec.movedFrom"
		}
		if s.movedFrom != nil {
			taken[*from] = s
		}
	}
}

// findLeftover marks a state whose resource has another state already: an Apply that moved it stopped
// before it removed this one.
func (r *run) findLeftover(s *slot) {
	from := s.State.Spec.MovedFrom
	if from == nil || from.Namespace != s.Ref.Namespace {
		return
	}
	at, found := r.taken.Find(refOfMoved(from))
	if !found {
		return
	}
	old := &r.slots[at]
	if old.State == nil || old.State.UID != from.UID {
		return
	}
	to := infra.AddressOf(s.Ref)
	old.leftover = &to
	if !old.removed {
		old.moveProblem = fmt.Sprintf("the Apply that moved its resource to %s has not finished: delete ResourceState %q, which describes the same resource", s.Ref, old.State.Name())
	}
}

// findRelease marks a state that is to be released for another namespace, or that is released already.
func (r *run) findRelease(s *slot) {
	if s.Object == nil || !s.Object.Deleting || s.Object.MovedTo == "" || r.opts.Mode == change.RefreshOnly {
		return
	}
	to, why := releaseTarget(s)
	switch moving := s.State.Spec.MovingTo; {
	case why != "":
		s.moveProblem, s.moveField = why, "metadata.annotations["+infra.MovedToAnnotation+"]"
	case moving != nil && isMovingTo(moving, to):
		s.movedAway = true // it waits for the other namespace
	default:
		s.releaseTo = &to
	}
}

// releaseTarget parses the annotation of an object that is released: NAMESPACE/NAME or
// NAMESPACE/TYPE/NAME.
func releaseTarget(s *slot) (to change.Address, why string) {
	parts := strings.Split(s.Object.MovedTo, "/")
	switch {
	case len(parts) == 2:
		to = change.Address{Namespace: parts[0], Type: s.Ref.Type, Name: parts[1]}
	case len(parts) == 3:
		to = change.Address{Namespace: parts[0], Type: parts[1], Name: parts[2]}
	}
	switch {
	case to.Namespace == "" || to.Type == "" || to.Name == "":
		return to, fmt.Sprintf("%q is not a destination: write NAMESPACE/NAME, or NAMESPACE/TYPE/NAME for another type", s.Object.MovedTo)
	case to.Namespace == s.Ref.Namespace:
		return to, "names the namespace of the object itself: remove the annotation, and set spec.movedFrom on the other object"
	}
	return to, ""
}

// forgottenAs returns the resource that an object imports although this namespace has it: it is
// forgotten under its old name and imported under the new one. If its type cannot be imported, as many,
// its state moves: see takeForgotten.
func (r *run) forgottenAs(s *slot) *slot {
	for i := range r.count {
		old := &r.slots[i]
		if old.Ref.Type != s.Ref.Type || !old.removed || old.Object == nil || !old.Object.Forget || old.State == nil || old.State.Spec.Current == nil {
			continue
		}
		var value struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(old.State.Spec.Current.Value, &value) == nil && value.ID == s.Object.ImportID {
			return old
		}
	}
	return nil
}

// takeForgotten makes a slot that cannot be imported continue the state of the resource that it means, if
// that exists. It returns nil if it does not. The other slot is decided later: addEdges makes it wait.
func (d *decider) takeForgotten(ctx context.Context, in decide.Input, err error) *decide.Decision {
	s := d.slot
	old := s.forgotten
	if old == nil || !errors.Is(err, decide.ErrImport) || old.State == nil || old.State.Spec.Pending != nil {
		return nil
	}
	in.ImportID, in.MovedFrom, in.Refresh = "", new(change.Address), true
	*in.MovedFrom = infra.AddressOf(old.Ref)
	if in.Prior, err = evaluate.Prior(old.State.Spec.Current); err != nil {
		return nil
	}
	decision, err := decide.Decide(ctx, in)
	if err != nil || decision.Before.Value.IsNull() || d.run.move(s, old.Ref, nil) != "" || s.movedFrom == nil {
		return nil
	}
	return decision
}

// move makes a slot continue the state of another. It returns why that is not possible. If nothing is
// there to continue, it does nothing: the move has been applied long ago.
func (r *run) move(s *slot, from expr.Ref, rival *slot) string {
	var old *slot
	var state *infra.State
	if from.Namespace == s.Ref.Namespace {
		at, found := r.taken.Find(from)
		if !found {
			return ""
		}
		old = &r.slots[at]
		state = old.State
		if old.leftover != nil {
			return ""
		}
	} else {
		state = r.Inventory.State(from)
	}
	if rival != nil {
		return fmt.Sprintf("%s names %s, too: only one object can take the resource over", rival.Ref, from)
	}
	if state == nil || !state.Spec.HasResource() {
		return ""
	}
	switch moving := state.Spec.MovingTo; {
	case old != nil && !old.removed:
		return fmt.Sprintf("the object of %s still exists: delete it first, and its resource stays until it is moved", from)
	case old == nil && (moving == nil || !isMovingTo(moving, infra.AddressOf(s.Ref))):
		to := s.Ref.Namespace + "/" + s.Ref.Name
		if from.Type != s.Ref.Type {
			to = s.Ref.Namespace + "/" + s.Ref.Type + "/" + s.Ref.Name
		}
		return fmt.Sprintf("%s is in another namespace, which has not released it: there, annotate the object with %s=%s, delete it, and apply", from, infra.MovedToAnnotation, to)
	case from.Type != s.Ref.Type && len(state.Spec.Deposed) > 0:
		return fmt.Sprintf("%s has a replaced predecessor that is not destroyed yet: plan and apply with the old name first", from)
	}
	address := infra.AddressOf(from)
	s.State, s.movedFrom = state, &address
	if old != nil {
		old.State, old.movedAway, old.releaseTo = nil, true, nil
	}
	return ""
}

// setMove describes the move of a slot for its decision.
func (d *decider) setMove(in *decide.Input) error {
	s := d.slot
	in.MovedFrom = s.movedFrom
	if s.movedFrom == nil || s.movedFrom.Type == s.Ref.Type {
		return nil
	}
	current := s.State.Spec.Current
	if current == nil {
		return fmt.Errorf("%s was not completely created: plan and apply it with the old name first", s.movedFrom)
	}
	kind, err := d.run.kind(infra.RefOf(*s.movedFrom))
	if err != nil {
		return fmt.Errorf("no installed Provider serves the type %s: install the one that created %s", s.movedFrom.Type, s.movedFrom)
	}
	in.MoveSource = &providerapi.MoveRequest{
		Type: s.Ref.Type, SourceProvider: kind.Source, SourceType: s.movedFrom.Type,
		SourceState: providerapi.StoredState{Version: current.SchemaVersion, JSON: current.Value}, SourcePrivate: current.Private,
	}
	in.MoveSource.SourceIdentity, err = identityJSON(current.Identity)
	return err
}

// identityJSON returns the value of a stored identity, which is stored with its type.
func identityJSON(stored []byte) ([]byte, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	var typed struct {
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(stored, &typed); err != nil {
		return nil, fmt.Errorf("the identity in its state cannot be decoded: %w", err)
	}
	return typed.Value, nil
}

func refOfMoved(m *v1alpha1.MovedState) expr.Ref {
	return expr.Ref{Kind: expr.Resource, Type: m.Type, Namespace: m.Namespace, Name: m.Name}
}

func isMovingTo(m *v1alpha1.MovedState, to change.Address) bool {
	return m.Namespace == to.Namespace && m.Type == to.Type && m.Name == to.Name
}
