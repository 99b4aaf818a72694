package statefile

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Annotations of adopted resources. Export reads them.
const (
	// AddressAnnotation is the address that the resource had in OpenTofu.
	AddressAnnotation = v1alpha1.Group + "/adopted-from"
	// ProviderAnnotation is the address of its provider configuration.
	ProviderAnnotation = v1alpha1.Group + "/adopted-provider"
	// DependenciesAnnotation has the addresses of dependencies that were not adopted, one a line.
	DependenciesAnnotation = v1alpha1.Group + "/adopted-dependencies"
	// DeletionAnnotation with the value Forget keeps the resource when the object is deleted, as in
	// infra.
	DeletionAnnotation = v1alpha1.Group + "/deletion-policy"
	deletionForget     = "Forget"
)

// Options configure Adopt.
type Options struct {
	// Namespace is the namespace of the objects.
	Namespace string
	// Prefix is a prefix for all names. It separates several files in one namespace.
	Prefix string
	// Providers maps each provider configuration to its Target.
	Providers Providers
	// Names are fixed names by address, such as those of an earlier Adopt or Export.
	Names map[string]string
	// Data also adopts data sources. Their arguments include all results, because a state file does
	// not distinguish the two. Without Data, values taken from data sources remain literals.
	Data bool
	// Literals keeps all values and recovers no references.
	Literals bool
	// Checker, if not nil, is used to verify that the first plan has no changes.
	Checker Checker
	// Progress, if not nil, is called with the number of finished instances and the total.
	Progress func(done, total int)
}

// Checker plans adopted resources with the provider.
type Checker interface {
	// Changes returns the names of the attributes that the plan would change. The object has no
	// references yet, and its Secret has all values. The error is the provider's rejection of the
	// arguments.
	Changes(one *Adopted, value cty.Value) ([]string, error)
}

// Object is an object to create.
type Object struct {
	APIVersion, Kind, Plural string
	Namespace, Name          string
	Annotations              map[string]string
	Spec                     map[string]any
}

// Adopted is the result for one resource of the file.
type Adopted struct {
	Address string
	// Object is nil if only deposed objects of the resource are left.
	Object *Object
	// Annotations belong on the ResourceState, where Export finds them if there is no object. The
	// object has them as well.
	Annotations map[string]string
	// State is nil for data sources. The caller sets the UID of its owner once the object exists.
	State     *v1alpha1.ResourceStateSpec
	StateName string
	// Secret is the Secret that the object needs, or nil. It is as confidential as the state file.
	Secret *Secret
	// References is the number of values that were replaced by references.
	References int
	// OmittedDependencies counts dependencies that are not in depends_on, because there are too
	// many instances to depend on.
	OmittedDependencies int
	// Changes has the attributes that the first plan would change, as far as a Checker knows.
	// Rejected is the provider's rejection of the arguments.
	Changes  []string
	Rejected error
}

// Report summarizes the adoption of a file.
type Report struct {
	File *File
	// Resources and DataSources count the objects, SkippedData the skipped data sources.
	Resources, DataSources, SkippedData int
	// References counts recovered references, DependsOn the dependencies in depends_on, and
	// OmittedDependencies those that are expressed in neither way.
	References, DependsOn, OmittedDependencies int
	// Secrets is the number of objects that need a Secret. MissingSecrets has the addresses of
	// those with a key that no state has.
	Secrets        int
	MissingSecrets []string
	// Changing has the addresses of resources that the first plan would change.
	Changing []string
	// Names maps addresses to objects. Keep it for a later adoption.
	Names []Name
}

// Name is the object of an address.
type Name struct {
	Address    string `json:"address"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// Adopt reads a state file twice, and passes the result for each resource to emit, in the order of
// the file. It emits nothing if there is an error that concerns the whole file, a missing Target,
// or a type that is not served.
func Adopt(src io.ReaderAt, size int64, types ResourceTypes, options Options, emit func(*Adopted) error) (*Report, error) {
	if options.Namespace == "" {
		return nil, fmt.Errorf("no namespace; set the namespace of the objects")
	}
	s, err := newSurvey(src, size, options, types)
	if err != nil {
		return nil, err
	}
	a := &adopter{survey: s, waiting: map[int32][]*Instance{}, emit: emit, report: &Report{File: s.file, SkippedData: s.skipped}}
	if _, err := Read(src, size, a.instance); err != nil {
		return nil, err
	}
	return a.report, nil
}

type adopter struct {
	*survey
	// waiting has the entries of instances that have more entries to come.
	waiting map[int32][]*Instance
	emit    func(*Adopted) error
	report  *Report
	done    int
}

func (a *adopter) instance(i *Instance) error {
	if i.Address.Data && !a.options.Data {
		return nil
	}
	at, one := a.survey.instance(i.Address)
	if one == nil {
		return fmt.Errorf("%s was added to the file while it was being read; try again with a copy", i.Address)
	}
	entries := append(a.waiting[at], i)
	if len(entries) < one.entries {
		a.waiting[at] = entries
		return nil
	}
	delete(a.waiting, at)
	adopted, err := a.adopt(one, entries)
	if err != nil {
		return fmt.Errorf("%s: %w", one.address, err)
	}
	a.count(one, adopted)
	if err := a.emit(adopted); err != nil {
		return err
	}
	if a.done++; a.options.Progress != nil {
		a.options.Progress(a.done, len(a.instances))
	}
	return nil
}

// adopt converts all entries of an instance to one object and its state.
func (a *adopter) adopt(one *resourceInstance, entries []*Instance) (*Adopted, error) {
	out := &Adopted{
		Address: one.address, StateName: stateName(one),
		Annotations: map[string]string{AddressAnnotation: one.address, ProviderAnnotation: entries[0].Provider},
	}
	var deps dependencySet
	for _, i := range entries {
		if i.Deposed == "" {
			var err error
			if deps, err = a.object(out, one, i); err != nil {
				return nil, err
			}
		}
	}
	if one.typ.data {
		annotate(out, deps.unadopted)
		return out, nil
	}
	state := &v1alpha1.ResourceStateSpec{
		Object: v1alpha1.StateOwner{Group: group(one), Kind: one.typ.ResourceType.Kind, Name: one.name},
		Type:   one.typ.typeName, Provider: one.target.Provider, ProviderConfig: one.target.configName(),
	}
	for _, i := range entries {
		if i.Deposed == "" {
			value, err := resourceValue(one.typ, i, deps)
			if err != nil {
				return nil, err
			}
			state.Current = value
			continue
		}
		before := a.resolve(one, i.Dependencies, nil)
		value, err := resourceValue(one.typ, i, before)
		if err != nil {
			return nil, err
		}
		deps.unadopted = append(deps.unadopted, before.unadopted...)
		state.Deposed = append(state.Deposed, v1alpha1.DeposedResource{Key: i.Deposed, ResourceValue: *value})
	}
	out.State = state
	annotate(out, deps.unadopted)
	return out, nil
}

// annotate records dependencies that were not adopted, for Export.
func annotate(out *Adopted, left []string) {
	if len(left) == 0 {
		return
	}
	slices.Sort(left)
	text := strings.Join(slices.Compact(left), "\n")
	out.Annotations[DependenciesAnnotation] = text
	if out.Object != nil {
		out.Object.Annotations[DependenciesAnnotation] = text
	}
}

// object creates an object whose arguments produce the resource.
func (a *adopter) object(out *Adopted, one *resourceInstance, i *Instance) (dependencySet, error) {
	v, err := one.typ.value(i)
	if err != nil {
		return dependencySet{}, err
	}
	out.Object = &Object{
		APIVersion: group(one) + "/" + v1alpha1.ProvidersVersion, Kind: one.typ.ResourceType.Kind, Plural: one.typ.Plural,
		Namespace: a.options.Namespace, Name: one.name,
	}
	a.chooseArguments(out, one, i, v)
	r := &rewriter{
		survey: a.survey, on: map[int32]bool{}, secret: out.Secret, marked: map[string]bool{}, literals: a.options.Literals, found: map[int32]bool{},
	}
	for _, dependency := range i.Dependencies {
		if id, ok := a.configured[dependency]; ok && id != one.config {
			r.on[id] = true
		}
	}
	for _, path := range i.Sensitive {
		r.marked[providerapi.PathText(path)] = true
	}
	r.block(&one.typ.Schema.Block, out.Object.Spec, v, nil, false)
	out.References = r.count
	if len(out.Secret.Data) == 0 && len(out.Secret.Missing) == 0 {
		out.Secret = nil
	}
	deps := a.resolve(one, i.Dependencies, r.found)
	a.setMetaArguments(out, one, i, deps)
	return deps, nil
}

// chooseArguments chooses the arguments. The value does not show which of the optional computed
// arguments were set. Most of those with a value were: names, images, subnets. Without them, a resource
// that is deleted outside could not be created again, and drift of them would stay. If the provider
// rejects some of them together, those that it names are left out, or all.
//
// Empty, zero and false optional arguments are left out: the oldest SDK reads them where nothing was set,
// and rejects some of them. A Checker tells which of them are missing.
func (a *adopter) chooseArguments(out *Adopted, one *resourceInstance, i *Instance, v cty.Value) {
	secret := stateName(one)
	all, allPlaceholders := one.typ.Spec(v, secret, Arguments{Computed: true})
	spec, placeholders := all, allPlaceholders
	choose := func(which Arguments, more []string) {
		spec, placeholders = one.typ.Spec(v, secret, which)
		spec, placeholders = addArguments(spec, placeholders, all, allPlaceholders, append(sensitiveArguments(i.Sensitive), more...))
	}
	written := Arguments{Computed: true, Written: true}
	if !one.typ.data {
		choose(written, nil)
	}
	set := func() {
		out.Object.Spec = spec
		out.Secret = &Secret{Name: secret, Data: map[string][]byte{}, texts: map[string]string{}}
		out.Secret.fill(placeholders, v)
	}
	set()
	if a.options.Checker == nil || one.typ.data || i.Tainted {
		return
	}
	changes, rejected := a.options.Checker.Changes(out, v)
	out.Changes, out.Rejected = changes, rejected
	switch {
	case rejected != nil:
		omit := named(&one.typ.Schema.Block, rejected.Error())
		choose(Arguments{Computed: len(omit) > 0, Written: true, Omit: omit}, nil)
	case len(changes) > 0:
		// Arguments that would change mostly have a default, and had another value.
		choose(written, changes)
	default:
		return
	}
	set()
	if out.Changes, out.Rejected = a.options.Checker.Changes(out, v); out.Rejected != nil || rejected == nil && len(out.Changes) >= len(changes) {
		out.Changes, out.Rejected = changes, rejected
		choose(Arguments{Computed: rejected == nil, Written: true}, nil)
		set()
	}
}

// named returns the optional computed arguments whose names are in a text, at any depth.
func named(b *providerapi.Block, text string) map[string]bool {
	words := map[string]bool{}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		words[word] = true
	}
	out := map[string]bool{}
	var attributes func([]providerapi.Attribute)
	attributes = func(all []providerapi.Attribute) {
		for i := range all {
			a := &all[i]
			if a.Optional && a.Computed && words[a.Name] {
				out[a.Name] = true
			}
			if a.Nested != nil {
				attributes(a.Nested.Attributes)
			}
		}
	}
	var block func(*providerapi.Block)
	block = func(b *providerapi.Block) {
		attributes(b.Attributes)
		for i := range b.Blocks {
			block(&b.Blocks[i].Block)
		}
	}
	block(b)
	return out
}

// addArguments returns a spec with some arguments of all added.
func addArguments(spec map[string]any, placeholders []Placeholder, all map[string]any, allPlaceholders []Placeholder, names []string) (map[string]any, []Placeholder) {
	out := map[string]any{}
	maps.Copy(out, spec)
	added := map[string]bool{}
	for _, name := range names {
		if value, ok := all[name]; ok {
			out[name] = value
			added[name] = true
		}
	}
	var kept []Placeholder
	in := func(p Placeholder) bool {
		name, ok := p.Path[0].(cty.GetAttrStep)
		return ok && added[name.Name]
	}
	for _, p := range placeholders {
		if !in(p) {
			kept = append(kept, p)
		}
	}
	for _, p := range allPlaceholders {
		if in(p) {
			kept = append(kept, p)
		}
	}
	return out, kept
}

// setMetaArguments sets the arguments that are Atoll's own.
func (a *adopter) setMetaArguments(out *Adopted, one *resourceInstance, i *Instance, deps dependencySet) {
	spec := out.Object.Spec
	if one.target.configName() != one.target.Provider {
		spec["provider"] = one.target.Config
	}
	if i.CreateBeforeDestroy && !one.typ.data {
		spec["lifecycle"] = map[string]any{"create_before_destroy": true}
	}
	var on []any
	for _, other := range deps.dependsOn {
		if isIdentifier(other.typ.typeName) {
			on = append(on, reference(other))
		}
	}
	if len(on) > 0 {
		spec["depends_on"] = on
	}
	out.Object.Annotations = maps.Clone(out.Annotations)
	if i.SkipDestroy {
		out.Object.Annotations[DeletionAnnotation] = deletionForget
	}
	out.OmittedDependencies = deps.omitted
}

func reference(one *resourceInstance) string {
	if one.typ.data {
		return `data.` + one.typ.typeName + `["` + one.name + `"]`
	}
	return one.typ.typeName + `["` + one.name + `"]`
}

func group(one *resourceInstance) string { return one.target.Provider + "." + v1alpha1.ProvidersDomain }

func stateName(one *resourceInstance) string {
	return v1alpha1.StateName(one.typ.Plural, one.target.Provider, one.name)
}

// resourceValue converts an entry to the form of a ResourceState.
func resourceValue(typ *typeInfo, i *Instance, deps dependencySet) (*v1alpha1.ResourceValue, error) {
	value := &v1alpha1.ResourceValue{
		SchemaVersion: i.SchemaVersion, Value: i.Attributes, Private: i.Private, Identity: typedIdentity(typ.Schema.Identity, i.Identity),
		Sensitive: pathTexts(i.Sensitive), CreateBeforeDestroy: i.CreateBeforeDestroy, Tainted: i.Tainted,
	}
	if i.Flat != nil {
		// ResourceStates do not support the oldest format: typ.value has converted it.
		v, err := typ.value(i)
		if err != nil {
			return nil, err
		}
		if value.Value, err = ctyjson.Marshal(v, typ.implied); err != nil {
			return nil, fmt.Errorf("encoding its state: %w", err)
		}
		value.SchemaVersion = typ.Schema.Version
	}
	for _, other := range deps.states {
		value.Dependencies = append(value.Dependencies, stateName(other))
	}
	slices.Sort(value.Dependencies)
	value.Dependencies = slices.Compact(value.Dependencies)
	return value, nil
}

func (a *adopter) count(one *resourceInstance, out *Adopted) {
	r := a.report
	if out.Object == nil {
		return
	}
	if one.typ.data {
		r.DataSources++
	} else {
		r.Resources++
	}
	r.References += out.References
	r.OmittedDependencies += out.OmittedDependencies
	if on, ok := out.Object.Spec["depends_on"].([]any); ok {
		r.DependsOn += len(on)
	}
	if out.Secret != nil {
		r.Secrets++
		if len(out.Secret.Missing) > 0 {
			r.MissingSecrets = append(r.MissingSecrets, out.Address)
		}
	}
	if len(out.Changes) > 0 || out.Rejected != nil {
		r.Changing = append(r.Changing, out.Address)
	}
	r.Names = append(r.Names, Name{
		Address: out.Address, APIVersion: out.Object.APIVersion, Kind: out.Object.Kind, Namespace: out.Object.Namespace, Name: out.Object.Name,
	})
}
