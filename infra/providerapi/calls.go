package providerapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"
)

// ErrUnknownType is returned for a type that the provider does not have.
var ErrUnknownType = errors.New("the provider has no such type")

// ErrUnknownFunction is returned for a function that the provider does not have.
var ErrUnknownFunction = errors.New("the provider has no such function")

// FunctionError is the error of a function about its arguments. Its text can quote them.
type FunctionError struct {
	Text string
	// Argument is the position of the argument that it is about, from 0, or -1.
	Argument int
}

func (e *FunctionError) Error() string {
	if e.Argument < 0 {
		return e.Text
	}
	return fmt.Sprintf("argument %d: %s", e.Argument+1, e.Text)
}

// ErrUnavailable is returned for a call without an answer: the provider's process died, hung or did not
// start, or Atoll is stopping. The outcome is unknown: an Apply may have taken effect.
var ErrUnavailable = errors.New("the provider did not answer")

// ErrNotCalled is also an ErrUnavailable. It is returned for a call that never reached the provider: it did
// not start, rejected its configuration, or the caller's context ended while waiting for a slot. Nothing was
// done, so even an Apply can be repeated.
var ErrNotCalled error = notCalled{}

type notCalled struct{}

func (notCalled) Error() string { return "the provider was not called" }

func (notCalled) Is(target error) bool { return target == ErrUnavailable }

// Provider is one version of a provider with one configuration. It is safe for concurrent use, and queues
// calls according to the provider's limits.
//
// Each method returns the provider's answer, with its errors and warnings as diagnostics. It returns an error
// only if there is no answer, or one that violates the protocol. All methods but Apply can be repeated.
// Unless stated otherwise, values in requests and answers have the implied type of the type's schema.
type Provider interface {
	// Catalog returns the provider's types. It does not change.
	Catalog() Catalog
	// ValidateResource and ValidateData validate a configuration. Values that are not known yet are unknown.
	ValidateResource(ctx context.Context, typeName string, config *Configuration) (Diagnostics, error)
	ValidateData(ctx context.Context, typeName string, config cty.Value) (Diagnostics, error)
	// Upgrade converts stored state to the current schema version. It must be called for all state that is
	// read from the store, even of the same version.
	Upgrade(ctx context.Context, typeName string, stored StoredState) (UpgradeAnswer, error)
	// Read returns the current state of a resource. A null state means that it is gone.
	Read(ctx context.Context, request ReadRequest) (ReadAnswer, error)
	// Plan returns the planned state of a resource.
	Plan(ctx context.Context, request PlanRequest) (PlanAnswer, error)
	// Apply carries out a planned change. An answer with errors still contains the resulting state, which
	// must be kept: a resource may exist. A repeated call whose first attempt has no known outcome returns
	// ErrUnavailable, and not ErrNotCalled.
	Apply(ctx context.Context, request ApplyRequest) (ApplyAnswer, error)
	// Import looks up a resource by its import ID. The state is complete only after a Read.
	Import(ctx context.Context, typeName, id string) (ImportAnswer, error)
	// Move converts the state of a resource of another type, maybe of another provider, to one of the
	// provider's own types.
	Move(ctx context.Context, request MoveRequest) (MoveAnswer, error)
	// ReadData reads a data source. The configuration must be wholly known.
	ReadData(ctx context.Context, typeName string, config cty.Value) (DataAnswer, error)
}

// Functions is a provider without a configuration: functions compute from their arguments alone. It is safe for
// concurrent use.
type Functions interface {
	// CallFunction calls a function with known arguments. It returns a *FunctionError if the function rejects
	// them.
	CallFunction(ctx context.Context, name string, arguments []cty.Value) (cty.Value, error)
}

// Configuration is the desired value of a resource, with null for absent arguments. Several calls send it:
// the first one encodes it, and the others reuse the encoding. It belongs to one type and one caller at a
// time. A nil Configuration is null.
type Configuration struct {
	Value   cty.Value
	encoded []byte
}

// Encoded returns the value as encoded by encode.
func (c *Configuration) Encoded(encode func(cty.Value) ([]byte, error)) ([]byte, error) {
	if c == nil {
		return encode(cty.NilVal)
	}
	if c.encoded == nil {
		var err error
		if c.encoded, err = encode(c.Value); err != nil {
			return nil, err
		}
	}
	return c.encoded, nil
}

// State is the recorded state of a resource.
type State struct {
	// Value has every attribute. It is null if the resource does not exist.
	Value cty.Value
	// Private is opaque data of the provider. It is stored for it and never shown.
	Private []byte
	// Identity is the resource's identity, or cty.NilVal.
	Identity cty.Value
}

// StoredState is state as it is stored, in the schema version that it was written with.
type StoredState struct {
	// Version of the schema.
	Version int64
	// JSON of the value, in cty's encoding.
	JSON []byte
	// Flat is the state format before Terraform 0.12, which imported files may have.
	Flat map[string]string
}

// UpgradeAnswer is state in the current schema version.
type UpgradeAnswer struct {
	Value       cty.Value
	Diagnostics Diagnostics
}

// ReadRequest requests the current state of a resource.
type ReadRequest struct {
	Type  string
	State State
}

// ReadAnswer is the current state of a resource.
type ReadAnswer struct {
	State       State
	Diagnostics Diagnostics
}

// PlanRequest requests a plan for a resource. Prior is null to create it, Proposed to delete it.
type PlanRequest struct {
	Type     string
	Prior    cty.Value
	Proposed cty.Value
	// Config is null to delete.
	Config *Configuration
	// AsWritten states that Proposed equals Config, so that it is encoded only once.
	AsWritten bool
	Private   []byte
	Identity  cty.Value
}

// PlanAnswer is the planned change of a resource.
type PlanAnswer struct {
	Planned cty.Value
	// Encoded is Planned in msgpack as received. It is nil if it was received in another encoding, or differs
	// from Planned.
	Encoded []byte
	// Replace lists the attributes whose change requires a replacement.
	Replace     []cty.Path
	Private     []byte
	Identity    cty.Value
	Diagnostics Diagnostics
	// Lenient marks providers on the legacy SDK, whose plans and results differ in irrelevant ways. Their
	// results are not checked against the plan.
	Lenient bool
}

// ApplyRequest requests a planned change. Prior is null to create, Planned to delete.
type ApplyRequest struct {
	// Call identifies the call: it is made at most once, and repetitions return the first answer. If it is
	// empty, every request is a call.
	Call     string
	Type     string
	Prior    cty.Value
	Planned  cty.Value
	Config   cty.Value
	Private  []byte // from the plan
	Identity cty.Value
}

// ApplyAnswer is the result of a change.
type ApplyAnswer struct {
	State       State
	Diagnostics Diagnostics
	Lenient     bool // as in PlanAnswer
}

// ImportAnswer lists imported resources. One ID can stand for several.
type ImportAnswer struct {
	Found       []Imported
	Diagnostics Diagnostics
}

// Imported is an imported resource.
type Imported struct {
	Type  string
	State State
}

// MoveRequest is the state of a resource under the type that it had.
type MoveRequest struct {
	// Type is the type that the resource gets.
	Type string
	// SourceProvider is the address of the provider that created it: HOST/NAMESPACE/TYPE.
	SourceProvider string
	SourceType     string
	SourceState    StoredState
	SourcePrivate  []byte
	// SourceIdentity is JSON.
	SourceIdentity []byte
}

// MoveAnswer is the state under the new type.
type MoveAnswer struct {
	State       State
	Diagnostics Diagnostics
}

// DataAnswer is the value of a data source.
type DataAnswer struct {
	Value       cty.Value
	Diagnostics Diagnostics
}

// Diagnostics are a provider's errors and warnings, in its own words.
type Diagnostics []Diagnostic

// Diagnostic is an error or a warning.
type Diagnostic struct {
	// Warning is true if the call succeeded nevertheless.
	Warning bool
	Summary string
	Detail  string
	// Attribute is the affected path of the configuration, or empty for all of it.
	Attribute cty.Path
}

// Failed reports whether there are errors.
func (d Diagnostics) Failed() bool {
	for i := range d {
		if !d[i].Warning {
			return true
		}
	}
	return false
}
