// Package change is the public form of a decision about one resource: its address, its action, its
// values without secrets, and the differences between them. Plans are stored, shown, checked and
// approved in this form.
//
// It computes from data alone, and imports only the contract of providers.
package change

import (
	"cmp"
	"strconv"
)

// Address identifies a resource.
type Address struct {
	Namespace string `json:"namespace,omitempty"`
	// Type is the provider's name of the type.
	Type string `json:"type"`
	Name string `json:"name"`
	// Data reports whether it is a data source, which is read and never created.
	Data bool `json:"data,omitempty"`
	// Deposed identifies a predecessor that a replacement has yet to destroy.
	Deposed string `json:"deposed,omitempty"`
}

// String formats the address for use in an expression.
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

// Compare orders addresses by namespace, type and name.
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

// Action is what a plan does to a resource.
type Action string

const (
	NoOp    Action = "no-op"
	Create  Action = "create"
	Update  Action = "update"
	Replace Action = "replace"
	Delete  Action = "delete"
	// Read reads a data source during apply, because it cannot be read earlier.
	Read Action = "read"
	// Import takes an existing resource into the state and changes nothing else. An import that
	// also changes the resource is an Update or a Replace with Importing set.
	Import Action = "import"
	// Move continues the state of another address and changes nothing else. A move that also changes
	// the resource is an Update or a Replace with MovedFrom set.
	Move Action = "move"
	// Forget removes a resource from the state without destroying it.
	Forget Action = "forget"
	// Place changes a workload in member clusters: its clusters, its replicas or its contents.
	Place Action = "place"
)

// Reason explains an action that does not explain itself.
type Reason string

const (
	// Reasons for Replace.
	CannotUpdate Reason = "CannotUpdate" // the provider cannot change these attributes in place
	Tainted      Reason = "Tainted"      // its creation failed half-way
	Requested    Reason = "Requested"    // the user requested it
	Triggered    Reason = "Triggered"    // by lifecycle.replace_triggered_by
	// Reasons for Delete.
	NotWritten    Reason = "NotWritten"    // it has no object
	ObjectDeleted Reason = "ObjectDeleted" // its object is being deleted
	DestroyAll    Reason = "DestroyAll"    // the plan destroys everything
	LeftOver      Reason = "LeftOver"      // deposed by an incomplete replacement
	// Reasons for Forget.
	MovedAway Reason = "MovedAway" // another object has taken the resource over
	Released  Reason = "Released"  // an object of another namespace may take it over
	// LeavesClusters applies to a workload whose object was deleted or stays in the control plane.
	LeavesClusters Reason = "LeavesClusters"
	// Reasons for Read.
	ConfigUnknown     Reason = "ConfigUnknown"     // its arguments are not known yet
	DependencyPending Reason = "DependencyPending" // a dependency will change
	// Reasons for Update.
	Sensitivity Reason = "Sensitivity" // only the sensitivity of values changes: no provider call
)

// Mode is the purpose of a plan. The zero value is Normal.
type Mode string

const (
	Normal      Mode = "Normal"
	Destroy     Mode = "Destroy"
	RefreshOnly Mode = "RefreshOnly"
)
