package moving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// Pause stops the steps of an object's transition, of this one and of later ones. It returns a word for the outcome.
func (c *Client) Pause(ctx context.Context, o Object) (string, error) {
	return c.request(ctx, o, pause, "paused", "already paused")
}

// Resume lets the steps go on, also if the object's policy pauses them.
func (c *Client) Resume(ctx context.Context, o Object) (string, error) {
	b, err := c.Binding(ctx, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	pauses := err == nil && b.Spec.Policy != nil && c.policyPauses(ctx, o.Namespace, b.Spec.Policy)
	return c.request(ctx, o, resume(pauses), "resumed", "not paused")
}

// Abort makes an object go back from its present transition.
func (c *Client) Abort(ctx context.Context, o Object) (string, error) {
	b, err := c.Binding(ctx, o)
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("%s is in no cluster: `atoll explain %s%s` says why", o, o.Argument(), o.InNamespace())
	case err != nil:
		return "", fmt.Errorf("read the binding of %s: %w", o, err)
	case b.Spec.Transition == nil:
		return "", fmt.Errorf("%s is not in transition: to run it elsewhere, use `atoll move %s%s --to CLUSTER`", o, o.Argument(), o.InNamespace())
	case b.Spec.Transition.Cause == v1alpha1.CauseRolledBack:
		return "", fmt.Errorf("%s already goes back", o)
	}
	return c.request(ctx, o, abort(b.Spec.Transition.ID), "aborted", "already aborted")
}

// Retry has the clusters tried again that an object avoids.
func (c *Client) Retry(ctx context.Context, o Object, now time.Time) (string, error) {
	b, err := c.Binding(ctx, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read the binding of %s: %w", o, err)
	}
	if err != nil || len(b.Spec.Avoided) == 0 {
		return "avoids no clusters", nil
	}
	var avoided []string
	for _, a := range b.Spec.Avoided {
		avoided = append(avoided, a.Name)
	}
	done := "retries " + names.List(avoided)
	return c.request(ctx, o, retryAt(now), done, done)
}

// policyPauses reports whether a policy pauses transitions. A policy that cannot be read does not.
func (c *Client) policyPauses(ctx context.Context, namespace string, ref *v1alpha1.PolicyReference) bool {
	resource := v1alpha1.PlacementResource
	switch ref.Kind {
	case "Placement":
	case "ClusterPlacement":
		resource, namespace = v1alpha1.ClusterPlacementResource, ""
	default:
		return false
	}
	u, err := c.Dynamic.Resource(resource).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	var p v1alpha1.Placement // both kinds have the field
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &p); err != nil {
		return false
	}
	return p.Spec.Transition != nil && p.Spec.Transition.Paused != nil && *p.Spec.Transition.Paused
}

// request edits the annotation of an object, with its resource version, so that no other edit is lost.
func (c *Client) request(ctx context.Context, o Object, e edit, done, unchanged string) (said string, err error) {
	api := c.Dynamic.Resource(o.Resource).Namespace(o.Namespace)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := api.Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		was := object.GetAnnotations()[v1alpha1.TransitionAnnotation]
		next, changed, err := merge(was, e)
		if err != nil {
			return badAnnotation(o, err)
		}
		if said = unchanged; !changed {
			return nil
		}
		said = done
		patch, err := annotationPatch(object, next)
		if err != nil {
			return err
		}
		_, err = api.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager, DryRun: c.dryRun()})
		return err
	})
	var bad *annotationError
	if err != nil && !errors.As(err, &bad) {
		err = fmt.Errorf("annotate %s: %w", o, err)
	}
	return said, err
}

func annotationPatch(object *unstructured.Unstructured, next string) ([]byte, error) {
	var value any // null removes it
	if next != "" {
		value = next
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(),
		"annotations": map[string]any{v1alpha1.TransitionAnnotation: value}}})
}

// annotationError is about an annotation that cannot be merged with.
type annotationError struct {
	object Object
	cause  error
}

func badAnnotation(o Object, cause error) error { return &annotationError{o, cause} }

func (e *annotationError) Error() string {
	o := e.object
	return fmt.Sprintf("the annotation %s of %s is invalid: %v. Correct it, or remove it with `kubectl annotate %s %s%s %s-`",
		v1alpha1.TransitionAnnotation, o, e.cause, o.Resource.GroupResource(), o.Name, o.InNamespace(), v1alpha1.TransitionAnnotation)
}

func (e *annotationError) Unwrap() error { return e.cause }
