package providercontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// configured waits until a ProviderConfig's condition has the reason and a message with the words,
// and returns the message.
func (s *testEnv) configured(namespace, name, reason, words string) string {
	s.t.Helper()
	var c *metav1.Condition
	fakeapi.Eventually(s.t, fmt.Sprintf("ProviderConfig %s is %s", name, reason), func() error {
		config := &v1alpha1.ProviderConfig{}
		s.api.Read(v1alpha1.ProviderConfigResource, namespace, name, config)
		c = meta.FindStatusCondition(config.Status.Conditions, v1alpha1.ProviderConfigured)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, words) || c.ObservedGeneration != config.Generation {
			return fmt.Errorf("conditions: %+v", config.Status.Conditions)
		}
		return nil
	})
	return c.Message
}

func TestProviderConfigsAreTested(t *testing.T) {
	s := newTestEnv(t)
	s.config("shop", "demo", "directory: "+s.world())
	r := s.start("")
	s.elect(r)
	s.configured("shop", "demo", v1alpha1.ReasonNotInstalled, `Provider "demo" not found`)
	s.provider("demo")
	first := s.configured("shop", "demo", v1alpha1.ReasonConfigured, "accepted by demo 1.0.0 (revision ")

	s.secret("shop", "key", map[string]string{"token": "wrong"})
	s.config("shop", "demo", "directory: "+s.world()+"\ntoken: {secretKeyRef: {name: key, key: token}}")
	s.configured("shop", "demo", v1alpha1.ReasonConfigRefused, "The token is refused")
	// Only its Secret is corrected.
	s.secret("shop", "key", map[string]string{"token": "right"})
	if again := s.configured("shop", "demo", v1alpha1.ReasonConfigured, ""); again == first {
		t.Errorf("another configuration has the same revision: %s", again)
	}
	// Warnings are shown without secrets.
	s.secret("shop", "key", map[string]string{"token": "outdated"})
	warns := s.configured("shop", "demo", v1alpha1.ReasonConfigured, "Warnings: The token ends soon")
	contains(t, warns, "accepted by demo 1.0.0 (revision ")
	if strings.Contains(warns, "outdated") {
		t.Errorf("a secret is shown: %s", warns)
	}
}

func TestRolesOfServedTypes(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_network"} })
	r := s.start("")
	s.elect(r)
	resources := func(name string) []string {
		role := &rbacv1.ClusterRole{}
		if !s.api.Read(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "", name, role) {
			return nil
		}
		if owners := role.OwnerReferences; len(owners) != 1 || owners[0].UID != "uid-demo" {
			t.Errorf("owners of %s: %v", name, owners)
		}
		return role.Rules[0].Resources
	}
	want := func(list ...string) {
		t.Helper()
		fakeapi.Eventually(s.t, "the roles exist", func() error {
			viewer, editor := resources("atoll:infra-viewer:demo"), resources("atoll:infra-editor:demo")
			if fmt.Sprint(viewer) != "[*]" || fmt.Sprint(editor) != fmt.Sprint(list) {
				return fmt.Errorf("viewer %v, editor %v", viewer, editor)
			}
			return nil
		})
	}
	want("networks")
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_network", "demo_server"} })
	want("networks", "servers")
}

// A deleted Provider is finalized when nothing of it is left. Until then its status says what
// remains.
func TestProviderInUseStays(t *testing.T) {
	s := newTestEnv(t)
	var mu sync.Mutex
	stored := []string{"networks", "servers"}
	r := s.start("", func(c *Config) {
		c.StoredResources = func(_ context.Context, group string) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			if group != "demo.providers.atoll.dev" {
				return nil, fmt.Errorf("unexpected group %s", group)
			}
			return stored, nil
		}
	})
	s.elect(r)
	state := func(name string) {
		s.api.Put(&v1alpha1.ResourceState{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/v1alpha1", Kind: "ResourceState"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"}})
	}
	left := v1alpha1.StateName("networks", "demo", "main.one")
	state(left)
	state(v1alpha1.StateName("networks", "demo2", "main"))
	s.provider("demo")
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	if r.Deleting("demo.providers.atoll.dev") {
		t.Error("it is not deleted yet")
	}
	s.provider("demo", func(p *v1alpha1.Provider) {
		long := metav1.NewTime(time.Now().Add(-time.Minute))
		p.DeletionTimestamp = &long
	})
	contains(t, s.await("demo", v1alpha1.ProviderInUse, v1alpha1.ReasonObjectsExist), "networks, servers", "delete them")
	// The elected server's work and this server's own follow the same event independently.
	fakeapi.Eventually(t, "it accepts no new objects", func() error {
		if !r.Deleting("demo.providers.atoll.dev") {
			return errors.New("it accepts new objects")
		}
		return nil
	})
	if _, err := r.Kind(network("x")); err != nil {
		t.Errorf("the remaining objects are not served: %v", err)
	}
	mu.Lock()
	stored = nil
	mu.Unlock()
	contains(t, s.await("demo", v1alpha1.ProviderInUse, v1alpha1.ReasonStatesExist), left, "namespace shop")
	s.api.Delete(v1alpha1.ResourceStateResource, "shop", left)
	fakeapi.Until(s.t, "the finalizer is removed, and the Provider with it", func() bool { return s.get("demo") == nil })
}

// A deleted ProviderConfig is kept while a resource that was created with it exists.
func TestProviderConfigInUseStays(t *testing.T) {
	s := newTestEnv(t)
	s.config("shop", "demo", "directory: "+s.world())
	s.config("shop", "other", "directory: "+s.world())
	s.elect(s.start(""))
	s.provider("demo")
	get := func(name string) *v1alpha1.ProviderConfig {
		config := &v1alpha1.ProviderConfig{}
		if !s.api.Read(v1alpha1.ProviderConfigResource, "shop", name, config) {
			return nil
		}
		return config
	}
	state := v1alpha1.StateName("networks", "demo", "main")
	s.api.Put(&v1alpha1.ResourceState{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/v1alpha1", Kind: "ResourceState"},
		ObjectMeta: metav1.ObjectMeta{Name: state, Namespace: "shop"},
		Spec: v1alpha1.ResourceStateSpec{Object: v1alpha1.StateOwner{Kind: "Network", Name: "main"}, Provider: "demo", ProviderConfig: "demo",
			Current: &v1alpha1.ResourceValue{Value: []byte("{}")}}})
	for _, name := range []string{"demo", "other"} {
		fakeapi.Until(t, "ProviderConfig "+name+" has the finalizer", func() bool { return len(get(name).Finalizers) == 1 })
		client := s.api.Dynamic().Resource(v1alpha1.ProviderConfigResource).Namespace("shop")
		if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	fakeapi.Until(t, "a ProviderConfig without resources is gone", func() bool { return get("other") == nil })
	fakeapi.Until(t, "the other names what uses it", func() bool {
		config := get("demo")
		c := meta.FindStatusCondition(config.Status.Conditions, v1alpha1.ProviderConfigInUse)
		return c != nil && strings.Contains(c.Message, "network/main")
	})
	s.api.Delete(v1alpha1.ResourceStateResource, "shop", state)
	fakeapi.Until(t, "it is gone with the last resource", func() bool { return get("demo") == nil })
}
