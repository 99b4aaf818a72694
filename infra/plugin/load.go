package plugin

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// rawBytes is a gRPC codec that passes messages through unparsed. A decoded schema of 60 MiB would
// need ten times that memory until each type is compressed.
type rawBytes struct{}

func (rawBytes) Name() string { return "proto" }

func (rawBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawBytes) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (p *process) rawCall(ctx context.Context, name string) ([]byte, error) {
	var request, answer []byte
	err := p.conn.Invoke(ctx, p.method(name), &request, &answer,
		grpc.ForceCodecV2(rawBytes{}), grpc.MaxCallRecvMsgSize(maxSchemaSize))
	return answer, err
}

func (p *process) rawSchema(ctx context.Context) ([]byte, error) {
	return p.rawCall(ctx, "GetProviderSchema")
}

// loadCatalog loads a provider's schemas.
func (p *process) loadCatalog(ctx context.Context) (*Catalog, error) {
	answer, err := p.rawSchema(ctx)
	if err != nil {
		return nil, p.notReady("GetProviderSchema", err)
	}
	identities, err := p.rawCall(ctx, "GetResourceIdentitySchemas")
	if err = optional(err); err != nil {
		return nil, p.notReady("GetResourceIdentitySchemas", err)
	}
	catalog, err := newCatalog(p.protocol, answer, identities)
	if err != nil {
		return nil, fmt.Errorf("provider %s: reading its schemas: %w", p.name, err)
	}
	return catalog, nil
}

// newCatalog compresses the schemas in the provider's answers one by one.
func newCatalog(protocol int, answer, identities []byte) (*Catalog, error) {
	c := &Catalog{protocol: protocol, read: newSchemaCache()}
	identity := map[string][]byte{}
	err := eachField(identities, func(number protowire.Number, value []byte) error {
		if number != 1 {
			return nil
		}
		name, message, err := mapEntry(value)
		identity[name] = message
		return err
	})
	if err != nil {
		return nil, err
	}
	resources, dataSources := map[string][]byte{}, map[string][]byte{}
	if err := eachField(answer, func(number protowire.Number, value []byte) error {
		return c.takeField(number, value, resources, dataSources)
	}); err != nil {
		return nil, err
	}
	if c.rawConfig == nil {
		return nil, errNoSchema
	}
	if c.config, err = readSchema(protocol, c.rawConfig); err != nil {
		return nil, fmt.Errorf("schema of its configuration: %w", err)
	}
	c.rawConfig = bytes.Clone(c.rawConfig) // so that the whole answer is not retained
	if c.resources, err = pack(resources, identity); err != nil {
		return nil, err
	}
	c.dataSources, err = pack(dataSources, nil)
	return c, err
}

// takeField takes one field of a GetProviderSchema.Response. Both protocol versions have the same
// field numbers.
func (c *Catalog) takeField(number protowire.Number, value []byte, resources, dataSources map[string][]byte) error {
	switch number {
	case 1: // provider
		c.rawConfig = value
	case 2, 3: // resource_schemas, data_source_schemas
		name, message, err := mapEntry(value)
		if err != nil {
			return err
		}
		if number == 2 {
			resources[name] = message
		} else {
			dataSources[name] = message
		}
	case 4: // diagnostics
		diagnostic := &tfplugin6.Diagnostic{}
		if err := proto.Unmarshal(value, diagnostic); err != nil {
			return err
		}
		if diagnostic.Severity != tfplugin6.Diagnostic_WARNING {
			return fmt.Errorf("%s: %s", diagnostic.Summary, diagnostic.Detail)
		}
	case 7: // functions
		name, message, err := mapEntry(value)
		if err != nil {
			return err
		}
		return c.addFunction(name, bytes.Clone(message))
	case 6: // server_capabilities
		capabilities := &tfplugin6.ServerCapabilities{}
		if err := proto.Unmarshal(value, capabilities); err != nil {
			return err
		}
		c.planDestroy, c.schemaOptional, c.moves = capabilities.PlanDestroy, capabilities.GetProviderSchemaOptional, capabilities.MoveResourceState
	}
	return nil
}

// eachField calls visit for each length-delimited field of a message. All fields of interest in
// schemas are of this kind.
func eachField(message []byte, visit func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if wire != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, wire, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(number, value); err != nil {
			return err
		}
	}
	return nil
}

// mapEntry splits a map entry into key and value.
func mapEntry(message []byte) (name string, value []byte, err error) {
	err = eachField(message, func(number protowire.Number, field []byte) error {
		switch number {
		case 1:
			name = string(field)
		case 2:
			value = field
		}
		return nil
	})
	if err == nil && (name == "" || !utf8.ValidString(name)) {
		err = errors.New("the name of a type is empty or not UTF-8")
	}
	return name, value, err
}

// pack compresses each schema by itself. The results share one block of memory, which the garbage
// collector need not scan.
func pack(schemas, identities map[string][]byte) (section, error) {
	s := section{names: slices.Sorted(maps.Keys(schemas))}
	var all bytes.Buffer
	w, err := flate.NewWriter(&all, flate.DefaultCompression)
	if err != nil {
		return s, err
	}
	ends := make([]int, len(s.names))
	for n, name := range s.names {
		raw := append(protowire.AppendBytes(nil, schemas[name]), identities[name]...)
		w.Reset(&all)
		if _, err := w.Write(raw); err != nil {
			return s, err
		}
		if err := w.Close(); err != nil {
			return s, err
		}
		ends[n] = all.Len()
		s.entries = append(s.entries, entry{size: len(raw)})
	}
	packed, start := bytes.Clone(all.Bytes()), 0
	for n := range s.entries {
		s.entries[n].packed = packed[start:ends[n]:ends[n]]
		start = ends[n]
	}
	shareNames(s.names)
	return s, nil
}

// shareNames copies all names into one block of memory, for the same reason.
func shareNames(names []string) {
	all, start := strings.Join(names, ""), 0
	for n, name := range names {
		names[n] = all[start : start+len(name)]
		start += len(name)
	}
}
