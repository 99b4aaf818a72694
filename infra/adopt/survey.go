package adopt

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A survey is what has to be known of all resources before the first can be adopted: names, what may be referred
// to, and who depends on whom. It holds no values.
type survey struct {
	options    Options
	finder     finder
	file       *File
	configs    []*config
	configured map[string]int32 // by address
	instances  []*known
	addresses  map[string]int32
	candidates *candidates
	skipped    int // data sources
	stamps     []int32
	stamp      int32
}

// config is a resource as a configuration has it: all its instances, in all instances of its modules.
type config struct {
	address   string
	module    []Step // without keys
	instances []int32
	// on are the configs that any of the instances depends on, sorted.
	on []int32
	// direct are those of them that are not reached by way of others.
	direct   []int32
	directed bool
	pools    map[int]*pools // by the number of modules in common
}

// known is an instance.
type known struct {
	address  string
	module   []Step
	key      Key
	config   int32
	kind     *served
	target   Target
	provider string
	name     string
	// entries are how often it is in the file: once, and once for each that was replaced and not deleted.
	entries int
	current bool
}

// look goes through the file once.
func look(src io.ReaderAt, size int64, options Options, kinds Kinds) (*survey, error) {
	s := &survey{
		options: options,
		finder: finder{
			providers: options.Providers, kinds: kinds,
			targets: map[string]*Target{}, found: map[kindKey]*served{}, reasons: map[string]error{},
		},
		configured: map[string]int32{}, addresses: map[string]int32{}, candidates: newCandidates(),
	}
	on := map[int32]map[int32]bool{}
	file, err := Read(src, size, func(i *Instance) error { return s.note(i, on) })
	if err != nil {
		return nil, err
	}
	if err := s.finder.err(); err != nil {
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
	return s, s.name()
}

func (s *survey) note(i *Instance, on map[int32]map[int32]bool) error {
	if i.Address.Data && !s.options.Data {
		s.skipped++
		return nil
	}
	kind, target := s.finder.find(i)
	if kind == nil {
		return nil // told once all of them are known
	}
	id := s.config(i.Address.Config())
	address := i.Address.String()
	at, seen := s.addresses[address]
	if !seen {
		at = int32(len(s.instances))
		s.addresses[address] = at
		s.instances = append(s.instances, &known{
			address: address, module: i.Address.Module, key: i.Address.Key, config: id, kind: kind, target: target, provider: i.Provider,
		})
		s.configs[id].instances = append(s.configs[id].instances, at)
	}
	one := s.instances[at]
	one.entries++
	for _, dependency := range i.Dependencies {
		if on[id] == nil {
			on[id] = map[int32]bool{}
		}
		on[id][s.config(dependency)] = true
	}
	if i.Deposed != "" {
		return nil
	}
	if one.current {
		return fmt.Errorf("%s stands twice in the state file: it was put together of two; adopt them one by one", address)
	}
	one.current = true
	v, err := kind.value(i)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	s.candidates.collect(at, kind, v, i.Sensitive)
	return nil
}

func (s *survey) config(address string) int32 {
	id, ok := s.configured[address]
	if ok {
		return id
	}
	id = int32(len(s.configs))
	s.configured[address] = id
	parsed, _ := ParseAddress(address) // it comes of an address
	s.configs = append(s.configs, &config{address: address, module: parsed.Module})
	return id
}

// name gives each instance a name of its own.
func (s *survey) name() error {
	taken := map[string]map[string]bool{}
	var wishes []*wish
	var whose []*known
	for _, one := range s.instances {
		of := one.kind.typeName
		if one.kind.data {
			of = "data." + of
		}
		if name, given := s.options.Names[one.address]; given {
			if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
				return fmt.Errorf("%s: %q cannot be the name of an object: %s", one.address, name, strings.Join(wrong, "; "))
			}
			if taken[of] == nil {
				taken[of] = map[string]bool{}
			}
			if taken[of][name] {
				return fmt.Errorf("%s: another %s is to be called %s, too: give each a name of its own", one.address, of, name)
			}
			taken[of][name] = true
			one.name = name
			continue
		}
		address, err := ParseAddress(one.address)
		if err != nil {
			return err
		}
		wishes = append(wishes, &wish{of: of, slug: slug(s.options.Prefix, address), address: one.address})
		whose = append(whose, one)
	}
	for i, name := range grant(wishes, taken) {
		whose[i].name = name
	}
	return nil
}

// instance finds one that was seen before.
func (s *survey) instance(address Address) (int32, *known) {
	at, ok := s.addresses[address.String()]
	if !ok {
		return 0, nil
	}
	return at, s.instances[at]
}

// sensitiveArguments are the names of arguments with something in them that was secret, although the schema does not say so.
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
