package statefile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Providers maps each provider configuration of a state file to its Target. A key is the address as
// in the file, such as provider["registry.opentofu.org/hashicorp/aws"].west, or its short form
// hashicorp/aws.west. A configuration within a module has no short form.
type Providers map[string]Target

// Find looks up an address in both forms.
func (p Providers) Find(address string) (Target, bool) {
	if target, ok := p[address]; ok {
		return target, true
	}
	target, ok := p[shortProvider(address)]
	return target, ok
}

// shortProvider returns the short form of a provider's address, or the address itself if it has
// none.
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

// MissingProvidersError reports provider configurations without a Target.
type MissingProvidersError struct {
	// Addresses is sorted.
	Addresses []string
}

func (e *MissingProvidersError) Error() string {
	var short []string
	for _, address := range e.Addresses {
		short = append(short, shortProvider(address))
	}
	return fmt.Sprintf("no Provider is given for %s; name for each the Provider, and the ProviderConfig if its name differs, for example %s=PROVIDER/CONFIG",
		strings.Join(e.Addresses, ", "), short[0])
}

// NotServedError reports types that no installed Provider serves.
type NotServedError struct {
	// Types is sorted. Reasons has the reason for each of them.
	Types   []string
	Reasons []error
}

func (e *NotServedError) Error() string {
	var all []string
	for i, typeName := range e.Types {
		all = append(all, fmt.Sprintf("%s: %v", typeName, e.Reasons[i]))
	}
	return "some types are not served: " + strings.Join(all, "; ") + "; install their Providers, in the version that wrote the state or a later one"
}

// Unwrap returns the reasons.
func (e *NotServedError) Unwrap() []error { return e.Reasons }

// A typeResolver looks up each ResourceType once, and records the failures.
type typeResolver struct {
	providers Providers
	types     ResourceTypes
	targets   map[string]*Target // by address; nil if there is none
	found     map[kindKey]*typeInfo
	reasons   map[string]error // by type
}

type kindKey struct {
	provider, typeName string
	data               bool
}

// resolve returns the type of an instance. If it returns nil, the resolver has recorded the
// failure.
func (f *typeResolver) resolve(i *Instance) (*typeInfo, Target) {
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
	typ, seen := f.found[key]
	if seen {
		return typ, *target
	}
	if of, err := f.types.ResourceType(target.Provider, key.typeName, key.data); err != nil {
		name := key.typeName
		if key.data {
			name = "data " + name
		}
		f.reasons[name] = err
	} else {
		typ = &typeInfo{ResourceType: of, typeName: key.typeName, data: key.data, target: Target{Provider: target.Provider}, implied: of.Schema.Block.ImpliedType()}
	}
	f.found[key] = typ
	return typ, *target
}

// err returns all failures.
func (f *typeResolver) err() error {
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

// Configuration is the parsed address of a provider configuration.
type Configuration struct {
	// Source is HOST/NAMESPACE/TYPE, or TYPE alone in files of the oldest format.
	Source string
	// Alias is empty for the default configuration.
	Alias string
}

// ParseConfiguration parses the address of a provider configuration in a state file. It ignores the
// module.
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
