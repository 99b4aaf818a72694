package provider

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/tfplugin5"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// Catalog is what a provider of one version has. Each type's schema is kept as the provider sent
// it, compressed, and read when somebody wants it.
type Catalog struct {
	protocol int
	// planDestroy and schemaOptional are what the provider is capable of: to be asked about
	// deletions, and to be used without having been asked for its schema.
	planDestroy, schemaOptional bool

	rawConfig              []byte // for the file
	config                 *contract.Schema
	resources, dataSources section
	read                   *kindCache
}

var _ contract.Catalog = (*Catalog)(nil)

// A section is types of one sort, by name.
type section struct {
	names   []string
	entries []entry // of the same order
}

// An entry is a schema, compressed. Unpacked it is the length of the schema's message, that
// message, and the message of the schema of its identity, which can be empty.
type entry struct {
	packed []byte
	size   int // unpacked
}

// A kind is a type's schema with what calls need of it.
type kind struct {
	name      string
	schema    *contract.Schema
	implied   cty.Type
	identity  cty.Type // cty.NilType if it has none
	writeOnly bool     // has write-only attributes
	form      string   // a digest of the form that its values have
}

// Resources are the names of the types of resources, sorted.
func (c *Catalog) Resources() []string { return c.resources.names }

// DataSources are the names of the data sources, sorted.
func (c *Catalog) DataSources() []string { return c.dataSources.names }

// Protocol is the version of the plug-in protocol that the provider speaks: 5 or 6.
func (c *Catalog) Protocol() int { return c.protocol }

// Config is the schema of the provider's own configuration.
func (c *Catalog) Config() *contract.Schema { return c.config }

// Resource reads the schema of a type of resource.
func (c *Catalog) Resource(name string) (*contract.Schema, error) {
	k, err := c.resource(name)
	if err != nil {
		return nil, err
	}
	return k.schema, nil
}

// DataSource reads the schema of a data source.
func (c *Catalog) DataSource(name string) (*contract.Schema, error) {
	k, err := c.dataSource(name)
	if err != nil {
		return nil, err
	}
	return k.schema, nil
}

func (c *Catalog) resource(name string) (*kind, error) { return c.kind(&c.resources, name) }

func (c *Catalog) dataSource(name string) (*kind, error) { return c.kind(&c.dataSources, name) }

func (c *Catalog) kind(in *section, name string) (*kind, error) {
	at, found := slices.BinarySearch(in.names, name)
	if !found {
		return nil, fmt.Errorf("%q: %w", name, contract.ErrUnknownType)
	}
	e := &in.entries[at]
	if k := c.read.get(e); k != nil {
		return k, nil
	}
	k, err := c.readKind(in.names[at], e)
	if err != nil {
		return nil, fmt.Errorf("the schema of %s: %w", name, err)
	}
	c.read.put(e, k)
	return k, nil
}

func (c *Catalog) readKind(name string, e *entry) (*kind, error) {
	raw := make([]byte, e.size)
	if _, err := io.ReadFull(flate.NewReader(bytes.NewReader(e.packed)), raw); err != nil {
		return nil, err
	}
	message, n := protowire.ConsumeBytes(raw)
	if n < 0 {
		return nil, protowire.ParseError(n)
	}
	schema, err := readSchema(c.protocol, message)
	if err != nil {
		return nil, err
	}
	schema.Block.Fix()
	k := &kind{name: name, schema: schema, implied: schema.Block.ImpliedType(), writeOnly: hasWriteOnly(&schema.Block)}
	if identity := raw[n:]; len(identity) > 0 {
		if err := k.readIdentity(identity); err != nil {
			return nil, fmt.Errorf("its identity: %w", err)
		}
	}
	k.form, err = formOf(schema.Version, k.implied, k.identity)
	return k, err
}

// formOf tells apart schemas whose values cannot be read as each other's.
func formOf(version int64, types ...cty.Type) (string, error) {
	digest := sha256.New()
	fmt.Fprintln(digest, version)
	for _, t := range types {
		if t == cty.NilType {
			continue
		}
		text, err := ctyjson.MarshalType(t)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(digest, "%s\n", text)
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// readSchema decodes a schema's message of a version of the protocol.
func readSchema(protocol int, message []byte) (*contract.Schema, error) {
	schema := &tfplugin6.Schema{}
	if protocol == 5 {
		old := &tfplugin5.Schema{}
		if err := proto.Unmarshal(message, old); err != nil {
			return nil, err
		}
		schema = fromVersion5(old)
	} else if err := proto.Unmarshal(message, schema); err != nil {
		return nil, err
	}
	return convertSchema(schema)
}

func (k *kind) readIdentity(message []byte) error {
	identity := &tfplugin6.ResourceIdentitySchema{}
	if err := proto.Unmarshal(message, identity); err != nil {
		return err
	}
	of := map[string]cty.Type{}
	for _, from := range identity.IdentityAttributes {
		t, err := readType(from.Type)
		if err != nil {
			return fmt.Errorf("attribute %q: %w", from.Name, err)
		}
		of[from.Name] = t
		k.schema.Identity = append(k.schema.Identity, contract.IdentityAttribute{
			Name: from.Name, Type: t, Description: from.Description,
			RequiredForImport: from.RequiredForImport, OptionalForImport: from.OptionalForImport,
		})
	}
	if len(of) > 0 {
		k.identity = cty.Object(of)
	}
	return nil
}
