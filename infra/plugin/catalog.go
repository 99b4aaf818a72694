package plugin

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

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin5"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// Catalog holds the schemas of one provider version. Each type's schema is stored compressed, as
// the provider sent it, and decoded on demand.
type Catalog struct {
	protocol int
	// planDestroy, schemaOptional and moves are server capabilities: the provider plans deletions, it
	// can be used without a GetProviderSchema call, and it converts states of other types.
	planDestroy, schemaOptional, moves bool

	rawConfig              []byte // for WriteFile
	config                 *providerapi.Schema
	resources, dataSources section
	functions              map[string]*function
	read                   *schemaCache
}

var _ providerapi.Catalog = (*Catalog)(nil)

// A section holds the resource types or the data sources, by name.
type section struct {
	names   []string
	entries []entry // in the order of names
}

// An entry is one compressed schema. Uncompressed it consists of the length of the schema's
// message, that message, and the message of the identity schema, which can be empty.
type entry struct {
	packed []byte
	size   int // uncompressed
}

// A typeSchema is a decoded schema with what calls derive from it.
type typeSchema struct {
	name      string
	schema    *providerapi.Schema
	implied   cty.Type
	identity  cty.Type // cty.NilType without identity
	writeOnly bool     // has write-only attributes
	digest    string   // digest of the types of its values
}

// Resources returns the names of the resource types, sorted.
func (c *Catalog) Resources() []string { return c.resources.names }

// DataSources returns the names of the data sources, sorted.
func (c *Catalog) DataSources() []string { return c.dataSources.names }

// Protocol returns the plug-in protocol version that the provider speaks: 5 or 6.
func (c *Catalog) Protocol() int { return c.protocol }

// Config returns the schema of the provider's own configuration.
func (c *Catalog) Config() *providerapi.Schema { return c.config }

// Resource returns the schema of a resource type.
func (c *Catalog) Resource(name string) (*providerapi.Schema, error) {
	k, err := c.resource(name)
	if err != nil {
		return nil, err
	}
	return k.schema, nil
}

// DataSource returns the schema of a data source.
func (c *Catalog) DataSource(name string) (*providerapi.Schema, error) {
	k, err := c.dataSource(name)
	if err != nil {
		return nil, err
	}
	return k.schema, nil
}

func (c *Catalog) resource(name string) (*typeSchema, error) { return c.typeSchema(&c.resources, name) }

func (c *Catalog) dataSource(name string) (*typeSchema, error) {
	return c.typeSchema(&c.dataSources, name)
}

func (c *Catalog) typeSchema(in *section, name string) (*typeSchema, error) {
	at, found := slices.BinarySearch(in.names, name)
	if !found {
		return nil, fmt.Errorf("%q: %w", name, providerapi.ErrUnknownType)
	}
	e := &in.entries[at]
	if k := c.read.get(e); k != nil {
		return k, nil
	}
	k, err := c.decodeTypeSchema(in.names[at], e)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", name, err)
	}
	c.read.put(e, k)
	return k, nil
}

func (c *Catalog) decodeTypeSchema(name string, e *entry) (*typeSchema, error) {
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
	schema.Block.Precompute()
	k := &typeSchema{name: name, schema: schema, implied: schema.Block.ImpliedType(), writeOnly: hasWriteOnly(&schema.Block)}
	if identity := raw[n:]; len(identity) > 0 {
		if err := k.readIdentity(identity); err != nil {
			return nil, fmt.Errorf("identity schema: %w", err)
		}
	}
	k.digest, err = typeDigest(schema.Version, k.implied, k.identity)
	return k, err
}

// typeDigest returns a digest that differs between schemas whose values cannot be decoded as each
// other's.
func typeDigest(version int64, types ...cty.Type) (string, error) {
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

// readSchema decodes a schema message of the given protocol version.
func readSchema(protocol int, message []byte) (*providerapi.Schema, error) {
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

func (k *typeSchema) readIdentity(message []byte) error {
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
		k.schema.Identity = append(k.schema.Identity, providerapi.IdentityAttribute{
			Name: from.Name, Type: t, Description: from.Description,
			RequiredForImport: from.RequiredForImport, OptionalForImport: from.OptionalForImport,
		})
	}
	if len(of) > 0 {
		k.identity = cty.Object(of)
	}
	return nil
}
