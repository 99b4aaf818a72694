package sharing

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// read reads Atoll's current state.
func (s *Client) read(ctx context.Context) (state, error) {
	var out state
	shared, err := s.dynamic.Resource(v1alpha1.SharedAPIResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return out, fmt.Errorf("%s does not serve SharedAPIs and may not be an Atoll server: set --atoll-kubeconfig", s.host)
	}
	if err != nil {
		return out, fmt.Errorf("list SharedAPIs: %w", err)
	}
	if out.shared, err = typed[v1alpha1.SharedAPI](shared); err != nil {
		return out, err
	}
	clusters, err := s.dynamic.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return out, fmt.Errorf("list the clusters: %w", err)
	}
	if out.clusters, err = typed[v1alpha1.Cluster](clusters); err != nil {
		return out, err
	}
	// Only metadata: the schemas of hundreds of CRDs are tens of megabytes.
	crds, err := s.metadata.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return out, nil
	case err != nil:
		return out, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	out.crds = []string{}
	for i := range crds.Items {
		out.crds = append(out.crds, crds.Items[i].Name)
	}
	return out, nil
}

func typed[T any](list *unstructured.UnstructuredList) ([]*T, error) {
	var out []*T
	for i := range list.Items {
		t := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, t); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", list.Items[i].GetKind(), list.Items[i].GetName(), err)
		}
		out = append(out, t)
	}
	return out, nil
}

// write makes a change and returns the resulting SharedAPI, or the previous one if the
// change deletes it.
func (s *Client) write(ctx context.Context, c change, dryRun DryRun) (*unstructured.Unstructured, error) {
	api := s.dynamic.Resource(v1alpha1.SharedAPIResource)
	now, err := proposed(c)
	if err != nil || !c.edits() || dryRun == DryRunClient {
		return now, err
	}
	var dry []string
	if dryRun == DryRunServer {
		dry = []string{metav1.DryRunAll}
	}
	switch {
	case c.old == nil:
		now, err = api.Create(ctx, now, metav1.CreateOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
		if apierrors.IsAlreadyExists(err) {
			err = changedMeanwhile(c.name)
		}
	case c.spec == nil && c.old.DeletionTimestamp != nil: // already deleted by another client
	case c.spec == nil:
		err = s.unlessEdited(ctx, c.old, func(version string) error {
			return api.Delete(ctx, c.name, metav1.DeleteOptions{DryRun: dry, Preconditions: &metav1.Preconditions{UID: &c.old.UID, ResourceVersion: &version}})
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	default:
		err = s.unlessEdited(ctx, c.old, func(version string) error {
			patch, err := json.Marshal(map[string]any{
				"metadata": map[string]any{"uid": c.old.UID, "resourceVersion": version},
				"spec":     c.spec,
			})
			if err != nil {
				return err
			}
			patched, err := api.Patch(ctx, c.name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
			if err == nil {
				now = patched
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("write SharedAPI %s: %w", c.name, err)
	}
	return now, nil
}

// proposed returns the SharedAPI after a change, as far as a client can tell.
func proposed(c change) (*unstructured.Unstructured, error) {
	if c.old == nil {
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.spec)
		if err != nil {
			return nil, fmt.Errorf("encode SharedAPI %s: %w", c.name, err)
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "SharedAPI",
			"metadata": map[string]any{"name": c.name}, "spec": spec,
		}}, nil
	}
	now := c.old.DeepCopy()
	if c.spec != nil {
		now.Spec = *c.spec
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(now)
	if err != nil {
		return nil, fmt.Errorf("encode SharedAPI %s: %w", c.name, err)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// unlessEdited writes with the resourceVersion that was read. On a conflict it retries
// if only the status has changed: with many clusters that changes all the time.
func (s *Client) unlessEdited(ctx context.Context, was *v1alpha1.SharedAPI, write func(version string) error) error {
	for version := was.ResourceVersion; ; {
		conflict := write(version)
		if !apierrors.IsConflict(conflict) {
			return conflict
		}
		now, err := s.get(ctx, was.Name)
		if err != nil {
			return err
		}
		if now == nil || now.UID != was.UID || now.DeletionTimestamp != nil || !equality.Semantic.DeepEqual(now.Spec, was.Spec) {
			return changedMeanwhile(was.Name)
		}
		if now.ResourceVersion == version {
			return conflict // another field changed
		}
		version = now.ResourceVersion
	}
}

func changedMeanwhile(name string) error {
	return fmt.Errorf("the object was modified concurrently: check `kubectl get sharedapi %s -o yaml` and try again", name)
}

// get returns a SharedAPI, or nil if it does not exist.
func (s *Client) get(ctx context.Context, name string) (*v1alpha1.SharedAPI, error) {
	u, err := s.dynamic.Resource(v1alpha1.SharedAPIResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get SharedAPI %s: %w", name, err)
	}
	out := &v1alpha1.SharedAPI{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read SharedAPI %s: %w", name, err)
	}
	return out, nil
}
