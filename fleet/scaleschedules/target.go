package scaleschedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// requestTimeout bounds the requests for one run.
const requestTimeout = 30 * time.Second

// target reads and writes the target of a schedule. Its contexts have the author.
type target struct {
	api  dynamic.ResourceInterface
	name string
	// subresource is scale, or none for an autoscaler.
	subresource []string
	author      *v1alpha1.ScaleScheduleAuthor
}

// target finds out how the target of a schedule is scaled.
func (c *controller) target(ctx context.Context, of *v1alpha1.ScaleSchedule) (*target, error) {
	if _, err := withAuthor(ctx, of.Spec.Author); err != nil {
		return nil, err
	}
	to := &of.Spec.Target
	resource, scalable, err := c.served.find(ctx, to)
	if err != nil {
		return nil, err
	}
	t := &target{api: c.authors.Resource(resource).Namespace(of.Namespace), name: to.Name, author: of.Spec.Author}
	if targetGroupKind(to) == interpret.AutoscalerKind() {
		return t, nil
	}
	if !scalable {
		return nil, refuse(v1alpha1.ReasonScaleNotScalable, fmt.Errorf("%s %s has no subresource scale: name another object in spec.target", to.Kind, to.APIVersion))
	}
	t.subresource = []string{"scale"}
	return t, nil
}

// values returns what the target has now.
func (t *target) values(ctx context.Context) (out v1alpha1.ScaleValues, err error) {
	if ctx, err = withAuthor(ctx, t.author); err != nil {
		return out, err
	}
	u, err := t.api.Get(ctx, t.name, metav1.GetOptions{}, t.subresource...)
	if err != nil {
		return out, refusalOf(err)
	}
	number := func(field string) *int32 {
		n, found, _ := unstructured.NestedInt64(u.Object, "spec", field)
		if !found && field != "replicas" {
			return nil
		}
		is := int32(n) // a Scale omits a count of 0
		return &is
	}
	if len(t.subresource) > 0 {
		return v1alpha1.ScaleValues{Replicas: number("replicas")}, nil
	}
	return v1alpha1.ScaleValues{MinReplicas: number("minReplicas"), MaxReplicas: number("maxReplicas")}, nil
}

// set writes values, as `kubectl scale` and `kubectl patch` do.
func (t *target) set(ctx context.Context, values v1alpha1.ScaleValues) error {
	return t.patch(ctx, values, nil)
}

// dryRun checks whether the author may write the target.
func (t *target) dryRun(ctx context.Context) error {
	err := t.patch(ctx, v1alpha1.ScaleValues{}, []string{metav1.DryRunAll})
	if apierrors.IsBadRequest(err) {
		return nil // a webhook that supports no dry run
	}
	return err
}

func (t *target) patch(ctx context.Context, values v1alpha1.ScaleValues, dryRun []string) error {
	ctx, err := withAuthor(ctx, t.author)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": values})
	if err != nil {
		return err
	}
	_, err = t.api.Patch(ctx, t.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager, DryRun: dryRun}, t.subresource...)
	return refusalOf(err)
}

// refusal is an error that the same request would have again.
type refusal struct {
	reason string
	error
}

func (r refusal) Unwrap() error { return r.error }

func refuse(reason string, err error) error { return refusal{reason, err} }

// refusalOf makes a refusal of an error of the API, unless the request may succeed later.
func refusalOf(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	code := status.Status().Code
	switch {
	case apierrors.IsNotFound(err):
		return refuse(v1alpha1.ReasonScaleNotFound, err)
	case code < 400 || code >= 500 || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) || apierrors.IsTimeout(err) || code == 408:
		return err
	case apierrors.IsForbidden(err) && (strings.Contains(err.Error(), " cannot patch resource ") || strings.Contains(err.Error(), " cannot get resource ")):
		return refuse(v1alpha1.ReasonScaleForbidden, fmt.Errorf("%w: grant the author this permission, or have a user with it change the schedule", err))
	}
	return refuse(v1alpha1.ReasonScaleRefused, err)
}

// unknown returns an error that is no refusal.
func unknown(err error) error {
	if r := (refusal{}); errors.As(err, &r) {
		return nil
	}
	return err
}

func targetGroupKind(t *v1alpha1.ScaleTarget) schema.GroupKind {
	return schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).GroupKind()
}

func targetKey(namespace, group, kind, name string) string {
	return namespace + "/" + kind + "." + group + "/" + name
}

func targetKeys(obj any) ([]string, error) {
	of, ok := obj.(*v1alpha1.ScaleSchedule)
	if !ok {
		return nil, nil
	}
	gk := targetGroupKind(&of.Spec.Target)
	return []string{targetKey(of.Namespace, gk.Group, gk.Kind, of.Spec.Target.Name)}, nil
}
