// Package decide decides what to do about one resource (Decide), and later carries out
// exactly the approved decision (Execute).
//
// The decisions are OpenTofu's: it sends providers the same proposed state, rejects the same answers
// and comes to the same actions. Each call is about one resource, and calls for different resources
// can run concurrently. Decision.Change returns the public form of a decision, Decision.Seal the
// private form that Execute needs.
//
// The package knows the contract of providers and what a change is (infra/change), and neither
// Kubernetes nor a store nor a clock.
package decide

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Input is everything that a decision depends on, except for the provider's answers.
type Input struct {
	Address  change.Address
	Schema   *providerapi.Schema
	Provider providerapi.Provider
	Prior    Prior
	// Config is the configuration, null or cty.NilVal if there is no object. Parts of it can be
	// unknown. A value with any mark is secret.
	Config cty.Value
	Mode   change.Mode
	// Refresh reads the current state from the provider first.
	Refresh   bool
	Lifecycle Lifecycle
	// Replace requests a replacement even if the provider does not need one.
	Replace bool
	// Delete reports that the object is being deleted, or that this is a deposed resource.
	Delete bool
	// Forget removes the resource from the state instead of destroying it.
	Forget bool
	// KeepOld does so with the old resource of a replacement.
	KeepOld bool
	// ImportID is the provider's ID of an existing resource to import. It is ignored if there is
	// state already.
	ImportID string
	// MovedFrom is the address that Prior is stored under; nil if it is Address. If the type differs, the
	// provider converts the state, and MoveSource describes it.
	MovedFrom  *change.Address
	MoveSource *providerapi.MoveRequest
	// ReleaseTo is the object of another namespace that may take the resource over. Only with Forget.
	ReleaseTo *change.Address
	// MovedTo is the object that has taken the resource over. Only with Forget.
	MovedTo *change.Address
	// Pending reports, for a data source, that a dependency will change.
	Pending bool
	// Deferred is the reason why nothing can be decided now: a dependency cannot be decided.
	Deferred string
}

// Prior is the stored part of a resource. The zero value means that nothing is stored.
type Prior struct {
	// State is the current state from an Outcome or a Decision. If Stored is set, the value of
	// State is ignored.
	State providerapi.State
	// Stored is state from the store that has to be upgraded to the current schema.
	Stored *providerapi.StoredState
	// Tainted resources are replaced.
	Tainted bool
	// Sensitive are the paths of values that were secret when they were configured, although the
	// schema does not declare them sensitive.
	Sensitive []cty.Path
}

// Lifecycle holds the user's lifecycle settings.
type Lifecycle struct {
	PreventDestroy      bool
	CreateBeforeDestroy bool
	// IgnoreChanges are arguments that are only used to create the resource.
	IgnoreChanges []cty.Path
	// IgnoreAll ignores changes of all arguments.
	IgnoreAll bool
	// Trigger is the reference in replace_triggered_by that will change, empty if none does.
	Trigger string
}

// Decision is what to do about one resource. Its values have no marks.
type Decision struct {
	Address change.Address
	Action  change.Action
	Reason  change.Reason
	// Detail adds to the reason: it names the trigger.
	Detail string
	// CreateFirst reports, for a Replace, that the new resource is created before the old one is
	// destroyed.
	CreateFirst bool
	// KeepOld reports, for a Replace, that the old resource is forgotten instead of destroyed.
	KeepOld bool
	// Deferred is the reason why nothing was decided. The action is NoOp then, and After is unknown
	// if there is no state.
	Deferred string
	// Importing is the ID of the resource to import.
	Importing string

	// MovedFrom is the address that the resource had before, and MovedTo the one that takes it over.
	MovedFrom, MovedTo *change.Address

	// Before is the prior state, refreshed if requested. If there is nothing to do, it is the state
	// to store.
	Before providerapi.State
	// Tainted reports whether Before is tainted.
	Tainted bool
	// After is the planned value, with unknown parts, or null if the resource is removed.
	// References to the resource resolve to it.
	After cty.Value
	// encoded is After in msgpack as the provider sent it, so that it need not be encoded again.
	// Code that sets After must set it, too.
	encoded []byte
	// Private and Identity are the provider's data of the plan.
	Private  []byte
	Identity cty.Value
	// Replace are the attributes that force a replacement.
	Replace []cty.Path
	// Drift is the change that was made outside of Atoll, nil if there is none or the resource was
	// not refreshed.
	Drift *Drift
	// Sensitive are the paths of secret values in After that the schema does not declare sensitive.
	// BeforeSensitive are those in Before.
	Sensitive, BeforeSensitive []cty.Path
	// leaks are the paths of secrets in Before and in Drift that the state does not record.
	leaks []cty.Path
	// Warnings are the provider's and can quote secrets.
	Warnings providerapi.Diagnostics
	// Tolerated lists violations that are accepted from a Lenient provider.
	Tolerated []Problem
}

// Drift is the stored value and the value that was read.
type Drift struct {
	Before, After cty.Value
}
