package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// maxInstanceSize is how much of a file one resource may take. It is more than any store accepts,
// and small enough that an invalid file cannot exhaust the memory.
const maxInstanceSize = 16 << 20

// File is a state file without its resources.
type File struct {
	Version          int64
	TerraformVersion string
	Serial           uint64
	Lineage          string
	// Outputs has the sorted names of outputs. Atoll does not store their values.
	Outputs []string
}

// Instance is the current object of a resource instance in a state file, or a deposed one.
type Instance struct {
	Address Address
	// Provider is the address of the provider configuration.
	Provider string
	// Deposed is the key of a deposed object; empty for the current one.
	Deposed string
	Tainted bool

	SchemaVersion int64
	// Attributes is JSON without spaces. Flat has the attributes in the format from before
	// Terraform 0.12.
	Attributes []byte
	Flat       map[string]string
	// Sensitive has the paths of sensitive values.
	Sensitive []cty.Path
	Private   []byte
	// Identity is JSON.
	Identity []byte
	// Dependencies has addresses in the configuration, without keys.
	Dependencies        []string
	CreateBeforeDestroy bool
	// SkipDestroy is set if the resource is not destroyed when it is removed from the
	// configuration.
	SkipDestroy bool
}

// Read reads a state file of version 4 and passes each instance to visit, in the order of the file.
// Visit may retain it. Memory holds one instance at a time, whatever the order of fields in the
// file. Errors have the position and the remedy; none quotes a value.
func Read(src io.ReaderAt, size int64, visit func(*Instance) error) (*File, error) {
	s := &fileReader{src: src, size: size, visit: visit}
	if err := s.top(); err != nil {
		return nil, err
	}
	slices.Sort(s.file.Outputs)
	return &s.file, nil
}

type fileReader struct {
	src   io.ReaderAt
	size  int64
	visit func(*Instance) error
	file  File
	// Top-level fields that were seen.
	versioned, resources bool
	encrypted            bool
}

// resourceHeader has the fields that all instances of a resource share.
type resourceHeader struct {
	Module, Mode, Type, Name, Provider string
	seen                               map[string]bool
}

func (s *fileReader) top() error {
	c := s.cursor(0)
	if err := c.open('{', "the file"); err != nil {
		return fmt.Errorf("%w; a state file is a JSON object, as printed by tofu state pull", err)
	}
	for c.more() {
		name, err := c.name()
		if err != nil {
			return err
		}
		if err := s.field(c, name); err != nil {
			return err
		}
		if s.encrypted {
			return errors.New("the state file is encrypted; import the output of tofu state pull, run where the key is configured, which is not encrypted")
		}
	}
	if err := c.close(); err != nil {
		return err
	}
	if !s.versioned {
		return errors.New("the file has no version, so it is not a state file; tofu state pull prints one")
	}
	return nil
}

func (s *fileReader) field(c *cursor, name string) error {
	switch name {
	case "version":
		s.versioned = true
		if err := c.decode(&s.file.Version, name); err != nil {
			return err
		}
		return checkVersion(s.file.Version)
	case "terraform_version":
		return c.decode(&s.file.TerraformVersion, name)
	case "serial":
		return c.decode(&s.file.Serial, name)
	case "lineage":
		return c.decode(&s.file.Lineage, name)
	case "encrypted_data", "encryption_version":
		s.encrypted = true
		return nil
	case "outputs":
		var outputs map[string]struct{}
		if err := c.decode(&outputs, name); err != nil {
			return err
		}
		for output := range outputs {
			s.file.Outputs = append(s.file.Outputs, output)
		}
		return nil
	case "modules":
		if !s.versioned {
			return checkVersion(3)
		}
	case "resources":
		if s.resources {
			return c.errorf("the file has resources twice; it seems to be a concatenation of two: import them one by one")
		}
		s.resources = true
		return s.list(c, "resources", func() error { return s.resource(c) })
	}
	return c.skip()
}

func checkVersion(version int64) error {
	switch {
	case version == 4:
		return nil
	case version > 4:
		return fmt.Errorf("the state file has version %d, which this release does not support (4); install a newer release of Atoll", version)
	}
	return fmt.Errorf("the state file has version %d, from before Terraform 0.12; run tofu apply -refresh-only once, which writes version 4, and import that", version)
}

// list reads an array or null.
func (s *fileReader) list(c *cursor, what string, one func() error) error {
	if null, err := c.openOrNull('[', what); null || err != nil {
		return err
	}
	for c.more() {
		if err := one(); err != nil {
			return err
		}
	}
	return c.close()
}

// resource reads one resource with all its instances. If the instances come before the fields that
// identify the resource, as in a file with sorted fields, they are skipped and read afterwards.
func (s *fileReader) resource(c *cursor) error {
	header := resourceHeader{seen: map[string]bool{}}
	later, read := int64(-1), false
	if err := c.open('{', "a resource"); err != nil {
		return err
	}
	for c.more() {
		name, err := c.name()
		if err != nil {
			return err
		}
		switch name {
		case "module":
			if read {
				return c.errorf("the module of a resource comes after its instances; fetch the file again with tofu state pull")
			}
			err = c.decode(&header.Module, name)
		case "mode":
			err = c.decode(&header.Mode, name)
		case "type":
			err = c.decode(&header.Type, name)
		case "name":
			err = c.decode(&header.Name, name)
		case "provider":
			err = c.decode(&header.Provider, name)
		case "instances":
			if later = c.offset(); header.isComplete() {
				err, later = s.instances(c, &header), -1
				read = true
			} else {
				err = c.skip()
			}
		default:
			err = c.skip()
		}
		if err != nil {
			return err
		}
		header.seen[name] = true
	}
	if err := c.close(); err != nil {
		return err
	}
	if later < 0 {
		return nil
	}
	second, err := s.valueAfter(later)
	if err != nil {
		return err
	}
	return s.instances(second, &header)
}

// isComplete reports whether all identifying fields have been read, as in files that OpenTofu
// writes: there, instances come last.
func (h *resourceHeader) isComplete() bool {
	return h.seen["mode"] && h.seen["type"] && h.seen["name"] && h.seen["provider"]
}

func (s *fileReader) instances(c *cursor, header *resourceHeader) error {
	module, err := parseModule(header.Module)
	if err != nil {
		return c.errorf("%v", err)
	}
	address := Address{Module: module, Type: header.Type, Name: header.Name}
	switch header.Mode {
	case "managed":
	case "data":
		address.Data = true
	default:
		return c.errorf("resource %s.%s has mode %q, which is neither managed nor data; install a newer release of Atoll, or remove it from the file", header.Type, header.Name, header.Mode)
	}
	if _, err := ParseAddress(address.String()); err != nil {
		return c.errorf("%v", err)
	}
	return s.list(c, "instances", func() error {
		var raw rawInstance
		if err := c.decode(&raw, "an instance of "+address.String()); err != nil {
			return err
		}
		instance, err := raw.read(address, header.Provider)
		if err != nil {
			return c.errorf("%w", err)
		}
		return s.visit(instance)
	})
}

// rawInstance is an instance in a state file.
type rawInstance struct {
	IndexKey            json.RawMessage   `json:"index_key"`
	Status              string            `json:"status"`
	Deposed             string            `json:"deposed"`
	SchemaVersion       int64             `json:"schema_version"`
	Attributes          json.RawMessage   `json:"attributes"`
	AttributesFlat      map[string]string `json:"attributes_flat"`
	SensitiveAttributes json.RawMessage   `json:"sensitive_attributes"`
	Private             []byte            `json:"private"`
	IdentityVersion     int64             `json:"identity_schema_version"`
	Identity            json.RawMessage   `json:"identity"`
	Dependencies        []string          `json:"dependencies"`
	DependsOn           []string          `json:"depends_on"`
	CreateBeforeDestroy bool              `json:"create_before_destroy"`
	SkipDestroy         bool              `json:"skip_destroy"`
	InstanceProvider    string            `json:"instance_provider"`
}

func (r *rawInstance) read(address Address, provider string) (*Instance, error) {
	var err error
	if address.Key, err = readKey(r.IndexKey); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	i := &Instance{
		Address: address, Provider: provider, Deposed: r.Deposed, Tainted: r.Status == "tainted",
		SchemaVersion: r.SchemaVersion, Flat: r.AttributesFlat, Private: r.Private,
		CreateBeforeDestroy: r.CreateBeforeDestroy, SkipDestroy: r.SkipDestroy,
	}
	if r.InstanceProvider != "" {
		i.Provider = r.InstanceProvider
	}
	if i.Provider == "" {
		return nil, fmt.Errorf("%s: no provider; add the field provider to the file, or run tofu apply -refresh-only, which does so", address)
	}
	if !i.Tainted && r.Status != "" {
		return nil, fmt.Errorf("%s: status %q is neither empty nor tainted; install a newer release of Atoll", address, r.Status)
	}
	if i.Attributes = compact(r.Attributes); i.Attributes != nil {
		i.Flat = nil
	} else if i.Flat == nil {
		i.Attributes = []byte("{}")
	}
	if i.Attributes != nil && i.Attributes[0] != '{' {
		return nil, fmt.Errorf("%s: attributes is not an object", address)
	}
	if r.IdentityVersion == 0 {
		// ResourceStates have no version for the identity's schema. The provider returns the
		// identity again with the next refresh.
		i.Identity = compact(r.Identity)
	}
	if i.Sensitive, err = readPaths(r.SensitiveAttributes); err != nil {
		return nil, fmt.Errorf("%s: sensitive_attributes: %w", address, err)
	}
	dependencies := r.Dependencies
	if len(dependencies) == 0 {
		dependencies = r.DependsOn
	}
	for _, text := range dependencies {
		on, err := ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("%s: dependencies: %w", address, err)
		}
		if config := on.Config(); !slices.Contains(i.Dependencies, config) {
			i.Dependencies = append(i.Dependencies, config)
		}
	}
	return i, nil
}

func readKey(raw json.RawMessage) (Key, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return Key{}, nil
	}
	var text string
	if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
		return Key{Kind: EachKey, Text: text}, nil
	}
	var number float64
	if err := json.Unmarshal(raw, &number); err == nil && number >= 0 && number == float64(int64(number)) && number < 1<<53 {
		return Key{Kind: CountKey, Number: int64(number)}, nil
	}
	return Key{}, errors.New("index_key is neither a string nor a whole number")
}

// compact returns a copy of JSON without spaces. Null is nil.
func compact(raw json.RawMessage) []byte {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil // unreachable: the decoder has already parsed it
	}
	return b.Bytes()
}
