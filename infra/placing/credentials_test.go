package placing

import (
	"context"
	"slices"
	"testing"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Credentials follow ProviderConfigs: a Secret is named as long as one of them names it, at any depth.
func TestCredentials(t *testing.T) {
	s := newFixture(t)
	s.make("ProviderConfig", "first", fields{"provider": "cloud", "configuration": fields{"token": fields{"secretKeyRef": fields{"name": "cloud", "key": "token"}}, "region": "eu"}})
	c := NewCredentials(s.dyn, clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.Named("shop", "cloud") || c.Named("other", "cloud") || c.Named("shop", "eu") {
		t.Fatal("wrong Secrets at the start")
	}
	told := make(chan []string, 100)
	defer c.OnChange(func(namespace string, secrets []string) { told <- append([]string{namespace}, secrets...) })()
	becomes := func(want ...string) {
		t.Helper()
		if got := <-told; !slices.Equal(got, append([]string{"shop"}, want...)) {
			t.Fatalf("told about %v, not %v", got, want)
		}
	}
	s.make("ProviderConfig", "second", fields{"provider": "cloud", "configuration": fields{
		"token": fields{"secretKeyRef": fields{"name": "cloud", "key": "token"}},
		"hosts": []any{fields{"password": fields{"secretKeyRef": fields{"name": "ssh", "key": "p"}}}}}})
	becomes("cloud", "ssh")
	s.server.Delete(v1alpha1.ProviderConfigResource, "shop", "first")
	becomes("cloud")
	if !c.Named("shop", "cloud") || !c.Named("shop", "ssh") {
		t.Error("the second ProviderConfig still names both")
	}
	s.make("ProviderConfig", "second", fields{"provider": "cloud", "configuration": fields{"region": "eu"}})
	becomes("cloud", "ssh")
	if c.Named("shop", "cloud") || c.Named("shop", "ssh") {
		t.Error("no ProviderConfig names them any more")
	}
}
