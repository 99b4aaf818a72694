package infra

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// fakeEnv is a fakeProvider as Providers, with everything else that a plan needs.
type fakeEnv struct {
	*fakeProvider
	mu             sync.Mutex
	revision       string
	configRevision string
	unserved       map[string]bool // types without a provider
	secrets        map[string]string
	objects        map[string]cty.Value
}

// newFakeEnv returns an environment without Secrets and Kubernetes objects.
func newFakeEnv() *fakeEnv {
	return &fakeEnv{
		fakeProvider: &fakeProvider{schema: thingSchema(), data: imageSchema(), images: map[string]string{}, gone: map[string]bool{}, drifted: map[string]string{}},
		revision:     "r1", configRevision: "c1", unserved: map[string]bool{}, secrets: map[string]string{}, objects: map[string]cty.Value{},
	}
}

func (s *fakeEnv) Kind(ref expr.Ref) (*ServedKind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unserved[ref.Type] {
		return nil, ErrNotServed
	}
	out := &ServedKind{Provider: "demo", Revision: s.revision, Kind: schema.Kind{Group: "demo.providers.atoll.dev"}}
	switch {
	case ref.Kind == expr.Resource && ref.Type == "demo_thing":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Kind: "Thing", Plural: "things"}, s.schema
	case ref.Kind == expr.Data && ref.Type == "demo_image":
		out.Name, out.Schema = schema.Name{Type: ref.Type, Data: true, Kind: "DataImage", Plural: "dataimages"}, s.data
	default:
		return nil, ErrNotServed
	}
	return out, nil
}

func (s *fakeEnv) Open(_ context.Context, _, _, config string) (providerapi.Provider, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if config == "missing" {
		return nil, "", errors.New(`there is no ProviderConfig "missing": make it, or name another`)
	}
	return s.fakeProvider, s.configRevision, nil
}

func (s *fakeEnv) Secret(_ context.Context, namespace, name, key string) ([]byte, error) {
	text, is := s.secrets[name+"/"+key]
	if !is {
		return nil, fmt.Errorf("there is no key %q in a Secret %q of namespace %q", key, name, namespace)
	}
	return []byte(text), nil
}

func (s *fakeEnv) Object(_ context.Context, ref expr.Ref) (cty.Value, error) {
	v, is := s.objects[ref.Name]
	if !is {
		return cty.NilVal, fmt.Errorf("there is no %s %q", ref.Type, ref.Name)
	}
	return v, nil
}

// takeCalls returns the calls since the last time.
func (s *fakeEnv) takeCalls() []string {
	s.fakeProvider.mu.Lock()
	defer s.fakeProvider.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}
