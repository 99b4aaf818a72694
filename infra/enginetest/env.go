package enginetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/grants"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Env is a Provider as Providers, with everything else that a plan needs.
type Env struct {
	*Provider
	mu             sync.Mutex
	Revision       string
	ConfigRevision string
	Unserved       map[string]bool // types without a provider
	Secrets        map[string]string
	Grants         map[string][]grants.Spec // by namespace
	Objects        map[string]cty.Value
}

// NewEnv returns an environment without Secrets and Kubernetes objects.
func NewEnv() *Env {
	return &Env{
		Provider: &Provider{Schema: ThingSchema(), data: ImageSchema(), images: map[string]string{}, Gone: map[string]bool{}, Drifted: map[string]string{}},
		Revision: "r1", ConfigRevision: "c1", Unserved: map[string]bool{}, Secrets: map[string]string{}, Objects: map[string]cty.Value{}, Grants: map[string][]grants.Spec{},
	}
}

func (s *Env) Kind(ref expr.Ref) (*infra.ServedKind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Unserved[ref.Type] {
		return nil, infra.ErrNotServed
	}
	out := &infra.ServedKind{Provider: "demo", Revision: s.Revision, Kind: schema.Kind{Group: "demo.providers.atoll.dev"}}
	switch {
	case ref.Kind == expr.Resource && ref.Type == "demo_thing":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Kind: "Thing", Plural: "things"}, s.Schema
	case ref.Kind == expr.Data && ref.Type == "demo_image":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Data: true, Kind: "DataImage", Plural: "dataimages"}, s.data
	default:
		return nil, infra.ErrNotServed
	}
	return out, nil
}

func (s *Env) Open(_ context.Context, _, _, config string) (providerapi.Provider, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if config == "missing" {
		return nil, "", errors.New(`there is no ProviderConfig "missing": make it, or name another`)
	}
	return s.Provider, s.ConfigRevision, nil
}

func (s *Env) OpenLatest(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error) {
	return s.Open(ctx, provider, namespace, config)
}

// CallFunction implements infra.Functions: demo has a function upper.
func (s *Env) CallFunction(_ context.Context, provider, function string, arguments []cty.Value) (cty.Value, error) {
	switch {
	case provider != "demo" || function != "upper":
		return cty.NilVal, fmt.Errorf("Provider %s has no function %q", provider, function)
	case len(arguments) != 1 || arguments[0].Type() != cty.String:
		return cty.NilVal, &providerapi.FunctionError{Text: "want one text", Argument: -1}
	}
	return cty.StringVal(strings.ToUpper(arguments[0].AsString())), nil
}

func (s *Env) Secret(_ context.Context, reader infra.Reader, name, key string) ([]byte, error) {
	text, is := s.Secrets[name+"/"+key]
	if !is {
		return nil, fmt.Errorf("there is no key %q in a Secret %q of namespace %q", key, name, reader.Ref.Namespace)
	}
	return []byte(text), nil
}

// Reference implements infra.ValueReader with Grants.
func (s *Env) Reference(_ context.Context, reader infra.Reader, ref expr.Ref, sensitive bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := grants.From{Group: reader.Group, Kind: reader.Kind, Namespace: reader.Ref.Namespace}
	to := grants.To{Group: "demo.providers.atoll.dev", Kind: "Thing", Name: ref.Name}
	if ref.Kind == expr.Data {
		to.Kind = "DataImage"
	}
	switch access := grants.Decide(s.Grants[ref.Namespace], from, to); {
	case access == grants.None:
		return errors.New(grants.Refusal(from, ref.Namespace, to))
	case access == grants.Public && sensitive:
		return errors.New(grants.SensitiveRefusal(from, ref.Namespace, to))
	}
	return nil
}

func (s *Env) Object(_ context.Context, _ infra.Reader, ref expr.Ref) (cty.Value, error) {
	v, is := s.Objects[ref.Name]
	if !is {
		return cty.NilVal, fmt.Errorf("there is no %s %q", ref.Type, ref.Name)
	}
	return v, nil
}

// TakeCalls returns the calls since the last time.
func (s *Env) TakeCalls() []string {
	s.Provider.mu.Lock()
	defer s.Provider.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}
