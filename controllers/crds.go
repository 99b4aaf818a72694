package controllers

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// InstallCRDs installs or updates the CRDs in the given manifests as the given field manager, and
// returns when they are served. Every server does this with the same result.
func InstallCRDs(ctx context.Context, client dynamic.Interface, manager string, manifests [][]byte) error {
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	var installed []schema.GroupVersionResource
	for _, manifest := range manifests {
		crd, err := parseCRD(manifest)
		if err != nil {
			return fmt.Errorf("install CRDs: %w", err)
		}
		if _, err := api.Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: manager, Force: true}); err != nil {
			return fmt.Errorf("install CRD %s: %w", crd.GetName(), err)
		}
		installed = append(installed, definedBy(crd)...)
	}
	for _, gvr := range installed {
		if err := WaitServed(ctx, client, gvr); err != nil {
			return err
		}
	}
	return nil
}

// DefinedBy returns the resources that the CRDs in the given manifests define, one for each served
// version.
func DefinedBy(manifests [][]byte) ([]schema.GroupVersionResource, error) {
	var out []schema.GroupVersionResource
	for _, manifest := range manifests {
		crd, err := parseCRD(manifest)
		if err != nil {
			return nil, err
		}
		out = append(out, definedBy(crd)...)
	}
	return out, nil
}

func parseCRD(manifest []byte) (*unstructured.Unstructured, error) {
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(manifest, &crd.Object); err != nil {
		return nil, fmt.Errorf("parse a CustomResourceDefinition: %w", err)
	}
	return crd, nil
}

// definedBy returns the resources of a CRD, one for each served version.
func definedBy(crd *unstructured.Unstructured) []schema.GroupVersionResource {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	var out []schema.GroupVersionResource
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if served, _ := version["served"].(bool); served {
			out = append(out, schema.GroupVersionResource{Group: group, Version: name, Resource: plural})
		}
	}
	return out
}

// WaitServed waits until a resource can be listed. The CRD's condition Established is not enough:
// the request handler is ready a little later.
func WaitServed(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, last = client.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsForbidden(last) || apierrors.IsUnauthorized(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		err = last
	}
	if err != nil {
		return fmt.Errorf("wait until type %s is served: %w", gvr.GroupResource(), err)
	}
	return nil
}
