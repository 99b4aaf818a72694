package placing

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// Credentials reports which Secrets ProviderConfigs name. With the credentials of a provider, a member
// could change the infrastructure of the whole fleet, so they do not go along with a namespace's
// workloads. Each server has its own, because the fleet's scheduler may run in any of them. It is safe
// for concurrent use.
type Credentials struct {
	dynamic dynamic.Interface
	clock   clock.WithTicker
	configs controllers.Cache[v1alpha1.ProviderConfig]
	synced  chan struct{}

	mu        sync.RWMutex
	named     map[string]map[string]int // by namespace and name, the number of ProviderConfigs
	listeners map[int]func(namespace string, secrets []string)
	listened  int
}

// NewCredentials returns Credentials that are empty until Run.
func NewCredentials(client dynamic.Interface, c clock.WithTicker) *Credentials {
	return &Credentials{
		dynamic: client, clock: c, synced: make(chan struct{}),
		configs: controllers.NewCache[v1alpha1.ProviderConfig](client, v1alpha1.ProviderConfigResource, controllers.CacheOptions{}),
		named:   map[string]map[string]int{}, listeners: map[int]func(string, []string){},
	}
}

// Run watches ProviderConfigs until ctx ends. It may be called once.
func (c *Credentials) Run(ctx context.Context) error {
	if err := waitServed(ctx, c.dynamic, c.clock, v1alpha1.ProviderConfigResource); err != nil {
		return nil // ctx ended
	}
	registered, err := c.configs.Informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(is any) { c.changed(nil, is) },
		UpdateFunc: c.changed,
		DeleteFunc: func(was any) {
			if gone, is := was.(cache.DeletedFinalStateUnknown); is {
				was = gone.Obj
			}
			c.changed(was, nil)
		},
	})
	if err != nil {
		return fmt.Errorf("watch ProviderConfigs: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.configs.Informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), registered.HasSynced) {
		close(c.synced)
	}
	<-ctx.Done()
	return nil
}

func (c *Credentials) changed(was, is any) {
	old, _ := was.(*v1alpha1.ProviderConfig)
	now, _ := is.(*v1alpha1.ProviderConfig)
	before, after := secretsOf(old), secretsOf(now)
	if maps.Equal(before, after) {
		return
	}
	namespace := ""
	if now != nil {
		namespace = now.Namespace
	} else {
		namespace = old.Namespace
	}
	c.mu.Lock()
	in := c.named[namespace]
	if in == nil {
		in = map[string]int{}
		c.named[namespace] = in
	}
	for name := range after {
		in[name]++
	}
	for name := range before {
		if in[name]--; in[name] <= 0 {
			delete(in, name)
		}
	}
	if len(in) == 0 {
		delete(c.named, namespace)
	}
	listeners := slices.Collect(maps.Values(c.listeners))
	c.mu.Unlock()
	maps.Copy(after, before)
	for _, notify := range listeners {
		notify(namespace, slices.Sorted(maps.Keys(after)))
	}
}

// secretsOf returns the names of the Secrets in a configuration. What cannot be read names none:
// the provider cannot be configured with it either.
func secretsOf(config *v1alpha1.ProviderConfig) map[string]bool {
	out := map[string]bool{}
	if config == nil || config.Spec.Configuration == nil {
		return out
	}
	var configuration any
	if json.Unmarshal(config.Spec.Configuration.Raw, &configuration) == nil {
		collectSecrets(configuration, out)
	}
	return out
}

func collectSecrets(in any, out map[string]bool) {
	switch in := in.(type) {
	case map[string]any:
		for name, value := range in {
			if ref, is := value.(map[string]any); is && name == "secretKeyRef" {
				if secret, is := ref["name"].(string); is {
					out[secret] = true
				}
			}
			collectSecrets(value, out)
		}
	case []any:
		for _, value := range in {
			collectSecrets(value, out)
		}
	}
}

// Ready returns when all ProviderConfigs are known that existed when it was called, or with an error when
// ctx ends.
func (c *Credentials) Ready(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Named reports whether a ProviderConfig of a namespace names a Secret.
func (c *Credentials) Named(namespace, secret string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.named[namespace][secret] > 0
}

// OnChange calls notify with the Secrets for which Named may return something else than before, until
// cancel is called. notify must not block.
func (c *Credentials) OnChange(notify func(namespace string, secrets []string)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listened++
	at := c.listened
	c.listeners[at] = notify
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, at)
	}
}
