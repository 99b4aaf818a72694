package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/playground/system"
)

// waitForFleet waits until every server of Atoll serves the fleet's kinds. Servers that start on a
// new datastore begin to serve them at different times.
func waitForFleet(ctx context.Context, s *system.System) error {
	for i, name := range s.Servers() {
		if err := waitForKinds(ctx, name, s.KubeconfigOf(i), "clusters", "sharedapis"); err != nil {
			return err
		}
	}
	return nil
}

// waitForKinds waits until an API server lists the resources in discovery. Before that, kubectl
// fails with "the server doesn't have a resource type".
func waitForKinds(ctx context.Context, server, kubeconfig string, resources ...string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	config.QPS = -1
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	servesAll := func() error {
		// With an empty cache each time, like a kubectl that is called for the first time.
		mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
		for _, r := range resources {
			if _, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: r}); err != nil {
				return err
			}
		}
		return nil
	}
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		err := servesAll()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve all its kinds: %w", server, err)
		case <-tick.C:
		}
	}
}
