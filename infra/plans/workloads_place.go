package plans

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
)

// placedWithin is how long an apply waits for clusters to have what was allowed.
const placedWithin = 5 * time.Minute

// Annotations of a binding say which Apply allowed what, by its UID and the digest, and by which plan: the one is how an Apply
// that goes on knows what it has done, the other where what was allowed can be read.
const (
	allowedAnnotation = infrav1.Group + "/allowed"
	plannedAnnotation = infrav1.Group + "/planned"
)

// Place allows what was proposed, if it still is, and waits until clusters have it.
func (w *placements) Place(ctx context.Context, what infra.PlaceRequest) error {
	deadline := w.clock.Now().Add(placedWithin)
	for wait := lookAgain; ; wait = min(wait*2, lookSlowly) {
		missing, err := w.step(ctx, &what)
		switch {
		case apierrors.IsConflict(err):
			missing = "its ResourceBinding changes all the time"
		case err != nil || missing == "":
			return err
		}
		if !w.clock.Now().Before(deadline) {
			return fmt.Errorf("it was allowed, and after %s its clusters are not there yet: %s. It goes on by itself; see its ResourceBinding", placedWithin, missing)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-what.Canceled:
			return nil
		case <-w.clock.After(wait):
		}
	}
}

// step does what can be done now, and tells what is missing; nothing if all is done.
func (w *placements) step(ctx context.Context, what *infra.PlaceRequest) (missing string, err error) {
	apiVersion, kind, _ := what.Address.Workload()
	gk := kschema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
	uid, digest := precondition(what.Preconditions, ofBinding), precondition(what.Preconditions, ofProposal)
	api := w.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(what.Address.Namespace)
	u, err := api.Get(ctx, v1alpha1.BindingName(gk, what.Address.Name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(u.GetUID()) != uid:
		if what.Removed {
			return "", nil // it has left
		}
		return "", fmt.Errorf("its object has been removed: %w", infra.ErrStale)
	case err != nil:
		return "", err
	}
	b, err := w.read(u)
	if err != nil {
		return "", err
	}
	mine := what.ApplyUID + " " + digest
	proposal := b.Status.Proposal
	if b.Annotations[allowedAnnotation] != mine {
		if proposal == nil || proposal.Digest != digest {
			return "", fmt.Errorf("something else is proposed by now: %w", infra.ErrStale)
		}
		return "the fleet's scheduler has not taken it up", w.allow(ctx, b, digest, mine)
	}
	if b.Spec.Approved == digest {
		if proposal != nil && proposal.Digest != digest {
			// The scheduler found something else to be done just before it saw this.
			if err := w.takeBack(ctx, b); err != nil {
				return "", err
			}
			return "", fmt.Errorf("something else is proposed by now: %w", infra.ErrStale)
		}
		return "the fleet's scheduler has not taken it up", nil
	}
	if what.Removed {
		return leaving(b.ResourceBinding), nil
	}
	return w.there(ctx, b, what)
}

// allow writes what is allowed, and by whom, into the binding as it was seen.
func (w *placements) allow(ctx context.Context, b *bound, digest, mine string) error {
	return w.patch(ctx, b, map[string]any{allowedAnnotation: mine, plannedAnnotation: planOf(ctx)}, digest)
}

func (w *placements) takeBack(ctx context.Context, b *bound) error {
	return w.patch(ctx, b, map[string]any{allowedAnnotation: nil, plannedAnnotation: nil}, nil)
}

func (w *placements) patch(ctx context.Context, b *bound, annotations map[string]any, approved any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": b.UID, "resourceVersion": b.ResourceVersion, "annotations": annotations},
		"spec":     map[string]any{"approved": approved},
	})
	if err != nil {
		return err
	}
	api := w.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(b.Namespace)
	_, err = api.Patch(ctx, b.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the ResourceBinding %s: %w", b.Name, err)
	}
	return err
}

// errOvertaken is of an object that was edited again before all clusters had what a plan allowed: they will not get that any more.
var errOvertaken = errors.New("it was allowed, and its object was changed before all of its clusters had it: plan again")

// there tells what clusters still lack of what was allowed.
func (w *placements) there(ctx context.Context, b *bound, what *infra.PlaceRequest) (missing string, err error) {
	object, err := w.dynamic.Resource(b.kind.GVR()).Namespace(b.Namespace).Get(ctx, b.Spec.Resource.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", errOvertaken
	}
	if err != nil {
		return "", err
	}
	if missing = lacking(b.ResourceBinding, object, what.Healthy); missing == "" {
		return "", nil
	}
	if b.Spec.Manual != nil && b.Spec.Manual.Content != b.kind.Digest(object) {
		return "", errOvertaken
	}
	return missing, nil
}

// lacking says in which cluster an object is not as it is here.
func lacking(b *v1alpha1.ResourceBinding, object *unstructured.Unstructured, healthy bool) string {
	for _, share := range b.Spec.Clusters {
		state, reported := b.State(share.Name)
		switch {
		case b.Spec.Suspend:
			return "" // a policy says so: it will be there when that ends
		case !reported || state.UID == "" || state.Generation < object.GetGeneration() || !sameShare(state.Replicas, share.Replicas):
			return describeLack(share.Name, &state, "it is not there yet")
		case state.Reason != "" && state.Reason != v1alpha1.StateDrifted && state.Reason != v1alpha1.StateUnwatched:
			return describeLack(share.Name, &state, state.Reason)
		case healthy && state.Health != v1alpha1.Healthy:
			return describeLack(share.Name, &state, string(state.Health))
		}
	}
	for i := range b.Status.Clusters {
		if state := &b.Status.Clusters[i]; !chosen(b, state.Name) && state.Stale == nil {
			return describeLack(state.Name, state, "it is still there")
		}
	}
	if !healthy {
		return ""
	}
	// What is referred to is the summary of all clusters. It is in the object's status before the binding has it.
	if well := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingHealthy); well == nil || well.Status != metav1.ConditionTrue || well.ObservedGeneration < b.Generation {
		return "what its clusters say is not summed up yet"
	}
	observed, found, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	if found && observed < object.GetGeneration() {
		return "what its clusters say is not in its status yet"
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
	return slices.ContainsFunc(b.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return c.Name == cluster })
}

func describeLack(cluster string, state *v1alpha1.ClusterState, what string) string {
	if state.Message != "" {
		what += ": " + state.Message
	}
	return cluster + ": " + what
}

// leaving says in which clusters an object that leaves all still is.
func leaving(b *v1alpha1.ResourceBinding) string {
	var names []string
	for _, c := range b.Spec.Clusters {
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
	return "it is still in " + strings.Join(slices.Compact(names), ", ")
}
