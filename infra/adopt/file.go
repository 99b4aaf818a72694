package adopt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// largestInstance is how much of a file one resource may take: more than any store would keep of it, and little
// enough that a file that is not what it seems cannot fill the memory.
const largestInstance = 16 << 20

// File is what a state file says besides its resources.
type File struct {
	Version          int64
	TerraformVersion string
	Serial           uint64
	Lineage          string
	// Outputs are their names, sorted. Their values have no place in Atoll.
	Outputs []string
}

// Instance is one resource of a state file, or one that was replaced and not yet deleted.
type Instance struct {
	Address Address
	// Provider is the address of the provider's configuration.
	Provider string
	// Deposed is the key of one that was replaced; empty for the current one.
	Deposed string
	Tainted bool

	SchemaVersion int64
	// Attributes is JSON, without spaces. Flat has them if the file has the form from before Terraform 0.12.
	Attributes []byte
	Flat       map[string]string
	// Sensitive are the paths of values that were secret.
	Sensitive []cty.Path
	Private   []byte
	// Identity is JSON.
	Identity []byte
	// Dependencies are addresses in the configuration, without keys.
	Dependencies        []string
	CreateBeforeDestroy bool
	// SkipDestroy is of one that is to be left alone when it is no longer written.
	SkipDestroy bool
}

// Read goes through a state file of version 4, and gives each instance to visit, which may keep it, in the order of the file.
// Memory holds one instance at a time, whatever the order of fields in the file. Errors say where and what to do; none
// quotes a value.
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
	// What was seen at the top.
	versioned, resources bool
	encrypted            bool
}

// resourceHeader is what a resource says of all its instances.
type resourceHeader struct {
	Module, Mode, Type, Name, Provider string
	seen                               map[string]bool
}

func (s *fileReader) top() error {
	c := s.cursor(0)
	if err := c.open('{', "the file"); err != nil {
		return fmt.Errorf("%w: a state file is a JSON object, as tofu state pull prints it", err)
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
			return errors.New("the state file is encrypted: run tofu state pull where its key is configured, which prints it in the clear, and adopt that")
		}
	}
	if err := c.close(); err != nil {
		return err
	}
	if !s.versioned {
		return errors.New("the file has no version: it is not a state file; tofu state pull prints one")
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
			return c.wrong("there are resources twice: the file was put together of two; adopt them one by one")
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
		return fmt.Errorf("the state file is of version %d, which is newer than this can read (4): install a newer release of Atoll", version)
	}
	return fmt.Errorf("the state file is of version %d, from before Terraform 0.12: run tofu apply -refresh-only once, which writes it as version 4, and adopt that", version)
}

// list reads an array, or a null in its place.
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

// resource reads one resource with all its instances. If they come before what they belong to is known, as in a file whose
// fields somebody has sorted, they are skipped and read after it.
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
				return c.wrong("the module of a resource stands after its instances: fetch the file again with tofu state pull")
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
			if later = c.offset(); header.usual() {
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

// usual tells whether instances stand where OpenTofu writes them: after all else.
func (h *resourceHeader) usual() bool {
	return h.seen["mode"] && h.seen["type"] && h.seen["name"] && h.seen["provider"]
}

func (s *fileReader) instances(c *cursor, header *resourceHeader) error {
	module, err := parseModule(header.Module)
	if err != nil {
		return c.wrong("%v", err)
	}
	address := Address{Module: module, Type: header.Type, Name: header.Name}
	switch header.Mode {
	case "managed":
	case "data":
		address.Data = true
	default:
		return c.wrong("resource %s.%s is of mode %q, which is neither managed nor data: install a newer release of Atoll, or leave it out of the file", header.Type, header.Name, header.Mode)
	}
	if _, err := ParseAddress(address.String()); err != nil {
		return c.wrong("%v", err)
	}
	return s.list(c, "instances", func() error {
		var raw rawInstance
		if err := c.decode(&raw, "an instance of "+address.String()); err != nil {
			return err
		}
		instance, err := raw.read(address, header.Provider)
		if err != nil {
			return c.wrong("%w", err)
		}
		return s.visit(instance)
	})
}

// rawInstance is an instance as it stands in a file.
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
		return nil, fmt.Errorf("%s: no provider is named: add it to the file as provider, or run tofu apply -refresh-only, which does", address)
	}
	if !i.Tainted && r.Status != "" {
		return nil, fmt.Errorf("%s: its status is %q, which is neither empty nor tainted: install a newer release of Atoll", address, r.Status)
	}
	if i.Attributes = compact(r.Attributes); i.Attributes != nil {
		i.Flat = nil
	} else if i.Flat == nil {
		i.Attributes = []byte("{}")
	}
	if i.Attributes != nil && i.Attributes[0] != '{' {
		return nil, fmt.Errorf("%s: its attributes are not an object", address)
	}
	if r.IdentityVersion == 0 {
		// States have no version of the identity's schema. The provider says an identity anew with the next reading.
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
	return Key{}, errors.New("index_key is neither a text nor a whole number")
}

// compact takes out spaces, in memory of its own. Null is nil.
func compact(raw json.RawMessage) []byte {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil // the decoder has read it already: it is JSON
	}
	return b.Bytes()
}
