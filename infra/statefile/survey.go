package statefile

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A survey has the information about all resources that is needed before the first can be adopted:
// names, possible targets of references, and dependencies. It holds no values.
type survey struct {
	options    Options
	resolver   typeResolver
	file       *File
	configs    []*configResource
	configured map[string]int32 // by address
	instances  []*resourceInstance
	addresses  map[string]int32
	candidates *candidates
	skipped    int // data sources
	stamps     []int32
	stamp      int32
}

// configResource is a resource in the configuration, with all its instances in all instances of its
// modules.
type configResource struct {
	address   string
	module    []Step // without keys
	instances []int32
	// on has the configurations that any instance depends on, sorted.
	on []int32
	// direct has the direct dependencies among them.
	direct   []int32
	directed bool
	indexes  map[int]*instanceIndex // by the number of common outer modules
}

// resourceInstance is one instance of a resource.
type resourceInstance struct {
	address  string
	module   []Step
	key      Key
	config   int32
	typ      *typeInfo
	target   Target
	provider string
	name     string
	// entries is the number of its entries in the file: the current one, and one for each deposed
	// object.
	entries int
	current bool
}

// newSurvey reads the file once.
func newSurvey(src io.ReaderAt, size int64, options Options, types ResourceTypes) (*survey, error) {
	s := &survey{
		options: options,
		resolver: typeResolver{
			providers: options.Providers, types: types,
			targets: map[string]*Target{}, found: map[kindKey]*typeInfo{}, reasons: map[string]error{},
		},
		configured: map[string]int32{}, addresses: map[string]int32{}, candidates: newCandidates(),
	}
	on := map[int32]map[int32]bool{}
	file, err := Read(src, size, func(i *Instance) error { return s.add(i, on) })
	if err != nil {
		return nil, err
	}
	if err := s.resolver.err(); err != nil {
		return nil, err
	}
	s.file = file
	for id, others := range on {
		for other := range others {
			s.configs[id].on = append(s.configs[id].on, other)
		}
		slices.Sort(s.configs[id].on)
	}
	s.stamps = make([]int32, len(s.configs))
	return s, s.assignNames()
}

func (s *survey) add(i *Instance, on map[int32]map[int32]bool) error {
	if i.Address.Data && !s.options.Data {
		s.skipped++
		return nil
	}
	typ, target := s.resolver.resolve(i)
	if typ == nil {
		return nil // reported together with all others
	}
	id := s.configID(i.Address.Config())
	address := i.Address.String()
	at, seen := s.addresses[address]
	if !seen {
		at = int32(len(s.instances))
		s.addresses[address] = at
		s.instances = append(s.instances, &resourceInstance{
			address: address, module: i.Address.Module, key: i.Address.Key, config: id, typ: typ, target: target, provider: i.Provider,
		})
		s.configs[id].instances = append(s.configs[id].instances, at)
	}
	one := s.instances[at]
	one.entries++
	for _, dependency := range i.Dependencies {
		if on[id] == nil {
			on[id] = map[int32]bool{}
		}
		on[id][s.configID(dependency)] = true
	}
	if i.Deposed != "" {
		return nil
	}
	if one.current {
		return fmt.Errorf("%s is in the state file twice; the file seems to be a concatenation of two: import them one by one", address)
	}
	one.current = true
	v, err := typ.value(i)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	s.candidates.collect(at, typ, v, i.Sensitive)
	return nil
}

func (s *survey) configID(address string) int32 {
	id, ok := s.configured[address]
	if ok {
		return id
	}
	id = int32(len(s.configs))
	s.configured[address] = id
	parsed, _ := ParseAddress(address) // it is derived from a valid address
	s.configs = append(s.configs, &configResource{address: address, module: parsed.Module})
	return id
}

// assignNames assigns each instance a unique name.
func (s *survey) assignNames() error {
	taken := map[string]map[string]bool{}
	var requests []*nameRequest
	var whose []*resourceInstance
	for _, one := range s.instances {
		of := one.typ.typeName
		if one.typ.data {
			of = "data." + of
		}
		if name, given := s.options.Names[one.address]; given {
			if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
				return fmt.Errorf("%s: %q is not a valid object name: %s", one.address, name, strings.Join(wrong, "; "))
			}
			if taken[of] == nil {
				taken[of] = map[string]bool{}
			}
			if taken[of][name] {
				return fmt.Errorf("%s: another %s has the name %s; give each a unique name", one.address, of, name)
			}
			taken[of][name] = true
			one.name = name
			continue
		}
		address, err := ParseAddress(one.address)
		if err != nil {
			return err
		}
		requests = append(requests, &nameRequest{of: of, slug: slug(s.options.Prefix, address), address: one.address})
		whose = append(whose, one)
	}
	for i, name := range assignNames(requests, taken) {
		whose[i].name = name
	}
	return nil
}

// instance looks up an instance of the survey.
func (s *survey) instance(address Address) (int32, *resourceInstance) {
	at, ok := s.addresses[address.String()]
	if !ok {
		return 0, nil
	}
	return at, s.instances[at]
}

// sensitiveArguments returns the names of the arguments that contain a value marked as sensitive.
func sensitiveArguments(paths []cty.Path) []string {
	var names []string
	for _, path := range paths {
		if len(path) == 0 {
			continue
		}
		if name, ok := path[0].(cty.GetAttrStep); ok {
			names = append(names, name.Name)
		}
	}
	return names
}
