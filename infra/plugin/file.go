package plugin

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Catalog file is fileHead, the SHA-256 of the rest, and then fields in protocol buffer encoding:
// the protocol version, capabilities, the schema of the configuration, and for each type its name,
// the size of its schema and its compressed schema.
const (
	fileHead = "Atoll provider catalog, version 2\n"

	fieldProtocol       = 1
	fieldPlanDestroy    = 2
	fieldSchemaOptional = 3
	fieldConfig         = 4
	fieldResource       = 5
	fieldDataSource     = 6
	fieldMoves          = 7
	fieldFunction       = 8

	fieldName   = 1
	fieldPacked = 2
	fieldSize   = 3
)

// errFile reports a file that is damaged or was written by another version. The remedy is always
// the same.
var errFile = errors.New("the file cannot be used; load the catalog from the provider again")

// WriteFile writes the Catalog to a file, so that the schemas are known without starting the
// provider. A concurrent reader sees either the previous file or the new one.
func (c *Catalog) WriteFile(path string) (err error) {
	body := c.encode()
	sum := sha256.Sum256(body)
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("writing a catalog: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("writing a catalog: %w", err), os.Remove(file.Name()))
		}
	}()
	for _, part := range [][]byte{[]byte(fileHead), sum[:], body} {
		if _, err := file.Write(part); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	// The checksum detects a file that a power loss left half written, so omitting this sync would
	// cost time but no data.
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func (c *Catalog) encode() []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, fieldProtocol, protowire.VarintType), uint64(c.protocol))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldPlanDestroy, protowire.VarintType), protowire.EncodeBool(c.planDestroy))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldSchemaOptional, protowire.VarintType), protowire.EncodeBool(c.schemaOptional))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldMoves, protowire.VarintType), protowire.EncodeBool(c.moves))
	b = protowire.AppendBytes(protowire.AppendTag(b, fieldConfig, protowire.BytesType), c.rawConfig)
	for _, name := range c.Functions() {
		one := protowire.AppendString(protowire.AppendTag(nil, fieldName, protowire.BytesType), name)
		one = protowire.AppendBytes(protowire.AppendTag(one, fieldPacked, protowire.BytesType), c.functions[name].raw)
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldFunction, protowire.BytesType), one)
	}
	b = c.resources.encode(b, fieldResource)
	return c.dataSources.encode(b, fieldDataSource)
}

func (s *section) encode(b []byte, field protowire.Number) []byte {
	for n, e := range s.entries {
		one := protowire.AppendString(protowire.AppendTag(nil, fieldName, protowire.BytesType), s.names[n])
		one = protowire.AppendBytes(protowire.AppendTag(one, fieldPacked, protowire.BytesType), e.packed)
		one = protowire.AppendVarint(protowire.AppendTag(one, fieldSize, protowire.VarintType), uint64(e.size))
		b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), one)
	}
	return b
}

// ReadCatalog reads a file that WriteFile wrote.
func ReadCatalog(path string) (*Catalog, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading a catalog: %w", err)
	}
	if info.Size() > maxSchemaSize {
		return nil, fmt.Errorf("catalog %s is larger than %d MiB: %w", path, maxSchemaSize>>20, errFile)
	}
	all, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a catalog: %w", err)
	}
	body, ok := bytes.CutPrefix(all, []byte(fileHead))
	if !ok || len(body) < sha256.Size {
		return nil, fmt.Errorf("catalog %s was not written by this version of Atoll: %w", path, errFile)
	}
	if sum := sha256.Sum256(body[sha256.Size:]); !bytes.Equal(sum[:], body[:sha256.Size]) {
		return nil, fmt.Errorf("catalog %s is damaged: %w", path, errFile)
	}
	c := &Catalog{read: newSchemaCache()}
	if err := c.decode(body[sha256.Size:]); err != nil {
		return nil, fmt.Errorf("catalog %s: %w: %w", path, err, errFile)
	}
	return c, nil
}

func (c *Catalog) decode(body []byte) error {
	err := eachVarint(body, func(number protowire.Number, v uint64) {
		switch number {
		case fieldProtocol:
			c.protocol = int(v)
		case fieldPlanDestroy:
			c.planDestroy = v != 0
		case fieldSchemaOptional:
			c.schemaOptional = v != 0
		case fieldMoves:
			c.moves = v != 0
		}
	})
	if err != nil {
		return err
	}
	err = eachField(body, func(number protowire.Number, value []byte) error {
		switch number {
		case fieldConfig:
			c.rawConfig = value
		case fieldResource:
			return c.resources.decode(value)
		case fieldDataSource:
			return c.dataSources.decode(value)
		case fieldFunction:
			var name string
			var raw []byte
			err := eachField(value, func(number protowire.Number, value []byte) error {
				switch number {
				case fieldName:
					name = string(value)
				case fieldPacked:
					raw = value
				}
				return nil
			})
			return errors.Join(err, c.addFunction(name, raw))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !slices.IsSorted(c.resources.names) || !slices.IsSorted(c.dataSources.names) {
		return errors.New("its types are not sorted")
	}
	shareNames(c.resources.names)
	shareNames(c.dataSources.names)
	c.config, err = readSchema(c.protocol, c.rawConfig)
	return err
}

func (s *section) decode(one []byte) error {
	var name string
	var e entry
	err := eachField(one, func(number protowire.Number, value []byte) error {
		switch number {
		case fieldName:
			name = string(value)
		case fieldPacked:
			e.packed = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := eachVarint(one, func(number protowire.Number, v uint64) {
		if number == fieldSize {
			e.size = int(min(v, maxSchemaSize))
		}
	}); err != nil {
		return err
	}
	s.names, s.entries = append(s.names, name), append(s.entries, e)
	return nil
}

// eachVarint calls visit for each varint field of a message.
func eachVarint(message []byte, visit func(protowire.Number, uint64)) error {
	for len(message) > 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, wire, message[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if wire == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(message[n:])
			visit(number, v)
		}
		message = message[n+size:]
	}
	return nil
}
