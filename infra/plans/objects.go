package plans

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
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
	"github.com/atoll-dev/atoll/infra"
)

// objectStore writes back to objects of providers' kinds.
type objectStore struct {
	dynamic dynamic.Interface
	kube    kubernetes.Interface
	clock   clock.PassiveClock

	// held are objects as they were stored when they were held, by UID: whoever holds one will publish what became of
	// it, and need not read it again for that.
	mu   sync.Mutex
	held map[string]*unstructured.Unstructured
}

// mostHeld is of how many objects that is kept.
const mostHeld = 256

func (s *objectStore) keep(stored *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil || len(s.held) >= mostHeld {
		s.held = map[string]*unstructured.Unstructured{} // those that failed, and were never published, go with the others
	}
	s.held[string(stored.GetUID())] = stored
}

func (s *objectStore) kept(o *infra.Object) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := s.held[o.UID]
	delete(s.held, o.UID)
	return stored
}

func (s *objectStore) api(o *infra.Object) dynamic.ResourceInterface {
	gvr := schema.GroupVersionResource{Group: o.Group, Version: v1alpha1.ProvidersVersion, Resource: o.Plural}
	return s.dynamic.Resource(gvr).Namespace(o.Ref.Namespace)
}

func (s *objectStore) AddFinalizer(ctx context.Context, o *infra.Object) error {
	if o.NoFinalizers && o.ResourceVersion != "" {
		// It is as it was seen last, as a rule.
		stored, err := s.finalizers(ctx, o, o.UID, o.ResourceVersion, []string{infra.Finalizer})
		if err == nil {
			s.keep(stored)
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("write the finalizer %s of %s: %w", infra.Finalizer, o.Ref, err)
		}
	}
	return s.finalize(ctx, o, func(live *unstructured.Unstructured) (bool, error) {
		switch {
		case live == nil:
			return false, fmt.Errorf("%s is gone: %w", o.Ref, infra.ErrStale)
		case live.GetGeneration() != o.Generation:
			return false, fmt.Errorf("%s was written again: %w", o.Ref, infra.ErrStale)
		case slices.Contains(live.GetFinalizers(), infra.Finalizer):
			return false, nil
		case live.GetDeletionTimestamp() != nil:
			return false, fmt.Errorf("%s is being deleted: %w", o.Ref, infra.ErrStale)
		}
		live.SetFinalizers(append(live.GetFinalizers(), infra.Finalizer))
		return true, nil
	})
}

func (s *objectStore) RemoveFinalizer(ctx context.Context, o *infra.Object) error {
	return s.finalize(ctx, o, func(live *unstructured.Unstructured) (bool, error) {
		if live == nil || !slices.Contains(live.GetFinalizers(), infra.Finalizer) {
			return false, nil
		}
		live.SetFinalizers(slices.DeleteFunc(live.GetFinalizers(), func(f string) bool { return f == infra.Finalizer }))
		return true, nil
	})
}

// finalize changes the finalizers of the object as it is, or does nothing. What is gone is nil.
func (s *objectStore) finalize(ctx context.Context, o *infra.Object, change func(*unstructured.Unstructured) (bool, error)) error {
	var last error
	for range attempts {
		live, err := s.live(ctx, o)
		if err != nil {
			return err
		}
		if write, err := change(live); err != nil || !write {
			return err
		}
		_, last = s.finalizers(ctx, o, string(live.GetUID()), live.GetResourceVersion(), live.GetFinalizers())
		if !apierrors.IsConflict(last) && !apierrors.IsNotFound(last) {
			break
		}
	}
	if last != nil {
		return fmt.Errorf("write the finalizer %s of %s: %w", infra.Finalizer, o.Ref, last)
	}
	return nil
}

// finalizers writes those of an object that is as it was at a resourceVersion, and gives what is stored then.
func (s *objectStore) finalizers(ctx context.Context, o *infra.Object, uid, resourceVersion string, all []string) (*unstructured.Unstructured, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "resourceVersion": resourceVersion, "finalizers": all}})
	if err != nil {
		return nil, err
	}
	return s.api(o).Patch(ctx, o.Ref.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
}

// live gives the object as it is now, or nil if it is gone. Of another UID it is ErrMoved.
func (s *objectStore) live(ctx context.Context, o *infra.Object) (*unstructured.Unstructured, error) {
	live, err := s.api(o).Get(ctx, o.Ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", o.Ref, err)
	case string(live.GetUID()) != o.UID:
		return nil, fmt.Errorf("%s was deleted and made anew: %w", o.Ref, infra.ErrStale)
	}
	return live, nil
}

// Publish writes the Secret first: who sees that the resource is ready finds it.
func (s *objectStore) UpdateStatus(ctx context.Context, o *infra.Object, what infra.ObjectStatus) error {
	if what.Secret != nil && what.SecretName != "" {
		if err := s.connect(ctx, o, what); err != nil {
			return err
		}
	}
	var last error
	live := s.kept(o)
	for range attempts {
		if live == nil {
			var err error
			if live, err = s.live(ctx, o); err != nil || live == nil {
				return err
			}
		}
		changed, err := s.show(live, what)
		if err != nil {
			return fmt.Errorf("the status of %s: %w", o.Ref, err)
		}
		if !changed {
			return nil
		}
		live.SetManagedFields(nil) // they stay as they are stored
		_, last = s.api(o).UpdateStatus(ctx, live, metav1.UpdateOptions{FieldManager: manager})
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

// show changes the status of an object, and tells whether that changed anything.
func (s *objectStore) show(live *unstructured.Unstructured, what infra.ObjectStatus) (bool, error) {
	status, _, err := unstructured.NestedMap(live.Object, "status")
	if err != nil {
		status = nil // which nobody but us writes
	}
	before := runtime.DeepCopyJSON(status)
	if status == nil {
		status = map[string]any{}
	}
	if what.Attributes != nil {
		attributes, err := jsonMap(what.Attributes)
		if err != nil {
			return false, err
		}
		status["attributes"] = attributes
	}
	var held struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &held); err != nil {
		held.Conditions = nil
	}
	for _, c := range what.Conditions {
		next := condition(c.Type, c.True, c.Reason, c.Message)
		next.LastTransitionTime = metav1.NewTime(s.clock.Now())
		next.ObservedGeneration = what.Generation
		if was := meta.FindStatusCondition(held.Conditions, c.Type); was != nil && what.Generation == 0 {
			next.ObservedGeneration = was.ObservedGeneration
		}
		meta.SetStatusCondition(&held.Conditions, next)
	}
	conditions, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&held)
	if err != nil {
		return false, err
	}
	if conditions["conditions"] != nil {
		status["conditions"] = conditions["conditions"]
	}
	live.Object["status"] = status
	return !reflect.DeepEqual(before, status), nil
}

// jsonMap is a map as JSON has it: numbers that are the same whoever made them.
func jsonMap(m map[string]any) (map[string]any, error) {
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

// condition is one as the API has it. A reason is needed, and a message may not be of any length.
func condition(kind string, is bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: short(message)}
}

// short is a text that is not longer than conditions may have.
func short(message string) string {
	const longest = 32 << 10
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest-len("…")], "") + "…"
}

// connect writes what is sensitive into the Secret that the object names.
func (s *objectStore) connect(ctx context.Context, o *infra.Object, what infra.ObjectStatus) error {
	secrets := s.kube.CoreV1().Secrets(o.Ref.Namespace)
	owner := metav1.NewControllerRef(&metav1.ObjectMeta{Name: o.Ref.Name, UID: types.UID(o.UID)},
		schema.GroupVersionKind{Group: o.Group, Version: v1alpha1.ProvidersVersion, Kind: o.Kind})
	// Whoever deletes the object waits for its resource, not for the Secret.
	owner.BlockOwnerDeletion = nil
	var last error
	for range attempts {
		live, err := secrets.Get(ctx, what.SecretName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, last = secrets.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: what.SecretName, Namespace: o.Ref.Namespace, OwnerReferences: []metav1.OwnerReference{*owner}},
				Type:       corev1.SecretTypeOpaque, Data: what.Secret,
			}, metav1.CreateOptions{FieldManager: manager})
		case err != nil:
			return fmt.Errorf("read the Secret %s, which spec.connection.secret of %s names: %w", what.SecretName, o.Ref, err)
		case !metav1.IsControlledBy(live, &metav1.ObjectMeta{UID: types.UID(o.UID)}):
			return fmt.Errorf("spec.connection.secret of %s: there is a Secret %s already, which is not its own: name another, or delete that one", o.Ref, what.SecretName)
		case maps.EqualFunc(live.Data, what.Secret, bytes.Equal):
			return nil
		default:
			live.Data = what.Secret
			_, last = secrets.Update(ctx, live, metav1.UpdateOptions{FieldManager: manager})
		}
		if !apierrors.IsConflict(last) && !apierrors.IsAlreadyExists(last) && !apierrors.IsNotFound(last) {
			break
		}
	}
	if last != nil {
		return fmt.Errorf("write the Secret %s, which spec.connection.secret of %s names: %w", what.SecretName, o.Ref, discreet(last))
	}
	return nil
}
