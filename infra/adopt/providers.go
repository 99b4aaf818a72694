package adopt

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Providers says what stands in Atoll for each configuration of a provider in a state file. A key is the address as it stands
// in the file, such as provider["registry.opentofu.org/hashicorp/aws"].west, or in short hashicorp/aws.west. A configuration
// within a module is only known by its whole address.
type Providers map[string]Target

// Find looks for an address in both forms.
func (p Providers) Find(address string) (Target, bool) {
	if target, ok := p[address]; ok {
		return target, true
	}
	target, ok := p[shortProvider(address)]
	return target, ok
}

// shortProvider is the short form of a provider's address, or the address itself if it has none.
func shortProvider(address string) string {
	if legacy, ok := strings.CutPrefix(address, "provider."); ok {
		return legacy
	}
	rest, ok := strings.CutPrefix(address, "provider[")
	if !ok {
		return address
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return address
	}
	source, err := strconv.Unquote(quoted)
	after, closed := strings.CutPrefix(rest[len(quoted):], "]")
	if err != nil || !closed {
		return address
	}
	for _, host := range []string{"registry.opentofu.org/", "registry.terraform.io/"} {
		source = strings.TrimPrefix(source, host)
	}
	return source + after
}

// MissingProvidersError is of configurations of which the caller did not say what stands for them.
type MissingProvidersError struct {
	// Addresses, sorted.
	Addresses []string
}

func (e *MissingProvidersError) Error() string {
	var short []string
	for _, address := range e.Addresses {
		short = append(short, shortProvider(address))
	}
	return fmt.Sprintf("nothing is said of %s: name for each the Provider, and the ProviderConfig if it is not called the same, as in %s=PROVIDER/CONFIG",
		strings.Join(e.Addresses, ", "), short[0])
}

// NotServedError is of types that no installed Provider serves.
type NotServedError struct {
	// Types, sorted, each with the reason.
	Types   []string
	Reasons []error
}

func (e *NotServedError) Error() string {
	var all []string
	for i, typeName := range e.Types {
		all = append(all, fmt.Sprintf("%s: %v", typeName, e.Reasons[i]))
	}
	return "not all types are served: " + strings.Join(all, "; ") + "; install their Providers, in the version that wrote the state or a later one"
}

// Unwrap gives the reasons.
func (e *NotServedError) Unwrap() []error { return e.Reasons }

// finder finds Kinds, each once, and remembers what there is none of.
type finder struct {
	providers Providers
	kinds     Kinds
	targets   map[string]*Target // by address; nil if nothing is said of it
	found     map[kindKey]*served
	reasons   map[string]error // by type
}

type kindKey struct {
	provider, typeName string
	data               bool
}

// find gives the Kind of an instance, or nil, which the finder remembers.
func (f *finder) find(i *Instance) (*served, Target) {
	target, seen := f.targets[i.Provider]
	if !seen {
		if t, ok := f.providers.Find(i.Provider); ok && t.Provider != "" {
			target = &t
		}
		f.targets[i.Provider] = target
	}
	if target == nil {
		return nil, Target{}
	}
	key := kindKey{target.Provider, i.Address.Type, i.Address.Data}
	kind, seen := f.found[key]
	if seen {
		return kind, *target
	}
	if of, err := f.kinds.Kind(target.Provider, key.typeName, key.data); err != nil {
		name := key.typeName
		if key.data {
			name = "data " + name
		}
		f.reasons[name] = err
	} else {
		kind = &served{Kind: of, typeName: key.typeName, data: key.data, target: Target{Provider: target.Provider}, implied: of.Schema.Block.ImpliedType()}
	}
	f.found[key] = kind
	return kind, *target
}

// err is what was not found, all of it.
func (f *finder) err() error {
	missing := &MissingProvidersError{}
	for address, target := range f.targets {
		if target == nil {
			missing.Addresses = append(missing.Addresses, address)
		}
	}
	if len(missing.Addresses) > 0 {
		slices.Sort(missing.Addresses)
		return missing
	}
	if len(f.reasons) == 0 {
		return nil
	}
	not := &NotServedError{}
	for typeName := range f.reasons {
		not.Types = append(not.Types, typeName)
	}
	slices.Sort(not.Types)
	for _, typeName := range not.Types {
		not.Reasons = append(not.Reasons, f.reasons[typeName])
	}
	return not
}

// Configuration is what the address of a provider's configuration says.
type Configuration struct {
	// Source is HOST/NAMESPACE/TYPE; in files of the oldest form TYPE alone.
	Source string
	// Alias tells it from the default one, which has none.
	Alias string
}

// ParseConfiguration reads the address of a provider's configuration as it stands in a state file. Which module it is in does
// not matter.
func ParseConfiguration(address string) (Configuration, bool) {
	if at := strings.Index(address, "provider["); at >= 0 {
		rest := address[at+len("provider["):]
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return Configuration{}, false
		}
		source, err := strconv.Unquote(quoted)
		after, closed := strings.CutPrefix(rest[len(quoted):], "]")
		if err != nil || !closed || source == "" || after != "" && after[0] != '.' {
			return Configuration{}, false
		}
		return Configuration{Source: source, Alias: strings.TrimPrefix(after, ".")}, true
	}
	at := strings.LastIndex(address, "provider.")
	if at < 0 {
		return Configuration{}, false
	}
	source, alias, _ := strings.Cut(address[at+len("provider."):], ".")
	return Configuration{Source: source, Alias: alias}, source != ""
}
