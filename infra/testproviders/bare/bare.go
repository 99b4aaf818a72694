// Package bare is a provider written directly on the protocol's messages. It behaves correctly:
// wide adds many types, and evil adds misbehaviour.
package bare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/value"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// Server is the provider. Every type must have the attributes name and id; id is computed. A
// computed number revision, if there is one, differs after each change.
type Server struct {
	Config    *tfprotov6.Schema
	Resources map[string]*tfprotov6.Schema
	// Replace has the names of attributes, of any type, whose change forces a replacement.
	Replace []string
	// Forget disables storing objects: the state of a resource is its only record.
	Forget bool
	// QuietReads disables logging of reads.
	QuietReads bool
	// World is nil until the provider is configured with a directory. Without one, nothing is
	// stored and nothing logged.
	World *world.World

	mu      sync.Mutex
	stopped chan struct{}
}

var errUnknownType = errors.New("the provider has no such type")

// planned and made are the private bytes of a plan and of a resource, which a host must preserve.
var (
	planned = []byte("planned")
	made    = []byte("made")
)

// Stopped is closed when the host calls StopProvider.
func (s *Server) Stopped() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == nil {
		s.stopped = make(chan struct{})
	}
	return s.stopped
}

// StopProvider interrupts waiting calls. Later calls are not affected.
func (s *Server) StopProvider(context.Context, *tfprotov6.StopProviderRequest) (*tfprotov6.StopProviderResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		close(s.stopped)
		s.stopped = nil
	}
	return &tfprotov6.StopProviderResponse{}, nil
}

// GetMetadata returns the names of the types.
func (s *Server) GetMetadata(context.Context, *tfprotov6.GetMetadataRequest) (*tfprotov6.GetMetadataResponse, error) {
	answer := &tfprotov6.GetMetadataResponse{ServerCapabilities: capabilities()}
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		answer.Resources = append(answer.Resources, tfprotov6.ResourceMetadata{TypeName: name})
	}
	return answer, nil
}

func capabilities() *tfprotov6.ServerCapabilities {
	return &tfprotov6.ServerCapabilities{GetProviderSchemaOptional: true}
}

// GetProviderSchema returns all schemas.
func (s *Server) GetProviderSchema(context.Context, *tfprotov6.GetProviderSchemaRequest) (*tfprotov6.GetProviderSchemaResponse, error) {
	return &tfprotov6.GetProviderSchemaResponse{ServerCapabilities: capabilities(), Provider: s.Config, ResourceSchemas: s.Resources,
		DataSourceSchemas: map[string]*tfprotov6.Schema{}, Functions: map[string]*tfprotov6.Function{}, EphemeralResourceSchemas: map[string]*tfprotov6.Schema{}}, nil
}

// ValidateProviderConfig accepts any configuration.
func (s *Server) ValidateProviderConfig(_ context.Context, req *tfprotov6.ValidateProviderConfigRequest) (*tfprotov6.ValidateProviderConfigResponse, error) {
	return &tfprotov6.ValidateProviderConfigResponse{PreparedConfig: req.Config}, nil
}

// ConfigureProvider opens the world in the directory, if one is given.
func (s *Server) ConfigureProvider(_ context.Context, req *tfprotov6.ConfigureProviderRequest) (*tfprotov6.ConfigureProviderResponse, error) {
	answer := &tfprotov6.ConfigureProviderResponse{}
	config, err := Fields(req.Config, s.Config)
	if err != nil {
		return nil, err
	}
	if reads := config["log_reads"]; reads.IsKnown() && !reads.IsNull() {
		var logged bool
		if err := reads.As(&logged); err != nil {
			return nil, err
		}
		s.QuietReads = !logged
	}
	dir := Text(config, "directory")
	if dir == "" {
		return answer, nil
	}
	if s.World, err = world.Open(dir); err == nil {
		err = s.note(world.Entry{Call: "configure"})
	}
	answer.Diagnostics = Complain(err)
	return answer, nil
}

func (s *Server) note(entry world.Entry) error {
	if s.World == nil || s.QuietReads && entry.Call == "read" {
		return nil
	}
	return s.World.Note(entry)
}

// ValidateResourceConfig accepts any configuration.
func (s *Server) ValidateResourceConfig(context.Context, *tfprotov6.ValidateResourceConfigRequest) (*tfprotov6.ValidateResourceConfigResponse, error) {
	return &tfprotov6.ValidateResourceConfigResponse{}, nil
}

// UpgradeResourceState accepts state of any version unchanged.
func (s *Server) UpgradeResourceState(_ context.Context, req *tfprotov6.UpgradeResourceStateRequest) (*tfprotov6.UpgradeResourceStateResponse, error) {
	schema := s.Resources[req.TypeName]
	if schema == nil {
		return nil, errUnknownType
	}
	answer := &tfprotov6.UpgradeResourceStateResponse{}
	v, err := value.Decode(req.RawState.JSON, schema.ValueType())
	if err == nil {
		answer.UpgradedState, err = Wire(v, schema)
	}
	answer.Diagnostics = Complain(err)
	return answer, nil
}

// ReadResource returns the object.
func (s *Server) ReadResource(_ context.Context, req *tfprotov6.ReadResourceRequest) (*tfprotov6.ReadResourceResponse, error) {
	schema := s.Resources[req.TypeName]
	if schema == nil {
		return nil, errUnknownType
	}
	answer := &tfprotov6.ReadResourceResponse{NewState: req.CurrentState, Private: req.Private}
	state, err := Fields(req.CurrentState, schema)
	if err != nil {
		return nil, err
	}
	id := Text(state, "id")
	if s.World == nil || s.Forget {
		answer.Diagnostics = Complain(s.note(world.Entry{Call: "read", Type: req.TypeName, ID: id}))
		return answer, nil
	}
	look := s.World.Read
	if s.QuietReads {
		look = s.World.Get
	}
	object, err := look(id)
	if errors.Is(err, world.ErrGone) {
		answer.NewState, err = Wire(tftypes.NewValue(schema.ValueType(), nil), schema)
	} else if err == nil {
		answer.NewState, err = stored(object, schema)
	}
	answer.Diagnostics = Complain(err)
	return answer, nil
}

func stored(object *world.Object, schema *tfprotov6.Schema) (*tfprotov6.DynamicValue, error) {
	v, err := value.DecodeObject(object.Attributes, schema.ValueType())
	if err != nil {
		return nil, err
	}
	return Wire(v, schema)
}

// ImportResourceState imports an object by its ID.
func (s *Server) ImportResourceState(_ context.Context, req *tfprotov6.ImportResourceStateRequest) (*tfprotov6.ImportResourceStateResponse, error) {
	schema := s.Resources[req.TypeName]
	if schema == nil {
		return nil, errUnknownType
	}
	answer := &tfprotov6.ImportResourceStateResponse{}
	if s.World == nil || s.Forget {
		answer.Diagnostics = Complain(errors.New("nothing can be imported, because no objects are kept"))
		return answer, nil
	}
	object, err := s.World.Get(req.ID)
	var state *tfprotov6.DynamicValue
	if err == nil {
		state, err = stored(object, schema)
	}
	if err == nil {
		answer.ImportedResources = []*tfprotov6.ImportedResource{{TypeName: req.TypeName, State: state, Private: made}}
		err = s.note(world.Entry{Call: "import", Type: req.TypeName, ID: req.ID})
	}
	answer.Diagnostics = Complain(err)
	return answer, nil
}

// Fields returns the attributes of a value of the schema, nil for null.
func Fields(v *tfprotov6.DynamicValue, schema *tfprotov6.Schema) (map[string]tftypes.Value, error) {
	if v == nil {
		return nil, nil
	}
	whole, err := v.Unmarshal(schema.ValueType())
	if err != nil || whole.IsNull() {
		return nil, err
	}
	var all map[string]tftypes.Value
	err = whole.As(&all)
	return all, err
}

// Wire encodes a value of the schema.
func Wire(v tftypes.Value, schema *tfprotov6.Schema) (*tfprotov6.DynamicValue, error) {
	encoded, err := tfprotov6.NewDynamicValue(schema.ValueType(), v)
	return &encoded, err
}

// Text returns a string, or "" for null, unknown, and other types.
func Text(fields map[string]tftypes.Value, name string) string {
	var text string
	if v, found := fields[name]; !found || v.IsNull() || !v.IsKnown() || v.As(&text) != nil {
		return ""
	}
	return text
}

// Complain converts an error to a diagnostic. It returns none for nil.
func Complain(err error) []*tfprotov6.Diagnostic {
	if err == nil {
		return nil
	}
	return []*tfprotov6.Diagnostic{{Severity: tfprotov6.DiagnosticSeverityError, Summary: "The call failed", Detail: err.Error()}}
}

// keptPrivate checks that a host preserved the private bytes.
func keptPrivate(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	return fmt.Errorf("private bytes were lost: got %q, want %q", got, want)
}
