package statefile

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Item is a resource to export, without its state: all items are held at once, but only one state
// at a time.
type Item struct {
	// StateName is the name of the ResourceState.
	StateName string
	// Type, Name, Provider and ProviderConfig are those in the state.
	Type, Name               string
	Provider, ProviderConfig string
	// Annotations are those of the object, or of its ResourceState if there is no object.
	Annotations map[string]string
}

// Header has the top-level fields of an exported file.
type Header struct {
	// Lineage identifies a state. For an adopted state use its original lineage, so that OpenTofu
	// takes the file for a later version of it.
	Lineage string
	Serial  uint64
	// TerraformVersion is recorded as the OpenTofu version that wrote the file. Default: 1.6.0.
	TerraformVersion string
	// Providers maps the addresses of provider configurations, as for Adopt.
	Providers Providers
	// Outputs is copied into the file. Use the outputs of the adopted file.
	Outputs map[string]json.RawMessage
}

// Export writes a state file of version 4 with the resources of one namespace, and returns the
// address of each item. Load returns the state of an item. An adopted resource keeps its address
// unless another item has it.
func Export(w io.Writer, header Header, items []Item, load func(item int) (*v1alpha1.ResourceStateSpec, error)) ([]Address, error) {
	if header.Lineage == "" {
		return nil, fmt.Errorf("the state has no lineage; use a new UUID, or the lineage of the adopted file")
	}
	e := &exporter{items: items, load: load, out: bufio.NewWriterSize(w, 1<<16)}
	e.json = json.NewEncoder(e.out)
	e.json.SetEscapeHTML(false) // keeps values identical byte by byte
	if err := e.address(header.Providers); err != nil {
		return nil, err
	}
	if err := e.write(header); err != nil {
		return nil, err
	}
	return e.addresses, e.out.Flush()
}

type exporter struct {
	items     []Item
	load      func(int) (*v1alpha1.ResourceStateSpec, error)
	out       *bufio.Writer
	json      *json.Encoder
	addresses []Address
	providers []string
	configs   map[string]string // by the name of the state
}

// address determines the address of each item and of its provider configuration.
func (e *exporter) address(providers Providers) error {
	e.addresses, e.providers = make([]Address, len(e.items)), make([]string, len(e.items))
	e.configs = make(map[string]string, len(e.items))
	used := map[string]bool{}
	var others []int
	for at := range e.items {
		item := &e.items[at]
		a, err := ParseAddress(item.Annotations[AddressAnnotation])
		if err != nil || a.Data || a.Type != item.Type || used[a.String()] {
			others = append(others, at)
			continue
		}
		used[a.String()] = true
		e.addresses[at] = a
	}
	resources := map[string]bool{}
	for address := range used {
		a, _ := ParseAddress(address)
		resources[a.resource()] = true
	}
	for _, at := range others {
		item := &e.items[at]
		a := Address{Type: item.Type, Name: identifier(item.Name)}
		if resources[a.resource()] {
			sum := sha256.Sum256([]byte(item.StateName))
			a.Name += "_" + hex.EncodeToString(sum[:4])
		}
		if resources[a.resource()] {
			return fmt.Errorf("cannot export %s: two resources have the address %s; rename one of them", item.StateName, a)
		}
		resources[a.resource()] = true
		e.addresses[at] = a
	}
	var missing []string
	for at := range e.items {
		item := &e.items[at]
		e.configs[item.StateName] = e.addresses[at].Config()
		address, ok := providers.address(item)
		if !ok {
			missing = append(missing, item.Provider+"/"+item.ProviderConfig)
		}
		e.providers[at] = address
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("no source address is known for the provider configurations %s; name the source of each, for example hashicorp/aws.west=PROVIDER/CONFIG",
			strings.Join(slices.Compact(missing), ", "))
	}
	return nil
}

// identifier converts a name to an HCL identifier.
func identifier(name string) string {
	name = strings.ReplaceAll(name, ".", "_")
	if name == "" || name[0] >= '0' && name[0] <= '9' || name[0] == '-' {
		name = "_" + name
	}
	return name
}

// address returns the address of the provider configuration of an item: the one that it was adopted
// from, unless that is now mapped to another Target.
func (p Providers) address(item *Item) (string, bool) {
	target := Target{item.Provider, item.ProviderConfig}
	if adopted := item.Annotations[ProviderAnnotation]; adopted != "" {
		if now, said := p.Find(adopted); !said || now.Provider == target.Provider && now.configName() == target.configName() {
			return adopted, true
		}
	}
	for _, address := range slices.Sorted(maps.Keys(p)) {
		if of := p[address]; of.Provider == target.Provider && of.configName() == target.configName() {
			return longProvider(address), true
		}
	}
	return "", false
}

// longProvider is the inverse of shortProvider.
func longProvider(address string) string {
	if strings.HasPrefix(address, "provider[") || strings.HasPrefix(address, "provider.") || strings.HasPrefix(address, "module.") {
		return address
	}
	source, rest, _ := strings.Cut(address, "[")
	if rest != "" {
		rest = "[" + rest
	}
	path, last := "", source
	if slash := strings.LastIndexByte(source, '/'); slash >= 0 {
		path, last = source[:slash+1], source[slash+1:]
	}
	name, alias, aliased := strings.Cut(last, ".")
	if aliased {
		rest = "." + alias + rest
	}
	switch strings.Count(path, "/") {
	case 0:
		path = "registry.opentofu.org/hashicorp/"
	case 1:
		path = "registry.opentofu.org/" + path
	}
	return "provider[" + strconv.Quote(path+name) + "]" + rest
}

// wireFile is a state file without its resources, and wireResource a resource without its
// instances.
type wireFile struct {
	Version          int                        `json:"version"`
	TerraformVersion string                     `json:"terraform_version"`
	Serial           uint64                     `json:"serial"`
	Lineage          string                     `json:"lineage"`
	Outputs          map[string]json.RawMessage `json:"outputs"`
}

type wireResource struct {
	Module   string `json:"module,omitempty"`
	Mode     string `json:"mode"`
	Type     string `json:"type"`
	Name     string `json:"name"`
	Provider string `json:"provider,omitempty"`
}

type wireInstance struct {
	IndexKey            any             `json:"index_key,omitempty"`
	Status              string          `json:"status,omitempty"`
	Deposed             string          `json:"deposed,omitempty"`
	SchemaVersion       int64           `json:"schema_version"`
	Attributes          json.RawMessage `json:"attributes"`
	SensitiveAttributes [][]rawStep     `json:"sensitive_attributes,omitempty"`
	IdentityVersion     *int64          `json:"identity_schema_version,omitempty"`
	Identity            json.RawMessage `json:"identity,omitempty"`
	Private             []byte          `json:"private,omitempty"`
	Dependencies        []string        `json:"dependencies,omitempty"`
	CreateBeforeDestroy bool            `json:"create_before_destroy,omitempty"`
	SkipDestroy         bool            `json:"skip_destroy,omitempty"`
	InstanceProvider    string          `json:"instance_provider,omitempty"`
}

func (e *exporter) write(header Header) error {
	outputs := header.Outputs
	if outputs == nil {
		outputs = map[string]json.RawMessage{}
	}
	if err := e.open(wireFile{
		Version: 4, TerraformVersion: cmp.Or(header.TerraformVersion, "1.6.0"), Serial: header.Serial, Lineage: header.Lineage, Outputs: outputs,
	}, "resources"); err != nil {
		return err
	}
	order := e.sorted()
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && e.addresses[order[to]].resource() == e.addresses[order[from]].resource() {
			to++
		}
		if from > 0 {
			e.out.WriteString(",")
		}
		if err := e.resource(order[from:to]); err != nil {
			return err
		}
		from = to
	}
	_, err := e.out.WriteString("\n]}\n")
	return err
}

// sorted returns the items in the order in which OpenTofu writes them.
func (e *exporter) sorted() []int {
	order := make([]int, len(e.items))
	for at := range order {
		order[at] = at
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := e.addresses[i], e.addresses[j]
		return cmp.Or(
			cmp.Compare(moduleText(a.Module), moduleText(b.Module)), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Number, b.Key.Number), cmp.Compare(a.Key.Text, b.Key.Text),
		)
	})
	return order
}

// open writes the fields of an object and begins a list as its last field.
func (e *exporter) open(fields any, list string) error {
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	e.out.Write(text[:len(text)-1])
	_, err = e.out.WriteString(`,"` + list + `":[`)
	return err
}

// resource writes the items that differ only in their instance keys.
func (e *exporter) resource(items []int) error {
	a := e.addresses[items[0]]
	provider := e.providers[items[0]]
	for _, at := range items {
		if e.providers[at] != provider {
			provider = ""
		}
	}
	e.out.WriteString("\n")
	err := e.open(wireResource{Module: moduleText(a.Module), Mode: "managed", Type: a.Type, Name: a.Name, Provider: provider}, "instances")
	if err != nil {
		return err
	}
	first := true
	for _, at := range items {
		state, err := e.load(at)
		if err != nil {
			return fmt.Errorf("%s: %w", e.items[at].StateName, err)
		}
		if err := e.instance(at, provider, state, &first); err != nil {
			return fmt.Errorf("%s: %w", e.items[at].StateName, err)
		}
	}
	_, err = e.out.WriteString("]}")
	return err
}

func (e *exporter) instance(at int, provider string, state *v1alpha1.ResourceStateSpec, first *bool) error {
	one := func(value *v1alpha1.ResourceValue, deposed string) error {
		wire, err := e.wire(at, value)
		if err != nil {
			return err
		}
		wire.Deposed = deposed
		if provider == "" {
			wire.InstanceProvider = e.providers[at]
		}
		if !*first {
			e.out.WriteString(",")
		}
		*first = false
		e.out.WriteString("\n ")
		if err := e.json.Encode(wire); err != nil {
			return errors.New("writing it failed: its value is not JSON, or the file is not writable")
		}
		return nil
	}
	if state.Current != nil {
		if err := one(state.Current, ""); err != nil {
			return err
		}
	}
	for i := range state.Deposed {
		if err := one(&state.Deposed[i].ResourceValue, state.Deposed[i].Key); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) wire(at int, value *v1alpha1.ResourceValue) (*wireInstance, error) {
	item := &e.items[at]
	wire := &wireInstance{
		SchemaVersion: value.SchemaVersion, Attributes: value.Value, Identity: plainIdentity(value.Identity), Private: value.Private,
		CreateBeforeDestroy: value.CreateBeforeDestroy, SkipDestroy: item.Annotations[DeletionAnnotation] == deletionForget,
	}
	switch key := e.addresses[at].Key; key.Kind {
	case CountKey:
		wire.IndexKey = key.Number
	case EachKey:
		wire.IndexKey = key.Text
	}
	if value.Tainted {
		wire.Status = "tainted"
	}
	if wire.Identity != nil {
		// Identities of another version are not adopted, so the version is 0.
		wire.IdentityVersion = new(int64)
	}
	var paths []cty.Path
	for _, text := range value.Sensitive {
		// A path that cannot be parsed leads into a set, whose elements OpenTofu does not mark as
		// sensitive either.
		if path, err := providerapi.ParsePath(text); err == nil {
			paths = append(paths, path)
		}
	}
	var err error
	if wire.SensitiveAttributes, err = writePaths(paths); err != nil {
		return nil, err
	}
	for _, name := range value.Dependencies {
		if config, ok := e.configs[name]; ok {
			wire.Dependencies = append(wire.Dependencies, config)
		}
	}
	if left := item.Annotations[DependenciesAnnotation]; left != "" {
		wire.Dependencies = append(wire.Dependencies, strings.Split(left, "\n")...)
	}
	slices.Sort(wire.Dependencies)
	wire.Dependencies = slices.Compact(wire.Dependencies)
	return wire, nil
}
