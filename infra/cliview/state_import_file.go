package cliview

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
	"github.com/atoll-dev/atoll/infra/packages"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
	"github.com/atoll-dev/atoll/infra/statefile"
)

// stateFile is a state file with the Providers, kinds and objects that it concerns.
type stateFile struct {
	what    *StateImport
	options statefile.Options
	kinds   *servedTypes
	// existing are the objects of its kinds that already exist.
	existing map[kindName]map[string]*existingObject
}

// kindName identifies the resource of a kind in the API.
type kindName struct{ apiVersion, plural string }

func (k kindName) resource() schema.GroupVersionResource {
	group, version, _ := strings.Cut(k.apiVersion, "/")
	return schema.GroupVersionResource{Group: group, Version: version, Resource: k.plural}
}

// existingObject is an object that already exists.
type existingObject struct {
	address    string // the address that it was imported from, if any
	generation int64
}

// readFile determines which Providers and kinds the file needs, and which objects were already imported from it.
func (s *Session) readFile(ctx context.Context, what *StateImport) (*stateFile, error) {
	type used struct {
		provider, name string
		data           bool
	}
	var order []used
	seen := map[used]bool{}
	configurations := map[string]bool{}
	_, err := statefile.Read(what.Source, what.Size, func(i *statefile.Instance) error {
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
	f := &stateFile{
		what: what, kinds: &servedTypes{ctx: ctx, session: s, known: map[typeKey]*statefile.ResourceType{}}, existing: map[kindName]map[string]*existingObject{},
		options: statefile.Options{
			Namespace: s.Namespace, Prefix: what.Prefix, Providers: providers, Names: map[string]string{}, Data: what.Data, Literals: what.Literals,
		},
	}
	for _, one := range order {
		target, mapped := providers[one.provider]
		if !mapped {
			continue // Adopt reports all of them together
		}
		kind, err := f.kinds.ResourceType(target.Provider, one.name, one.data)
		if err != nil {
			if errors.Is(err, errNoType) {
				continue // Adopt reports these too
			}
			return nil, err
		}
		name := kindName{infraschema.Group(target.Provider) + "/" + v1alpha1.ProvidersVersion, kind.Plural}
		if f.existing[name] == nil {
			if f.existing[name], err = s.existingObjects(ctx, name, f.options.Names); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// existingObjects lists the objects of a kind, and records the names of addresses that were already imported.
func (s *Session) existingObjects(ctx context.Context, kind kindName, names map[string]string) (map[string]*existingObject, error) {
	out := map[string]*existingObject{}
	err := s.eachObject(ctx, kind.resource(), func(u *unstructured.Unstructured) error {
		address := u.GetAnnotations()[statefile.AddressAnnotation]
		out[u.GetName()] = &existingObject{address: address, generation: u.GetGeneration()}
		if address != "" {
			names[address] = u.GetName()
		}
		return nil
	})
	return out, err
}

// eachObject visits all objects of a resource in the namespace, page by page.
func (s *Session) eachObject(ctx context.Context, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := s.Dynamic.Resource(gvr).Namespace(s.Namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list %s in namespace %s: %w", gvr.GroupResource(), s.Namespace, err)
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

// targets maps each provider configuration of the file: to the given target, or to the Provider with the same
// source and the ProviderConfig with the name of the alias.
func (s *Session) targets(ctx context.Context, given []string, addresses map[string]bool) (statefile.Providers, error) {
	targets, err := parseTargets(given)
	if err != nil {
		return nil, err
	}
	installed, err := s.installed(ctx)
	if err != nil {
		return nil, err
	}
	for address := range addresses {
		if target, is := targets.Find(address); is {
			targets[address] = target
			continue
		}
		c, readable := statefile.ParseConfiguration(address)
		if !readable {
			continue
		}
		found := installed.of(c.Source)
		if len(found) != 1 {
			continue
		}
		switch provider := found[0]; {
		case c.Alias == "":
			targets[address] = statefile.Target{Provider: provider.name}
		case slices.Contains(provider.configs, c.Alias):
			targets[address] = statefile.Target{Provider: provider.name, Config: c.Alias}
		}
	}
	return targets, nil
}

// parseTargets parses --provider flags.
func parseTargets(given []string) (statefile.Providers, error) {
	targets := statefile.Providers{}
	for _, text := range given {
		// The address may contain =, the name may not.
		at := strings.LastIndexByte(text, '=')
		if at <= 0 || at == len(text)-1 {
			return nil, fmt.Errorf("--provider %s: use ADDRESS=PROVIDER or ADDRESS=PROVIDER/CONFIG, such as hashicorp/aws.west=aws/west", text)
		}
		provider, config, _ := strings.Cut(text[at+1:], "/")
		targets[text[:at]] = statefile.Target{Provider: provider, Config: config}
	}
	return targets, nil
}

// installedProvider is a Provider with its ProviderConfigs in the namespace.
type installedProvider struct {
	name    string
	source  packages.Address
	configs []string
}

type installedProviders []*installedProvider

const defaultRegistry = "registry.opentofu.org"

// of returns the Providers with a source. Both registries have the same providers; the oldest files name only
// the type.
func (all installedProviders) of(source string) (found installedProviders) {
	s, err := packages.ParseAddress(source, "")
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
		return nil, fmt.Errorf("list Providers: %w", err)
	}
	var all installedProviders
	for i := range list.Items {
		p, err := typed[v1alpha1.Provider](&list.Items[i])
		if err != nil {
			return nil, err
		}
		source, err := packages.ParseAddress(p.Spec.Source, defaultRegistry)
		if err != nil {
			continue // not served either; its status has the reason
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

// errNoType is returned for a type that a Provider does not serve.
var errNoType = errors.New("the type is not served: check kubectl get providers and the Provider's spec.types")

// typeKey identifies a type of a Provider.
type typeKey struct {
	provider, name string
	data           bool
}

// servedTypes caches the kinds of the API. It is not safe for concurrent use.
type servedTypes struct {
	ctx     context.Context
	session *Session
	known   map[typeKey]*statefile.ResourceType
	whole   map[string]infraschema.Kind // by type, of resources alone
}

// ResourceType implements statefile.ResourceTypes.
func (t *servedTypes) ResourceType(provider, typeName string, data bool) (*statefile.ResourceType, error) {
	key := typeKey{provider, typeName, data}
	if kind, cached := t.known[key]; cached {
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
	served := described.KindIn(infraschema.Group(provider))
	kind := &statefile.ResourceType{Kind: served.Kind, Plural: served.Plural, Schema: served.Schema}
	kind.Spec = func(v cty.Value, secret string, which statefile.Arguments) (map[string]any, []statefile.Placeholder) {
		spec, found := served.Spec(v, infraschema.SpecOptions{Secret: secret, Computed: which.Computed, Written: which.Written, Omit: which.Omit})
		placeholders := make([]statefile.Placeholder, len(found))
		for i, p := range found {
			placeholders[i] = statefile.Placeholder(p)
		}
		return spec, placeholders
	}
	t.known[key] = kind
	if !data {
		if t.whole == nil {
			t.whole = map[string]infraschema.Kind{}
		}
		t.whole[typeName] = served
	}
	return kind, nil
}

// describe returns the schema of a type, or nil if the Provider does not serve it.
func (s *Session) describe(ctx context.Context, provider, typeName string, data bool) (*infraschema.TypeDescription, error) {
	parameter := "resource"
	if data {
		parameter = "data"
	}
	text, err := s.Discovery.RESTClient().Get().
		AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, v1alpha1.ProviderResource.Resource, provider, "types").
		Param(parameter, typeName).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", typeName, err)
	}
	var list infraschema.TypeDescriptionList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("decode the schema of %s: %w: the server may have another version than this command", typeName, err)
	}
	for i := range list.Items {
		if one := &list.Items[i]; one.Type == typeName && one.Data == data && one.Schema != nil {
			return one, nil
		}
	}
	return nil, nil
}

// checkNoAutoPolicy rejects the import if a policy of mode Auto covers the namespace. While an object exists
// without its state, the policy would create its resource a second time.
func (s *Session) checkNoAutoPolicy(ctx context.Context) error {
	auto := func(spec *v1alpha1.SyncPolicySpec) bool {
		return spec.Mode == v1alpha1.SyncAuto && (len(spec.AppliesTo) == 0 || slices.Contains(spec.AppliesTo, v1alpha1.SyncInfrastructure))
	}
	refuse := func(kind, name string) error {
		return fmt.Errorf("%s %s has mode Auto and could create resources a second time before their states are imported: set its spec.mode to Manual until the import is complete", kind, name)
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
		return fmt.Errorf("list ClusterSyncPolicies: %w", err)
	}
	namespace, err := s.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(ctx, s.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("namespace %s not found: create it with `kubectl create namespace %s`, or choose another with -n", s.Namespace, s.Namespace)
	}
	if err != nil {
		return fmt.Errorf("read namespace %s: %w", s.Namespace, err)
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
