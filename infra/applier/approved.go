package applier

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// errTampered is returned for a plan that is not the approved one.
var errTampered = errors.New("the plan is not the approved one, and nothing was applied: plan again, and approve the new plan")

// approvedChange is the part of an approved change that is needed to carry it out.
type approvedChange struct {
	address     change.Address
	ref         expr.Ref
	action      change.Action
	createFirst bool
	keepOld     bool
	importing   bool
	movedFrom   *expr.Ref // where the resource's state is before the move
	// movedTo is the object that has taken the resource over; if released, the one that may.
	movedTo       *change.Address
	released      bool
	drifted       bool
	preconditions []string
	// sealed is released when all steps are done.
	sealed []byte
	// uses are the Secrets that a workload needs.
	uses []string

	// The result. Only the walk uses these.
	left  int
	worst stepResult
}

// approved reads the whole plan and verifies that it is the approved one, before anything is done.
func (e *Applier) approved(ctx context.Context, opts Options, store planstore.Store) ([]*approvedChange, error) {
	if err := opts.Contents.Check(opts.Digest); err != nil {
		return nil, fmt.Errorf("%w (%v)", errTampered, err)
	}
	var out []*approvedChange
	for n := range opts.Contents.Chunks {
		chunk, err := approvedChunk(ctx, opts, store, n)
		if err != nil {
			return nil, err
		}
		out = append(out, chunk...)
	}
	return out, nil
}

func approvedChunk(ctx context.Context, opts Options, store planstore.Store, n int) ([]*approvedChange, error) {
	shown, err := store.Shown(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("chunk %d of the plan: %w", n, err)
	}
	pieces, err := store.Sealed(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("the sealed part of chunk %d of the plan: %w", n, err)
	}
	sealed, err := planstore.OpenSealed(pieces)
	if err != nil {
		return nil, fmt.Errorf("%w (chunk %d: %v)", errTampered, n, err)
	}
	var out []*approvedChange
	var wrong error
	err = opts.Contents.Chunks[n].Read(shown, true, nil, func(c *change.Change) bool {
		sealedPart := sealed[c.Address]
		delete(sealed, c.Address)
		if wrong = checkSealed(opts, c, sealedPart); wrong != nil {
			return false
		}
		if c.Deferred == "" {
			if c.RestoreSpec != nil {
				if c.Preconditions, wrong = writtenBackPreconditions(c); wrong != nil {
					return false
				}
			}
			approved := &approvedChange{
				address: c.Address, ref: infra.RefOf(c.Address), action: c.Action, createFirst: c.Action == change.Replace && c.CreateFirst, keepOld: c.Action == change.Replace && c.KeepOld,
				importing: c.Importing != "", drifted: c.Drift != nil, preconditions: c.Preconditions, sealed: sealedPart, uses: c.Uses, movedTo: c.MovedTo, released: c.Reason == change.Released,
			}
			if c.MovedFrom != nil {
				from := infra.RefOf(*c.MovedFrom)
				approved.movedFrom = &from
			}
			out = append(out, approved)
		}
		return true
	})
	if err == nil {
		err = wrong
	}
	if err == nil && len(sealed) > 0 {
		err = fmt.Errorf("%d sealed parts belong to no change", len(sealed))
	}
	if err != nil {
		return nil, fmt.Errorf("%w (chunk %d: %v)", errTampered, n, err)
	}
	return out, nil
}

// checkSealed verifies a sealed part against its approved change.
func checkSealed(opts Options, c *change.Change, sealed []byte) error {
	switch {
	case c.Address.Namespace != opts.Namespace:
		return fmt.Errorf("%s is in another namespace", c.Address)
	case isWorkload(c) && sealed == nil && c.Sealed == "":
		return nil // its preconditions identify the proposal, and nothing else is carried out
	case c.Sealed == "" && sealed != nil:
		return fmt.Errorf("%s has a sealed part that was not approved", c.Address)
	case c.Sealed == "" && c.Deferred == "" && c.Action != change.NoOp:
		return fmt.Errorf("%s has no sealed part", c.Address)
	case c.Sealed != "" && decide.SealDigest(opts.Salt, sealed) != c.Sealed:
		return fmt.Errorf("the sealed part of %s is not the one that was approved", c.Address)
	}
	return nil
}

// isWorkload reports whether a change is about an object in member clusters.
func isWorkload(c *change.Change) bool {
	_, _, ok := c.Address.Workload()
	return ok && (c.Action == change.Place || c.Action == change.Delete)
}
