package apistore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
)

// Objects writes finalizers, statuses and connection Secrets of objects of providers' kinds. It implements
// infra.ObjectWriter.
type Objects struct {
	dynamic dynamic.Interface
	kube    kubernetes.Interface
	clock   clock.PassiveClock

	// stored caches, by UID, the objects that AddFinalizer has stored. UpdateStatus follows and need not read
	// them again.
	mu     sync.Mutex
	stored map[string]*unstructured.Unstructured
}

// NewObjects returns Objects that write through the given clients.
func NewObjects(client dynamic.Interface, kube kubernetes.Interface, c clock.PassiveClock) *Objects {
	return &Objects{dynamic: client, kube: kube, clock: c}
}

// maxStored is how many objects are cached.
const maxStored = 256

func (s *Objects) cacheStored(stored *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil || len(s.stored) >= maxStored {
		s.stored = map[string]*unstructured.Unstructured{} // failed ones are never published; drop them too
	}
	s.stored[string(stored.GetUID())] = stored
}

func (s *Objects) takeStored(o *infra.Object) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := s.stored[o.UID]
	delete(s.stored, o.UID)
	return stored
}

func (s *Objects) api(o *infra.Object) dynamic.ResourceInterface {
	gvr := schema.GroupVersionResource{Group: o.Group, Version: v1alpha1.ProvidersVersion, Resource: o.Plural}
	return s.dynamic.Resource(gvr).Namespace(o.Ref.Namespace)
}

// AddFinalizer adds the engine's finalizer to an object, as infra.ObjectWriter describes.
func (s *Objects) AddFinalizer(ctx context.Context, o *infra.Object) error {
	if o.NoFinalizers && o.ResourceVersion != "" {
		// As a rule, the object is unchanged since it was last observed.
		stored, err := s.patchFinalizers(ctx, o, o.UID, o.ResourceVersion, []string{infra.Finalizer})
		if err == nil {
			s.cacheStored(stored)
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("write the finalizer %s of %s: %w", infra.Finalizer, o.Ref, err)
		}
	}
	return s.updateFinalizers(ctx, o, func(live *unstructured.Unstructured) (bool, error) {
		switch {
		case live == nil:
			return false, fmt.Errorf("%s is gone: %w", o.Ref, infra.ErrStale)
		case live.GetGeneration() != o.Generation:
			return false, fmt.Errorf("%s was updated: %w", o.Ref, infra.ErrStale)
		case slices.Contains(live.GetFinalizers(), infra.Finalizer):
			return false, nil
		case live.GetDeletionTimestamp() != nil:
			return false, fmt.Errorf("%s is being deleted: %w", o.Ref, infra.ErrStale)
		}
		live.SetFinalizers(append(live.GetFinalizers(), infra.Finalizer))
		return true, nil
	})
}

// RemoveFinalizer removes it, as infra.ObjectWriter describes.
func (s *Objects) RemoveFinalizer(ctx context.Context, o *infra.Object) error {
	return s.updateFinalizers(ctx, o, func(live *unstructured.Unstructured) (bool, error) {
		if live == nil || !slices.Contains(live.GetFinalizers(), infra.Finalizer) {
			return false, nil
		}
		live.SetFinalizers(slices.DeleteFunc(live.GetFinalizers(), func(f string) bool { return f == infra.Finalizer }))
		return true, nil
	})
}

// updateFinalizers changes the finalizers of the current object. change may decide to write nothing; it gets
// nil if the object is gone.
func (s *Objects) updateFinalizers(ctx context.Context, o *infra.Object, change func(*unstructured.Unstructured) (bool, error)) error {
	var last error
	for range maxAttempts {
		live, err := s.live(ctx, o)
		if err != nil {
			return err
		}
		if write, err := change(live); err != nil || !write {
			return err
		}
		_, last = s.patchFinalizers(ctx, o, string(live.GetUID()), live.GetResourceVersion(), live.GetFinalizers())
		if !apierrors.IsConflict(last) && !apierrors.IsNotFound(last) {
			break
		}
	}
	if last != nil {
		return fmt.Errorf("write the finalizer %s of %s: %w", infra.Finalizer, o.Ref, last)
	}
	return nil
}

// patchFinalizers writes an object's finalizers, provided that it still has the resourceVersion. It returns the
// stored object.
func (s *Objects) patchFinalizers(ctx context.Context, o *infra.Object, uid, resourceVersion string, all []string) (*unstructured.Unstructured, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "resourceVersion": resourceVersion, "finalizers": all}})
	if err != nil {
		return nil, err
	}
	return s.api(o).Patch(ctx, o.Ref.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
}

// live returns the current object, or nil if it is gone. For another UID the error is ErrStale.
func (s *Objects) live(ctx context.Context, o *infra.Object) (*unstructured.Unstructured, error) {
	live, err := s.api(o).Get(ctx, o.Ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", o.Ref, err)
	case string(live.GetUID()) != o.UID:
		return nil, fmt.Errorf("%s was deleted and created again: %w", o.Ref, infra.ErrStale)
	}
	return live, nil
}

// UpdateStatus writes the connection Secret before the object's status: a client that sees the resource ready
// finds the Secret.
func (s *Objects) UpdateStatus(ctx context.Context, o *infra.Object, result infra.ObjectStatus) error {
	if result.Secret != nil && result.SecretName != "" {
		if err := s.writeConnectionSecret(ctx, o, result); err != nil {
			return err
		}
	}
	var last error
	live := s.takeStored(o)
	for range maxAttempts {
		if live == nil {
			var err error
			if live, err = s.live(ctx, o); err != nil || live == nil {
				return err
			}
		}
		changed, err := s.setStatus(live, result)
		if err != nil {
			return fmt.Errorf("encode the status of %s: %w", o.Ref, err)
		}
		if !changed {
			return nil
		}
		live.SetManagedFields(nil) // keep the stored ones
		_, last = s.api(o).UpdateStatus(ctx, live, metav1.UpdateOptions{FieldManager: FieldManager})
		if apierrors.IsNotFound(last) {
			return nil
		}
		if !apierrors.IsConflict(last) {
			break
		}
		live = nil
	}
	if last != nil {
		return fmt.Errorf("write the status of %s: %w", o.Ref, last)
	}
	return nil
}

// setStatus updates the status of an object, and reports whether that changed anything.
func (s *Objects) setStatus(live *unstructured.Unstructured, result infra.ObjectStatus) (bool, error) {
	status, _, err := unstructured.NestedMap(live.Object, "status")
	if err != nil {
		status = nil // malformed; only this package writes it
	}
	before := runtime.DeepCopyJSON(status)
	if status == nil {
		status = map[string]any{}
	}
	if result.Attributes != nil {
		attributes, err := normalizeJSON(result.Attributes)
		if err != nil {
			return false, err
		}
		status["attributes"] = attributes
	}
	var current struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &current); err != nil {
		current.Conditions = nil
	}
	for _, c := range result.Conditions {
		next := controllers.Condition(c.Type, c.True, c.Reason, c.Message)
		next.LastTransitionTime = metav1.NewTime(s.clock.Now())
		next.ObservedGeneration = result.Generation
		if was := meta.FindStatusCondition(current.Conditions, c.Type); was != nil && result.Generation == 0 {
			next.ObservedGeneration = was.ObservedGeneration
		}
		meta.SetStatusCondition(&current.Conditions, next)
	}
	conditions, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&current)
	if err != nil {
		return false, err
	}
	if conditions["conditions"] != nil {
		status["conditions"] = conditions["conditions"]
	}
	live.Object["status"] = status
	return !reflect.DeepEqual(before, status), nil
}

// normalizeJSON returns a map with the types that decoded JSON has, so that numbers compare equal.
func normalizeJSON(m map[string]any) (map[string]any, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(slices.Concat([]byte(`{"apiVersion":"v1","kind":"Any","it":`), text, []byte("}"))); err != nil {
		return nil, err
	}
	out, _ := u.Object["it"].(map[string]any)
	return out, nil
}

// writeConnectionSecret writes sensitive attributes into the Secret that the object names.
func (s *Objects) writeConnectionSecret(ctx context.Context, o *infra.Object, result infra.ObjectStatus) error {
	secrets := s.kube.CoreV1().Secrets(o.Ref.Namespace)
	owner := metav1.NewControllerRef(&metav1.ObjectMeta{Name: o.Ref.Name, UID: types.UID(o.UID)},
		schema.GroupVersionKind{Group: o.Group, Version: v1alpha1.ProvidersVersion, Kind: o.Kind})
	// Deletion of the object waits for its resource, not for the Secret.
	owner.BlockOwnerDeletion = nil
	var last error
	for range maxAttempts {
		live, err := secrets.Get(ctx, result.SecretName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, last = secrets.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: result.SecretName, Namespace: o.Ref.Namespace, OwnerReferences: []metav1.OwnerReference{*owner}},
				Type:       corev1.SecretTypeOpaque, Data: result.Secret,
			}, metav1.CreateOptions{FieldManager: FieldManager})
		case err != nil:
			return fmt.Errorf("read Secret %s, named by spec.connection.secret of %s: %w", result.SecretName, o.Ref, err)
		case !metav1.IsControlledBy(live, &metav1.ObjectMeta{UID: types.UID(o.UID)}):
			return fmt.Errorf("spec.connection.secret of %s: Secret %s exists and belongs to another owner: choose another name or delete the Secret", o.Ref, result.SecretName)
		case maps.EqualFunc(live.Data, result.Secret, bytes.Equal):
			return nil
		default:
			live.Data = result.Secret
			_, last = secrets.Update(ctx, live, metav1.UpdateOptions{FieldManager: FieldManager})
		}
		if !apierrors.IsConflict(last) && !apierrors.IsAlreadyExists(last) && !apierrors.IsNotFound(last) {
			break
		}
	}
	if last != nil {
		return fmt.Errorf("write Secret %s, named by spec.connection.secret of %s: %w", result.SecretName, o.Ref, redacted(last))
	}
	return nil
}
