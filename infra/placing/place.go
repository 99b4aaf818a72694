package placing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infrav1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
)

// placeTimeout is how long an apply waits for the clusters after the approval.
const placeTimeout = 5 * time.Minute

// Annotations of a binding record the Apply's UID with the approved digest, and the plan. By the first an
// Apply that resumes recognizes its own approval; by the second later plans find the approved content.
const (
	allowedAnnotation = infrav1.Group + "/allowed"
	plannedAnnotation = infrav1.Group + "/planned"
)

// Place approves the proposal, if it is unchanged, and waits until the clusters have carried it out.
func (w *Workloads) Place(ctx context.Context, req infra.PlaceRequest) error {
	deadline := w.clock.Now().Add(placeTimeout)
	for wait := pollMin; ; wait = min(wait*2, pollMax) {
		missing, err := w.step(ctx, &req)
		switch {
		case apierrors.IsConflict(err):
			missing = "too many conflicting writes of its ResourceBinding"
		case err != nil || missing == "":
			return err
		}
		if !w.clock.Now().Before(deadline) {
			return fmt.Errorf("approved, but clusters have not finished within %s: %s. The rollout continues; see its ResourceBinding", placeTimeout, missing)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-req.Canceled:
			return nil
		case <-w.clock.After(wait):
		}
	}
}

// step does the next thing and returns the missing part, or the empty string when everything is done.
func (w *Workloads) step(ctx context.Context, req *infra.PlaceRequest) (missing string, err error) {
	apiVersion, kind, _ := req.Address.Workload()
	gk := kschema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
	uid, digest := precondition(req.Preconditions, bindingPrefix), precondition(req.Preconditions, proposalPrefix)
	api := w.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(req.Address.Namespace)
	u, err := api.Get(ctx, v1alpha1.BindingName(gk, req.Address.Name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(u.GetUID()) != uid:
		if req.Removed {
			return "", nil // removed from all clusters
		}
		return "", fmt.Errorf("its object was removed: %w", infra.ErrStale)
	case err != nil:
		return "", err
	}
	b, err := w.read(u)
	if err != nil {
		return "", err
	}
	mine := req.ApplyUID + " " + digest
	proposal := b.Status.Proposal
	if b.Annotations[allowedAnnotation] != mine {
		if proposal == nil || proposal.Digest != digest {
			return "", fmt.Errorf("its proposal has changed: %w", infra.ErrStale)
		}
		return "waiting for the fleet's scheduler", w.approve(ctx, b, digest, mine)
	}
	if b.Spec.Approved == digest {
		if proposal != nil && proposal.Digest != digest {
			// The scheduler changed its proposal just before it saw the approval.
			if err := w.revoke(ctx, b); err != nil {
				return "", err
			}
			return "", fmt.Errorf("its proposal has changed: %w", infra.ErrStale)
		}
		return "waiting for the fleet's scheduler", nil
	}
	if req.Removed {
		return remainingIn(b.ResourceBinding), nil
	}
	return w.missing(ctx, b, req)
}

// approve writes the approval into the binding, if that is unchanged.
func (w *Workloads) approve(ctx context.Context, b *binding, digest, mine string) error {
	return w.patch(ctx, b, map[string]any{allowedAnnotation: mine, plannedAnnotation: planIDOf(ctx)}, digest)
}

func (w *Workloads) revoke(ctx context.Context, b *binding) error {
	return w.patch(ctx, b, map[string]any{allowedAnnotation: nil, plannedAnnotation: nil}, nil)
}

func (w *Workloads) patch(ctx context.Context, b *binding, annotations map[string]any, approved any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": b.UID, "resourceVersion": b.ResourceVersion, "annotations": annotations},
		"spec":     map[string]any{"approved": approved},
	})
	if err != nil {
		return err
	}
	api := w.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(b.Namespace)
	_, err = api.Patch(ctx, b.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: apistore.FieldManager})
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the ResourceBinding %s: %w", b.Name, err)
	}
	return err
}

// errSuperseded is returned if an object was edited before all clusters had the approved version, which they
// will not get any more.
var errSuperseded = errors.New("superseded: the object changed before all clusters had the approved version; plan again")

// missing returns what clusters still lack of the approved version.
func (w *Workloads) missing(ctx context.Context, b *binding, req *infra.PlaceRequest) (missing string, err error) {
	object, err := w.dynamic.Resource(b.kind.GVR()).Namespace(b.Namespace).Get(ctx, b.Spec.Resource.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", errSuperseded
	}
	if err != nil {
		return "", err
	}
	if missing = firstMissing(b.ResourceBinding, object, req.Healthy); missing == "" {
		return "", nil
	}
	if b.Spec.Manual != nil && b.Spec.Manual.Content != b.kind.Digest(object) {
		return "", errSuperseded
	}
	return missing, nil
}

// firstMissing describes the first cluster whose copy differs from the object here.
func firstMissing(b *v1alpha1.ResourceBinding, object *unstructured.Unstructured, healthy bool) string {
	for _, share := range b.Decided() {
		state, reported := b.State(share.Name)
		switch {
		case b.Spec.Suspend:
			return "" // suspended by a policy; the rollout continues when that ends
		case !reported || state.UID == "" || state.Generation < object.GetGeneration() || !sameShare(state.Replicas, share.Replicas):
			return describeMissing(share.Name, &state, "not synced yet")
		case state.Reason != "" && state.Reason != v1alpha1.StateDrifted && state.Reason != v1alpha1.StateUnwatched:
			return describeMissing(share.Name, &state, state.Reason)
		case healthy && state.Health != v1alpha1.Healthy:
			return describeMissing(share.Name, &state, string(state.Health))
		}
	}
	for i := range b.Status.Clusters {
		if state := &b.Status.Clusters[i]; !chosen(b, state.Name) && state.Stale == nil {
			return describeMissing(state.Name, state, "not removed yet")
		}
	}
	if !healthy {
		return ""
	}
	// References read the summary of all clusters, which the object's status has before the binding's
	// condition says so.
	if well := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingHealthy); well == nil || well.Status != metav1.ConditionTrue || well.ObservedGeneration < b.Generation {
		return "waiting for the binding's condition Healthy"
	}
	observed, found, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	if found && observed < object.GetGeneration() {
		return "waiting for the object's status"
	}
	return ""
}

func sameShare(a, b *int32) bool {
	if a == nil || b == nil {
		return true
	}
	return *a == *b
}

func chosen(b *v1alpha1.ResourceBinding, cluster string) bool {
	return slices.ContainsFunc(b.Decided(), func(c v1alpha1.ClusterShare) bool { return c.Name == cluster })
}

func describeMissing(cluster string, state *v1alpha1.ClusterState, reason string) string {
	if state.Message != "" {
		reason += ": " + state.Message
	}
	return cluster + ": " + reason
}

// remainingIn lists the clusters that still have an object which is to be removed from all.
func remainingIn(b *v1alpha1.ResourceBinding) string {
	var names []string
	for _, c := range b.Decided() {
		if b.DeletionTimestamp == nil && (b.Spec.Manual == nil || !b.Spec.Manual.Removal) {
			names = append(names, c.Name)
		}
	}
	for _, c := range b.Status.Clusters {
		if c.Stale == nil {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return "not removed yet from " + strings.Join(slices.Compact(names), ", ")
}
