// Package plan decides what is to be done to one resource, says so in a form that
// can be shown, stored and approved, and later does exactly that.
//
// The decisions are OpenTofu's: the same proposed state goes to the provider, the same
// answers are refused, the same actions come out. It knows neither
// Kubernetes nor a store nor a clock: one call is about one resource, and calls
// about different resources can run at the same time.
//
// Decide gives a Decision, Decision.Change what of it may be seen, Decision.Seal what is
// needed to carry it out, and Execute carries it out.
package plan

import (
	"cmp"
	"strconv"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Address is which resource is meant.
type Address struct {
	Namespace string `json:"namespace,omitempty"`
	// Type is the provider's own name for the type.
	Type string `json:"type"`
	Name string `json:"name"`
	// Data is of a data source, which is read and never made.
	Data bool `json:"data,omitempty"`
	// Deposed names a predecessor that a replacement left to be destroyed.
	Deposed string `json:"deposed,omitempty"`
}

// String is the address as one writes it in an expression.
func (a Address) String() string {
	text := a.Type + "[" + strconv.Quote(a.Name) + "]"
	if a.Data {
		text = "data." + text
	}
	if a.Namespace != "" {
		text = "namespace[" + strconv.Quote(a.Namespace) + "]." + text
	}
	if a.Deposed != "" {
		text += " (deposed " + a.Deposed + ")"
	}
	return text
}

// Compare orders addresses: by namespace, type and name.
func (a Address) Compare(b Address) int {
	data := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Type, b.Type),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(data(a.Data), data(b.Data)),
		cmp.Compare(a.Deposed, b.Deposed),
	)
}

// Action is what is to be done.
type Action string

const (
	NoOp    Action = "no-op"
	Create  Action = "create"
	Update  Action = "update"
	Replace Action = "replace"
	Delete  Action = "delete"
	// Read is of a data source that can only be read when the plan is carried out.
	Read Action = "read"
	// Import takes a resource that exists into the state, and changes nothing else. An import
	// after which something has to change is an Update or a Replace that says so.
	Import Action = "import"
	// Forget takes a resource out of the state and leaves it alone.
	Forget Action = "forget"
	// Place changes a workload in member clusters: where it is, with how many replicas, or what it is.
	Place Action = "place"
)

// Reason is why it is to be done, where the action itself does not say.
type Reason string

const (
	// Of Replace.
	CannotUpdate Reason = "CannotUpdate" // the provider cannot change these attributes in place
	Tainted      Reason = "Tainted"      // its creation failed half-way
	Requested    Reason = "Requested"    // somebody asked for it
	Triggered    Reason = "Triggered"    // by lifecycle.replace_triggered_by
	// Of Delete.
	NotWritten    Reason = "NotWritten"    // there is no object for it
	ObjectDeleted Reason = "ObjectDeleted" // its object is being deleted
	DestroyAll    Reason = "DestroyAll"    // the plan destroys
	LeftOver      Reason = "LeftOver"      // deposed by a replacement that was not completed
	// LeavesClusters is of a workload: its object was deleted, or is to stay in the control plane.
	LeavesClusters Reason = "LeavesClusters"
	// Of Read.
	ConfigUnknown     Reason = "ConfigUnknown"     // its arguments are not known yet
	DependencyPending Reason = "DependencyPending" // what it depends on will change
	// Of Update.
	Sensitivity Reason = "Sensitivity" // only what is secret changes: no call to the provider
)

// Mode is what a plan is for. The zero value is Normal.
type Mode string

const (
	Normal      Mode = "Normal"
	Destroy     Mode = "Destroy"
	RefreshOnly Mode = "RefreshOnly"
)

// Input is all that a decision depends on, beside the provider's answers.
type Input struct {
	Address  Address
	Schema   *contract.Schema
	Provider contract.Provider
	Prior    Prior
	// Config is what was written: null, or cty.NilVal, if nothing. Parts of it can be
	// unknown. A value with any mark is secret.
	Config cty.Value
	Mode   Mode
	// Refresh asks the provider first what became of the resource.
	Refresh   bool
	Lifecycle Lifecycle
	// Replace asks for a new resource whatever the provider thinks.
	Replace bool
	// Delete says that the object is being deleted, or that this is a deposed resource.
	Delete bool
	// Forget takes the resource out of the state instead of deleting it.
	Forget bool
	// ImportID is what the provider calls a resource to be taken over. It is ignored
	// if there is state already.
	ImportID string
	// Pending says of a data source that what it depends on will change.
	Pending bool
	// Deferred is why nothing can be decided now: what it depends on cannot be
	// decided either.
	Deferred string
}

// Prior is what is stored of a resource. The zero value is: nothing.
type Prior struct {
	// State is current: what an Outcome or a Decision gave. If Stored is set, its value is
	// ignored.
	State contract.State
	// Stored is what comes out of the store and is to be upgraded.
	Stored *contract.StoredState
	// Tainted resources are replaced.
	Tainted bool
	// Sensitive are the paths of values that were secret when they were written, although the
	// schema does not say so.
	Sensitive []cty.Path
}

// Lifecycle is the user's say in what may be done.
type Lifecycle struct {
	PreventDestroy      bool
	CreateBeforeDestroy bool
	// IgnoreChanges are arguments that are only looked at to create.
	IgnoreChanges []cty.Path
	// IgnoreAll is all of them.
	IgnoreAll bool
	// Trigger is what of replace_triggered_by will change; empty if nothing.
	Trigger string
}

// Decision is what is to be done. All values are without marks.
type Decision struct {
	Address Address
	Action  Action
	Reason  Reason
	// Detail says more of the reason: the trigger.
	Detail string
	// CreateFirst says of a Replace that the new resource is made before the old one is destroyed.
	CreateFirst bool
	// Deferred is why nothing was decided. The action is NoOp then, and After unknown where
	// there is no state.
	Deferred string
	// Importing is the ID by which a resource is taken over.
	Importing string

	// Before is the state that it starts from: refreshed, if that was asked for. It is
	// what is to be stored if there is nothing to do.
	Before contract.State
	// Tainted says that Before is.
	Tainted bool
	// After is what it will be, unknown where that is not known yet; null if
	// it will not be. What refers to the resource refers to this.
	After cty.Value
	// encoded is After in msgpack, if it came so: it need not be encoded again. Whoever sets After sets this, too.
	encoded []byte
	// Private and Identity are the provider's, of the plan.
	Private  []byte
	Identity cty.Value
	// Replace are the attributes that force a replacement.
	Replace []cty.Path
	// Drift is what changed behind our back. Nil if nothing, or if nobody looked.
	Drift *Drift
	// Sensitive are the paths of secret values in After that the schema does not know as such;
	// BeforeSensitive those in Before.
	Sensitive, BeforeSensitive []cty.Path
	// Warnings are the provider's. They can quote secrets.
	Warnings contract.Diagnostics
	// Tolerated is what a Lenient provider should not have planned.
	Tolerated []Problem
}

// Drift is stored state beside what was found.
type Drift struct {
	Before, After cty.Value
}
