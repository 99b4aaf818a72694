package adopt

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
)

// Annotations of what was adopted. Export reads them.
const (
	// FromAnnotation is the address that the resource had.
	FromAnnotation = v1alpha1.Group + "/adopted-from"
	// ProviderAnnotation is the address of its provider's configuration.
	ProviderAnnotation = v1alpha1.Group + "/adopted-provider"
	// DependenciesAnnotation are the addresses that it depended on and of which nothing was adopted, one a line.
	DependenciesAnnotation = v1alpha1.Group + "/adopted-dependencies"
	// DeletionAnnotation with the value Forget leaves the resource alone when the object is deleted, as infra has it.
	DeletionAnnotation = v1alpha1.Group + "/deletion-policy"
	deletionForget     = "Forget"
)

// Options say how to adopt.
type Options struct {
	// Namespace of the objects.
	Namespace string
	// Prefix that all names begin with. Several files in one namespace are kept apart by it.
	Prefix string
	// Providers say what stands for each provider's configuration.
	Providers Providers
	// Names are names for addresses, such as an earlier adoption or Export gave: these are not chosen anew.
	Names map[string]string
	// Data adopts data sources, too. They are read by what they were found with and all they said, because a state file does not tell one from the
	// other. Without it, what was taken from them stays as it is.
	Data bool
	// Literals leaves all values as they are, and recovers no references.
	Literals bool
	// Checker, if there is one, makes sure that the first plan has nothing to do.
	Checker Checker
	// Progress, if not nil, is told how many instances are done, of all.
	Progress func(done, total int)
}

// Checker asks the provider what its plan for an adopted resource is.
type Checker interface {
	// Changes gives the names of the attributes that the plan would change. The object has no references yet, and its Secret all
	// values that it needs. An error is something that the provider refuses.
	Changes(one *Adopted, value cty.Value) ([]string, error)
}

// Object is what is to be written.
type Object struct {
	APIVersion, Kind, Plural string
	Namespace, Name          string
	Annotations              map[string]string
	Spec                     map[string]any
}

// Adopted is one resource of the file.
type Adopted struct {
	Address string
	// Object is nil if there is none: of a resource that was replaced, and of which only what is to be deleted is left.
	Object *Object
	// Annotations belong on the ResourceState, so that Export finds them where there is no object. An object has them, too.
	Annotations map[string]string
	// State is nil for data sources. The UID of its owner is for the caller to fill in, once the object is stored.
	State     *v1alpha1.ResourceStateSpec
	StateName string
	// Secret is what the object needs; nil if it needs none. It is as secret as the state file.
	Secret *Secret
	// References is how many values were replaced by references.
	References int
	// Loose is how many dependencies could not be written down: there are too many instances to say on which it depends.
	Loose int
	// Changes are the attributes that the first plan would change, as far as a Checker knows, and Refused what the provider has
	// against the arguments.
	Changes []string
	Refused error
}

// Report says what became of a file.
type Report struct {
	File *File
	// Resources and DataSources are how many objects there are, SkippedData how many data sources were left out.
	Resources, DataSources, SkippedData int
	// References were recovered; Unrecovered dependencies have none, and are in depends_on; Loose ones are in neither.
	References, Unrecovered, Loose int
	// Secrets is how many objects need one, and MissingSecrets the addresses of those with a key that nobody has kept.
	Secrets        int
	MissingSecrets []string
	// Changing are the addresses of those that the first plan would change.
	Changing []string
	// Names are the objects' names, by address: the mapping to keep.
	Names []Name
}

// Name is what became of an address.
type Name struct {
	Address    string `json:"address"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// Adopt goes through a state file twice, and gives what is to be written of each resource to emit, in the order of the file. Nothing is
// emitted if anything is wrong that concerns all of it: the file, a provider that nothing is said of, a type that is not served.
func Adopt(src io.ReaderAt, size int64, kinds Kinds, options Options, emit func(*Adopted) error) (*Report, error) {
	if options.Namespace == "" {
		return nil, fmt.Errorf("no namespace is named: say into which the objects are to be written")
	}
	s, err := look(src, size, options, kinds)
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
	// waiting are entries of an instance of which not all were seen.
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
		return fmt.Errorf("%s was not there a moment ago: the file is being written; try again with a copy", i.Address)
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

// adopt makes one object and its state of all entries of an instance.
func (a *adopter) adopt(one *known, entries []*Instance) (*Adopted, error) {
	out := &Adopted{
		Address: one.address, StateName: stateName(one),
		Annotations: map[string]string{FromAnnotation: one.address, ProviderAnnotation: entries[0].Provider},
	}
	var made order
	for _, i := range entries {
		if i.Deposed == "" {
			var err error
			if made, err = a.object(out, one, i); err != nil {
				return nil, err
			}
		}
	}
	if one.kind.data {
		annotate(out, made.left)
		return out, nil
	}
	state := &v1alpha1.ResourceStateSpec{
		Object: v1alpha1.StateOwner{Group: group(one), Kind: one.kind.Kind.Kind, Name: one.name},
		Type:   one.kind.typeName, Provider: one.target.Provider, ProviderConfig: one.target.config(),
	}
	for _, i := range entries {
		if i.Deposed == "" {
			value, err := stored(one.kind, i, made)
			if err != nil {
				return nil, err
			}
			state.Current = value
			continue
		}
		before := a.order(one, i.Dependencies, nil)
		value, err := stored(one.kind, i, before)
		if err != nil {
			return nil, err
		}
		made.left = append(made.left, before.left...)
		state.Deposed = append(state.Deposed, v1alpha1.DeposedResource{Key: i.Deposed, ResourceValue: *value})
	}
	out.State = state
	annotate(out, made.left)
	return out, nil
}

// annotate notes what nothing was adopted of, for Export.
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

// object writes what would bring the resource about.
func (a *adopter) object(out *Adopted, one *known, i *Instance) (order, error) {
	v, err := one.kind.value(i)
	if err != nil {
		return order{}, err
	}
	out.Object = &Object{
		APIVersion: group(one) + "/" + v1alpha1.ProvidersVersion, Kind: one.kind.Kind.Kind, Plural: one.kind.Plural,
		Namespace: a.options.Namespace, Name: one.name,
	}
	a.arguments(out, one, i, v)
	r := &rewriter{
		survey: a.survey, on: map[int32]bool{}, secret: out.Secret, marked: map[string]bool{}, literals: a.options.Literals, found: map[int32]bool{},
	}
	for _, dependency := range i.Dependencies {
		if id, ok := a.configured[dependency]; ok && id != one.config {
			r.on[id] = true
		}
	}
	for _, path := range i.Sensitive {
		r.marked[contract.PathText(path)] = true
	}
	r.block(&one.kind.Schema.Block, out.Object.Spec, v, nil, false)
	out.References = r.count
	if len(out.Secret.Data) == 0 && len(out.Secret.Missing) == 0 {
		out.Secret = nil
	}
	made := a.order(one, i.Dependencies, r.found)
	a.own(out, one, i, made)
	return made, nil
}

// arguments chooses the arguments. Which of those that the provider fills in, too, somebody had set, the value does not say. Those with
// something secret were set: providers mark nothing. Of the others a Checker knows what is missing.
func (a *adopter) arguments(out *Adopted, one *known, i *Instance, v cty.Value) {
	secret := stateName(one)
	all, allPlaceholders := one.kind.Spec(v, secret, true)
	spec, placeholders := all, allPlaceholders
	if !one.kind.data {
		spec, placeholders = one.kind.Spec(v, secret, false)
		spec, placeholders = with(spec, placeholders, all, allPlaceholders, sensitiveArguments(i.Sensitive))
	}
	set := func() {
		out.Object.Spec = spec
		out.Secret = &Secret{Name: secret, Data: map[string][]byte{}, texts: map[string]string{}}
		out.Secret.fill(placeholders, v)
	}
	set()
	if a.options.Checker == nil || one.kind.data || i.Tainted {
		return
	}
	out.Changes, out.Refused = a.options.Checker.Changes(out, v)
	if out.Refused == nil && len(out.Changes) == 0 {
		return
	}
	// What would change are mostly arguments that have a default, and had another value.
	names := out.Changes
	if out.Refused != nil {
		names = slices.Collect(maps.Keys(all))
	}
	first, firstPlaceholders := spec, placeholders
	spec, placeholders = with(spec, placeholders, all, allPlaceholders, names)
	changes, refused := out.Changes, out.Refused
	set()
	if out.Changes, out.Refused = a.options.Checker.Changes(out, v); out.Refused != nil || len(out.Changes) >= len(changes) && refused == nil {
		out.Changes, out.Refused = changes, refused
		spec, placeholders = first, firstPlaceholders
		set()
	}
}

// with adds arguments of all to a spec.
func with(spec map[string]any, placeholders []Placeholder, all map[string]any, allPlaceholders []Placeholder, names []string) (map[string]any, []Placeholder) {
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

// own writes what is Atoll's own in a spec.
func (a *adopter) own(out *Adopted, one *known, i *Instance, made order) {
	spec := out.Object.Spec
	if one.target.config() != one.target.Provider {
		spec["provider"] = one.target.Config
	}
	if i.CreateBeforeDestroy && !one.kind.data {
		spec["lifecycle"] = map[string]any{"create_before_destroy": true}
	}
	var on []any
	for _, other := range made.written {
		if isWord(other.kind.typeName) {
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
	out.Loose = made.loose
}

func reference(one *known) string {
	if one.kind.data {
		return `data.` + one.kind.typeName + `["` + one.name + `"]`
	}
	return one.kind.typeName + `["` + one.name + `"]`
}

func group(one *known) string { return one.target.Provider + "." + v1alpha1.ProvidersDomain }

func stateName(one *known) string {
	return v1alpha1.StateName(one.kind.Plural, one.target.Provider, one.name)
}

// stored is what is kept of an entry.
func stored(kind *served, i *Instance, made order) (*v1alpha1.ResourceValue, error) {
	value := &v1alpha1.ResourceValue{
		SchemaVersion: i.SchemaVersion, Value: i.Attributes, Private: i.Private, Identity: typedIdentity(kind.Schema.Identity, i.Identity),
		Sensitive: pathTexts(i.Sensitive), CreateBeforeDestroy: i.CreateBeforeDestroy, Tainted: i.Tainted,
	}
	if i.Flat != nil {
		// There is no place for the oldest form: the provider has brought it into its own.
		v, err := kind.value(i)
		if err != nil {
			return nil, err
		}
		if value.Value, err = ctyjson.Marshal(v, kind.implied); err != nil {
			return nil, fmt.Errorf("its state cannot be written: %w", err)
		}
		value.SchemaVersion = kind.Schema.Version
	}
	for _, other := range made.states {
		value.Dependencies = append(value.Dependencies, stateName(other))
	}
	slices.Sort(value.Dependencies)
	value.Dependencies = slices.Compact(value.Dependencies)
	return value, nil
}

func (a *adopter) count(one *known, out *Adopted) {
	r := a.report
	if out.Object == nil {
		return
	}
	if one.kind.data {
		r.DataSources++
	} else {
		r.Resources++
	}
	r.References += out.References
	r.Loose += out.Loose
	if on, ok := out.Object.Spec["depends_on"].([]any); ok {
		r.Unrecovered += len(on)
	}
	if out.Secret != nil {
		r.Secrets++
		if len(out.Secret.Missing) > 0 {
			r.MissingSecrets = append(r.MissingSecrets, out.Address)
		}
	}
	if len(out.Changes) > 0 || out.Refused != nil {
		r.Changing = append(r.Changing, out.Address)
	}
	r.Names = append(r.Names, Name{
		Address: out.Address, APIVersion: out.Object.APIVersion, Kind: out.Object.Kind, Namespace: out.Object.Namespace, Name: out.Object.Name,
	})
}
