package decide

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// ChangeOptions are the parts of a Change that a Decision does not have.
type ChangeOptions struct {
	// Salt keys the digests of secrets: at least 16 random bytes. It is stored with sealed
	// decisions and never with changes, because both together allow testing guesses of a secret.
	// Digests of plans with different salts cannot be compared.
	Salt []byte
	// Origins maps the field of the spec in which a reference is written, such as labels[z] or
	// rule[0].port, to that reference.
	Origins map[string]string
	// Preconditions are copied into the change.
	Preconditions []string
	// PriorSpec and RestoreSpec are copied into the change.
	PriorSpec, RestoreSpec json.RawMessage
	// Sealed is the sealed decision, if there is one.
	Sealed []byte
}

// Change returns the public form of the decision.
func (d *Decision) Change(schema *providerapi.Schema, show ChangeOptions) (*change.Change, error) {
	if len(show.Salt) < 16 {
		return nil, errors.New("the salt must have at least 16 bytes, or the plan's digests would reveal its secrets")
	}
	c := &change.Change{
		Address: d.Address, Action: d.Action, Reason: d.Reason, Detail: d.Detail, CreateFirst: d.CreateFirst, KeepOld: d.KeepOld,
		Importing: d.Importing, MovedFrom: d.MovedFrom, MovedTo: d.MovedTo, Deferred: d.Deferred, Preconditions: show.Preconditions,
		PriorSpec: show.PriorSpec, RestoreSpec: show.RestoreSpec,
	}
	if show.Sealed != nil {
		c.Sealed = SealDigest(show.Salt, show.Sealed)
	}
	secrets := slices.Concat(d.Sensitive, d.BeforeSensitive, d.leaks)
	// A value that is secret before or after is masked on both sides: one that becomes secret must not be shown again.
	w := &change.Builder{Salt: show.Salt, Address: d.Address.String(), Secrets: secrets, Shapes: map[string]change.Shape{}}
	block := &schema.Block
	if d.Drift != nil {
		c.Drift = &change.Difference{}
		was, is := w.Build(block, d.Drift.Before), w.Build(block, d.Drift.After)
		c.Drift.Before, c.Drift.After = was.Value(), is.Value()
		c.Drift.Fields = change.Compare(was, is, "").Fields(nil, show.Origins)
	}
	if d.Action != change.NoOp {
		was, is := w.Build(block, d.Before.Value), w.Build(block, d.After)
		c.Before, c.After = was.Value(), is.Value()
		c.Fields = change.Compare(was, is, "").Fields(d.Replace, show.Origins)
	}
	if len(w.Shapes) > 0 {
		c.Shapes = maps.Clone(w.Shapes)
	}
	return c, w.Err
}
