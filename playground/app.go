package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/node"
)

//go:embed app.yaml
var app []byte

const (
	appNamespace = "demo"
	appName      = "guestbook"
	appImage     = "nginx:1.29"
)

// applyApp applies the sample app as `kubectl apply --server-side` would. On real nodes it runs an image that they have: there is
// no registry.
func applyApp(ctx context.Context, config *rest.Config, kubelets bool) error {
	manifest := app
	if kubelets {
		manifest = bytes.ReplaceAll(app, []byte(appImage), []byte(node.Image))
	}
	if err := applyManifest(ctx, config, manifest); err != nil {
		return fmt.Errorf("apply the sample app: %w", err)
	}
	return nil
}

func applyManifest(ctx context.Context, config *rest.Config, manifest []byte) error {
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		var object unstructured.Unstructured
		if err := documents.Decode(&object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := apply(ctx, client, mapper, &object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func apply(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "atoll-playground", Force: true})
	return err
}

// waitForApp waits until the app runs on every cluster and its status in Atoll agrees. If ctx ends
// first, the error names the missing part.
func waitForApp(ctx context.Context, config *rest.Config, members []*member.Cluster) error {
	atoll, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("wait for the sample app: %w", err)
	}
	var clients []kubernetes.Interface
	for _, m := range members {
		config, err := m.REST()
		if err != nil {
			return fmt.Errorf("wait for the sample app: %w", err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("wait for the sample app: %w", err)
		}
		clients = append(clients, client)
	}
	missing := func() error {
		var running int32
		for i, client := range clients {
			d, err := client.AppsV1().Deployments(appNamespace).Get(ctx, appName, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("cluster %s does not have the Deployment yet", members[i].Name)
			} else if err != nil {
				return fmt.Errorf("cluster %s: %w", members[i].Name, err)
			}
			if err := complete(d); err != nil {
				return fmt.Errorf("cluster %s: %w", members[i].Name, err)
			}
			running += d.Status.AvailableReplicas
		}
		d, err := atoll.AppsV1().Deployments(appNamespace).Get(ctx, appName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("atoll: %w", err)
		}
		if err := complete(d); err != nil {
			return fmt.Errorf("status in atoll: %w", err)
		}
		if d.Status.AvailableReplicas != running {
			return fmt.Errorf("status in atoll has %d available replicas, the clusters have %d", d.Status.AvailableReplicas, running)
		}
		return nil
	}
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		err := missing()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the sample app does not run on all clusters: %w", err)
		case <-tick.C:
		}
	}
}

// complete returns an error unless the Deployment is rolled out and its status is current.
func complete(d *appsv1.Deployment) error {
	want := *d.Spec.Replicas
	switch {
	case want == 0:
		return errors.New("no replicas are assigned to it")
	case d.Status.ObservedGeneration != d.Generation:
		return fmt.Errorf("generation %d is not observed yet", d.Generation)
	case d.Status.UpdatedReplicas != want || d.Status.AvailableReplicas != want || d.Status.Replicas != want:
		return fmt.Errorf("%d of %d replicas are available", d.Status.AvailableReplicas, want)
	}
	return nil
}
