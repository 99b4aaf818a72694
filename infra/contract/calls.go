package contract

import (
	"context"
	"errors"

	"github.com/zclconf/go-cty/cty"
)

// ErrUnknownType is of a type that the provider does not have.
var ErrUnknownType = errors.New("the provider has no such type")

// ErrUnavailable is of a call that got no answer: the provider's process died, hung or
// could not be started, or Atoll is stopping. Whether the provider did anything
// is not known: of an Apply, it may have.
var ErrUnavailable = errors.New("the provider did not answer")

// ErrNotAsked is an ErrUnavailable, too: of a call that never reached the provider. It could
// not be started, refused its configuration, or there was no turn before the caller gave
// up. Nothing was done, so an Apply, too, can be repeated.
var ErrNotAsked error = notAsked{}

type notAsked struct{}

func (notAsked) Error() string { return "nothing was asked of the provider" }

func (notAsked) Is(target error) bool { return target == ErrUnavailable }

// Provider is a provider of one version with one configuration. It is safe for
// concurrent use, and waits for its turn where the provider's limits say so.
//
// Each method returns what the provider said, with its own complaints in the
// diagnostics; and an error only if there is no answer, or one that breaks the
// protocol. All but Apply can be repeated. Values in requests and answers are of the
// implied type of the type's schema, unless said otherwise.
type Provider interface {
	// Catalog is what the provider has. It does not change.
	Catalog() Catalog
	// ValidateResource and ValidateData judge a configuration. Values in it that are not known yet
	// are unknown.
	ValidateResource(ctx context.Context, typeName string, config *Configuration) (Diagnostics, error)
	ValidateData(ctx context.Context, typeName string, config cty.Value) (Diagnostics, error)
	// Upgrade brings stored state into the form of this version of the provider. It has
	// to be called with all state that comes out of the store, of the same version, too.
	Upgrade(ctx context.Context, typeName string, stored StoredState) (UpgradeAnswer, error)
	// Read looks what became of a resource. State that is null means that it is gone.
	Read(ctx context.Context, request ReadRequest) (ReadAnswer, error)
	// Plan says what would become of a resource.
	Plan(ctx context.Context, request PlanRequest) (PlanAnswer, error)
	// Apply does it. An answer with errors among its diagnostics still has the state
	// that came of it, which is to be kept: a resource may exist. A call by a name that was begun before, and
	// of which no end is known, is ErrUnavailable, and not ErrNotAsked.
	Apply(ctx context.Context, request ApplyRequest) (ApplyAnswer, error)
	// Import finds a resource by what the provider calls its ID. The state is only
	// complete after a Read.
	Import(ctx context.Context, typeName, id string) (ImportAnswer, error)
	// ReadData reads a data source. The configuration is wholly known.
	ReadData(ctx context.Context, typeName string, config cty.Value) (DataAnswer, error)
}

// Configuration is what is written, with null for what is not. Several calls are about it: it is encoded for the
// first of them, and not again. It is of one type, and used by one caller at a time. None at all is null.
type Configuration struct {
	Value   cty.Value
	encoded []byte
}

// Encoded is the value as encode writes it.
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

// State is what is known of a resource that exists.
type State struct {
	// Value has every attribute. It is null if there is no resource.
	Value cty.Value
	// Private is the provider's own, kept for it and shown to nobody.
	Private []byte
	// Identity is what the provider knows the resource by, or cty.NilVal.
	Identity cty.Value
}

// StoredState is state as it is stored: in the form of the version of the schema that
// it was written with.
type StoredState struct {
	// Version of the schema.
	Version int64
	// JSON of the value, as cty writes it.
	JSON []byte
	// Flat is the form of state before Terraform 0.12, which imported files can have.
	Flat map[string]string
}

// UpgradeAnswer is state in the current form.
type UpgradeAnswer struct {
	Value       cty.Value
	Diagnostics Diagnostics
}

// ReadRequest asks what became of a resource.
type ReadRequest struct {
	Type  string
	State State
}

// ReadAnswer is how the resource is now.
type ReadAnswer struct {
	State       State
	Diagnostics Diagnostics
}

// PlanRequest asks what would become of a resource. Prior is null to create it,
// Proposed to delete it.
type PlanRequest struct {
	Type     string
	Prior    cty.Value
	Proposed cty.Value
	// Config is null to delete.
	Config *Configuration
	// AsWritten says that Proposed is Config, so that it need be encoded only once.
	AsWritten bool
	Private   []byte
	Identity  cty.Value
}

// PlanAnswer is what would become of it.
type PlanAnswer struct {
	Planned cty.Value
	// Encoded is Planned in msgpack, as it came. It is nil if it came otherwise, or not as Planned is.
	Encoded []byte
	// Replace are the attributes that cannot be changed without a new resource.
	Replace     []cty.Path
	Private     []byte
	Identity    cty.Value
	Diagnostics Diagnostics
	// Lenient is of providers on the oldest library, whose plans and results are known to
	// differ in what does not matter. They are not held to what they planned.
	Lenient bool
}

// ApplyRequest carries out what was planned. Prior is null to create, Planned to
// delete.
type ApplyRequest struct {
	// Call names the call: the same one is never made twice, and gets the answer that it got. Empty: as often
	// as asked.
	Call     string
	Type     string
	Prior    cty.Value
	Planned  cty.Value
	Config   cty.Value
	Private  []byte // of the plan
	Identity cty.Value
}

// ApplyAnswer is what came of it.
type ApplyAnswer struct {
	State       State
	Diagnostics Diagnostics
	Lenient     bool // as in PlanAnswer
}

// ImportAnswer is what was found. One ID can stand for several resources.
type ImportAnswer struct {
	Found       []Imported
	Diagnostics Diagnostics
}

// Imported is a resource that was found.
type Imported struct {
	Type  string
	State State
}

// DataAnswer is what a data source says.
type DataAnswer struct {
	Value       cty.Value
	Diagnostics Diagnostics
}

// Diagnostics are what a provider has to say, in its own words.
type Diagnostics []Diagnostic

// Diagnostic is one thing that it says.
type Diagnostic struct {
	// Warning is of what does not keep anything from happening.
	Warning bool
	Summary string
	Detail  string
	// Attribute is what it is about, in the configuration. Empty if about all of it.
	Attribute cty.Path
}

// Failed tells whether there is more than warnings.
func (d Diagnostics) Failed() bool {
	for i := range d {
		if !d[i].Warning {
			return true
		}
	}
	return false
}
