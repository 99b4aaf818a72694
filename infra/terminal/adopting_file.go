package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/adopt"
	"github.com/atoll-dev/atoll/infra/install"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// surveyed is a file, and all of Atoll that matters to it.
type surveyed struct {
	what    *Adoption
	options adopt.Options
	kinds   *servedTypes
	// there are the objects of its kinds that there are already.
	there map[kindName]map[string]*present
}

// kindName is how the API finds objects of a kind.
type kindName struct{ apiVersion, plural string }

func (k kindName) resource() schema.GroupVersionResource {
	group, version, _ := strings.Cut(k.apiVersion, "/")
	return schema.GroupVersionResource{Group: group, Version: version, Resource: k.plural}
}

// present is an object that is there.
type present struct {
	address    string // that it was taken over from, if it was
	generation int64
}

// survey finds out which Providers and kinds the file needs, and what was taken over of it before.
func (s *Session) survey(ctx context.Context, what *Adoption) (*surveyed, error) {
	type used struct {
		provider, name string
		data           bool
	}
	var order []used
	seen := map[used]bool{}
	configurations := map[string]bool{}
	_, err := adopt.Read(what.Source, what.Size, func(i *adopt.Instance) error {
		if i.Address.Data && !what.Data {
			return nil
		}
		configurations[i.Provider] = true
		one := used{i.Provider, i.Address.Type, i.Address.Data}
		if !seen[one] {
			seen[one] = true
			order = append(order, one)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	providers, err := s.targets(ctx, what.Providers, configurations)
	if err != nil {
		return nil, err
	}
	f := &surveyed{
		what: what, kinds: &servedTypes{ctx: ctx, session: s, known: map[served]*adopt.ResourceType{}}, there: map[kindName]map[string]*present{},
		options: adopt.Options{
			Namespace: s.Namespace, Prefix: what.Prefix, Providers: providers, Names: map[string]string{}, Data: what.Data, Literals: what.Literals,
		},
	}
	for _, one := range order {
		target, said := providers[one.provider]
		if !said {
			continue // Adopt names all of them at once
		}
		kind, err := f.kinds.ResourceType(target.Provider, one.name, one.data)
		if err != nil {
			if errors.Is(err, errNoType) {
				continue // so it does of these
			}
			return nil, err
		}
		name := kindName{infraschema.Group(target.Provider) + "/" + v1alpha1.ProvidersVersion, kind.Plural}
		if f.there[name] == nil {
			if f.there[name], err = s.present(ctx, name, f.options.Names); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// present lists the objects of a kind, and notes which names were given to addresses before.
func (s *Session) present(ctx context.Context, kind kindName, names map[string]string) (map[string]*present, error) {
	out := map[string]*present{}
	err := s.eachObject(ctx, kind.resource(), func(u *unstructured.Unstructured) error {
		address := u.GetAnnotations()[adopt.AddressAnnotation]
		out[u.GetName()] = &present{address: address, generation: u.GetGeneration()}
		if address != "" {
			names[address] = u.GetName()
		}
		return nil
	})
	return out, err
}

// eachObject reads all objects of a resource in the namespace, page by page.
func (s *Session) eachObject(ctx context.Context, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := s.Dynamic.Resource(gvr).Namespace(s.Namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list the %s of namespace %s: %w", gvr.GroupResource(), s.Namespace, err)
		}
		for i := range page.Items {
			if err := visit(&page.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// targets says what stands for each configuration of a provider: what was said, and else the Provider of the same source, and
// of its configurations the ProviderConfig that is called like the alias.
func (s *Session) targets(ctx context.Context, given []string, addresses map[string]bool) (adopt.Providers, error) {
	said, err := saidProviders(given)
	if err != nil {
		return nil, err
	}
	installed, err := s.installed(ctx)
	if err != nil {
		return nil, err
	}
	for address := range addresses {
		if target, is := said.Find(address); is {
			said[address] = target
			continue
		}
		c, readable := adopt.ParseConfiguration(address)
		if !readable {
			continue
		}
		found := installed.of(c.Source)
		if len(found) != 1 {
			continue
		}
		switch provider := found[0]; {
		case c.Alias == "":
			said[address] = adopt.Target{Provider: provider.name}
		case slices.Contains(provider.configs, c.Alias):
			said[address] = adopt.Target{Provider: provider.name, Config: c.Alias}
		}
	}
	return said, nil
}

// saidProviders reads what was said of providers' configurations.
func saidProviders(given []string) (adopt.Providers, error) {
	said := adopt.Providers{}
	for _, text := range given {
		// An address may have an = in it, a name may not.
		at := strings.LastIndexByte(text, '=')
		if at <= 0 || at == len(text)-1 {
			return nil, fmt.Errorf("--provider %s: write ADDRESS=PROVIDER or ADDRESS=PROVIDER/CONFIG, as in hashicorp/aws.west=aws/west", text)
		}
		provider, config, _ := strings.Cut(text[at+1:], "/")
		said[text[:at]] = adopt.Target{Provider: provider, Config: config}
	}
	return said, nil
}

// installedProvider is a Provider, and its ProviderConfigs in the namespace.
type installedProvider struct {
	name    string
	source  install.Address
	configs []string
}

type installedProviders []*installedProvider

const defaultRegistry = "registry.opentofu.org"

// of finds those of a source. Both registries have the same providers; in the oldest files only the type is known.
func (all installedProviders) of(source string) (found installedProviders) {
	s, err := install.ParseAddress(source, "")
	if err != nil {
		return nil
	}
	if s.Host == "registry.terraform.io" {
		s.Host = defaultRegistry
	}
	for _, p := range all {
		if p.source == s || !strings.Contains(source, "/") && p.source.Type == s.Type {
			found = append(found, p)
		}
	}
	return found
}

func (s *Session) installed(ctx context.Context) (installedProviders, error) {
	list, err := s.Dynamic.Resource(v1alpha1.ProviderResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the Providers: %w", err)
	}
	var all installedProviders
	for i := range list.Items {
		p, err := typed[v1alpha1.Provider](&list.Items[i])
		if err != nil {
			return nil, err
		}
		source, err := install.ParseAddress(p.Spec.Source, defaultRegistry)
		if err != nil {
			continue // it is not served either, and says why
		}
		if source.Host == "registry.terraform.io" {
			source.Host = defaultRegistry
		}
		all = append(all, &installedProvider{name: p.Name, source: source})
	}
	err = s.eachObject(ctx, v1alpha1.ProviderConfigResource, func(u *unstructured.Unstructured) error {
		c, err := typed[v1alpha1.ProviderConfig](u)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.name == c.Spec.Provider {
				p.configs = append(p.configs, c.Name)
			}
		}
		return nil
	})
	return all, err
}

// errNoType is of what a Provider does not serve.
var errNoType = errors.New("it is not served: look at kubectl get providers, and at the Provider's spec.types")

// served names a type of a Provider.
type served struct {
	provider, name string
	data           bool
}

// servedTypes are the kinds of the API, asked for when they are needed. It is for one goroutine.
type servedTypes struct {
	ctx     context.Context
	session *Session
	known   map[served]*adopt.ResourceType
	whole   map[string]infraschema.Kind // by type, of resources alone
}

// ResourceType implements adopt.ResourceTypes.
func (t *servedTypes) ResourceType(provider, typeName string, data bool) (*adopt.ResourceType, error) {
	key := served{provider, typeName, data}
	if kind, asked := t.known[key]; asked {
		if kind == nil {
			return nil, fmt.Errorf("Provider %s: %w", provider, errNoType)
		}
		return kind, nil
	}
	described, err := t.session.describe(t.ctx, provider, typeName, data)
	if err != nil {
		return nil, err
	}
	if described == nil {
		t.known[key] = nil
		return nil, fmt.Errorf("Provider %s: %w", provider, errNoType)
	}
	of := described.KindIn(infraschema.Group(provider))
	kind := &adopt.ResourceType{Kind: of.Kind, Plural: of.Plural, Schema: of.Schema}
	kind.Spec = func(v cty.Value, secret string, computed bool) (map[string]any, []adopt.Placeholder) {
		spec, found := of.Spec(v, infraschema.SpecOptions{Secret: secret, Computed: computed})
		placeholders := make([]adopt.Placeholder, len(found))
		for i, p := range found {
			placeholders[i] = adopt.Placeholder(p)
		}
		return spec, placeholders
	}
	t.known[key] = kind
	if !data {
		if t.whole == nil {
			t.whole = map[string]infraschema.Kind{}
		}
		t.whole[typeName] = of
	}
	return kind, nil
}

// describe asks for the schema of a type. It is nil if the Provider serves no such type.
func (s *Session) describe(ctx context.Context, provider, typeName string, data bool) (*infraschema.TypeDescription, error) {
	parameter := "resource"
	if data {
		parameter = "data"
	}
	text, err := s.Discovery.RESTClient().Get().
		AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, v1alpha1.ProviderResource.Resource, provider, "types").
		Param(parameter, typeName).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("ask for the schema of %s: %w", typeName, err)
	}
	var list infraschema.TypeDescriptionList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w: the server may be of another version than this command", typeName, err)
	}
	for i := range list.Items {
		if one := &list.Items[i]; one.Type == typeName && one.Data == data && one.Schema != nil {
			return one, nil
		}
	}
	return nil, nil
}

// nobodyApplies makes sure that no policy applies by itself what is written, while there is an object and not yet its state: it
// would be made a second time.
func (s *Session) nobodyApplies(ctx context.Context) error {
	auto := func(spec *v1alpha1.SyncPolicySpec) bool {
		return spec.Mode == v1alpha1.SyncAuto && (len(spec.AppliesTo) == 0 || slices.Contains(spec.AppliesTo, v1alpha1.SyncInfrastructure))
	}
	refuse := func(kind, name string) error {
		return fmt.Errorf("%s %s applies by itself what is written, and could make resources anew before all is known of them: set its spec.mode to Manual until they are taken over", kind, name)
	}
	err := s.eachObject(ctx, v1alpha1.SyncPolicyResource, func(u *unstructured.Unstructured) error {
		p, err := typed[v1alpha1.SyncPolicy](u)
		if err == nil && auto(&p.Spec) {
			err = refuse("SyncPolicy", p.Name)
		}
		return err
	})
	if err != nil {
		return err
	}
	all, err := s.Dynamic.Resource(v1alpha1.ClusterSyncPolicyResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the ClusterSyncPolicies: %w", err)
	}
	namespace, err := s.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(ctx, s.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no namespace %s: make it with `kubectl create namespace %s`, or name another with -n", s.Namespace, s.Namespace)
	}
	if err != nil {
		return fmt.Errorf("read the namespace %s: %w", s.Namespace, err)
	}
	for i := range all.Items {
		p, err := typed[v1alpha1.ClusterSyncPolicy](&all.Items[i])
		if err != nil {
			return err
		}
		if !auto(&p.Spec.SyncPolicySpec) {
			continue
		}
		if p.Spec.Namespaces != nil {
			selector, err := metav1.LabelSelectorAsSelector(p.Spec.Namespaces)
			if err == nil && !selector.Matches(labels.Set(namespace.GetLabels())) {
				continue
			}
		}
		return refuse("ClusterSyncPolicy", p.Name)
	}
	return nil
}
