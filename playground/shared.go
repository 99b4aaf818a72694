package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
)

//go:embed shared.yaml
var shared []byte

const sharedName = "demo"

// errNotShared is returned if this machine has no address that Kubernetes accepts as a server's.
var errNotShared = errors.New("not shared: this machine has loopback addresses only, so clusters cannot reach Atoll")

// share has all clusters serve the kind Note, and returns when they do and the SharedAPI is Ready.
func share(ctx context.Context, config *rest.Config, members []*member.Cluster) error {
	if err := applyManifest(ctx, config, shared); err != nil {
		return fmt.Errorf("share the kind Note: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("share the kind Note: %w", err)
	}
	if err := waitForShared(ctx, client); err != nil {
		return err
	}
	for _, m := range members {
		if err := waitForKinds(ctx, m.Name, m.Kubeconfig, "notes"); err != nil {
			return err
		}
	}
	return nil
}

// waitForShared waits until the SharedAPI is Ready.
func waitForShared(ctx context.Context, client dynamic.Interface) error {
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		object, err := client.Resource(v1alpha1.SharedAPIResource).Get(ctx, sharedName, metav1.GetOptions{})
		ready, reason, message := false, "", "no condition Ready yet"
		if err == nil {
			ready, reason, message = sharedReady(object)
		}
		switch {
		case ready:
			return nil
		case reason == v1alpha1.ExposureNoServers && !system.ServesMembers():
			return errNotShared
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the kind Note is not shared with all clusters: %w", errors.Join(err, errors.New(message)))
		case <-tick.C:
		}
	}
}

// sharedReady returns the condition Ready. It is ready only if it was observed at the SharedAPI's current
// generation.
func sharedReady(object *unstructured.Unstructured) (ready bool, reason, message string) {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] != v1alpha1.SharedReady {
			continue
		}
		reason, _ = condition["reason"].(string)
		message, _ = condition["message"].(string)
		generation, _ := condition["observedGeneration"].(int64)
		return condition["status"] == "True" && generation == object.GetGeneration(), reason, message
	}
	return false, "", "no condition Ready yet"
}
