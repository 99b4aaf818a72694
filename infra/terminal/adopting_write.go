package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json" // which keeps whole numbers whole

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/adopt"
	"github.com/atoll-dev/atoll/infra/plan"
)

const (
	// adoptingAtOnce is how many resources are written at a time.
	adoptingAtOnce = 16
	// adoptTries is how often something is tried that a server which goes away may have refused.
	adoptTries = 5
	// adoptManager owns what is written of a state file.
	adoptManager = "atoll-import"
)

// adopter writes what is taken over: of each resource first the Secret, so that the object can be planned; then the object;
// then its state, which names the object by its UID. What is there of an earlier run stays as it is.
type adopter struct {
	*Session
	ctx  context.Context
	stop context.CancelFunc
	file *surveyed

	running *errgroup.Group
	within  context.Context
	meter   *meter
	done    atomic.Int64
	total   atomic.Int64
	// unshown says that statuses cannot be written: the user may not.
	unshown atomic.Bool
}

func newAdopter(ctx context.Context, s *Session, file *surveyed) *adopter {
	w := &adopter{Session: s, ctx: ctx, file: file, meter: s.meter()}
	stoppable, stop := context.WithCancel(ctx)
	w.stop = stop
	w.running, w.within = errgroup.WithContext(stoppable)
	w.running.SetLimit(adoptingAtOnce)
	return w
}

// take has one written, as soon as there is somebody to do it.
func (w *adopter) take(one *adopt.Adopted) error {
	if w.within.Err() != nil {
		return context.Cause(w.within)
	}
	w.running.Go(func() error {
		if err := w.write(w.within, one); err != nil {
			return fmt.Errorf("%s: %w", printable(one.Address), err)
		}
		w.done.Add(1)
		return nil
	})
	return nil
}

func (w *adopter) progress(_, total int) {
	w.total.Store(int64(total))
	w.meter.show("Taking over", v1alpha1.Progress{Done: w.done.Load(), Total: int64(total)})
}

// end waits for all that was begun.
func (w *adopter) end() error {
	err := w.running.Wait()
	w.stop()
	w.meter.end()
	if err == nil && w.unshown.Load() {
		w.tell("You may not write the status of objects: what they are like is in none until they are next changed.")
	}
	return err
}

func (w *adopter) write(ctx context.Context, one *adopt.Adopted) error {
	if err := w.secret(ctx, one); err != nil {
		return err
	}
	var object *unstructured.Unstructured
	if one.Object != nil {
		var err error
		if object, err = w.object(ctx, one); err != nil {
			return err
		}
	}
	if one.State == nil {
		return nil
	}
	fresh, err := w.state(ctx, one, object)
	if err != nil || object == nil {
		return err
	}
	if one.Secret != nil && len(one.Secret.Data) > 0 {
		if err := w.belongs(ctx, one, object); err != nil {
			return err
		}
	}
	if !fresh {
		return nil
	}
	return w.publish(ctx, one, object)
}

var secretResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// secret writes what is sensitive. What was added to it since an earlier run stays.
func (w *adopter) secret(ctx context.Context, one *adopt.Adopted) error {
	if one.Secret == nil || len(one.Secret.Data) == 0 {
		return nil
	}
	what := "the Secret " + one.Secret.Name
	api := w.Dynamic.Resource(secretResource).Namespace(w.Namespace)
	made := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: one.Secret.Name, Annotations: map[string]string{adopt.AddressAnnotation: one.Address}},
		Type:       corev1.SecretTypeOpaque, Data: one.Secret.Data,
	}
	u, err := wired(made)
	if err != nil {
		return err
	}
	_, err = w.tried(ctx, func() (*unstructured.Unstructured, error) {
		return api.Create(ctx, u, metav1.CreateOptions{FieldManager: adoptManager})
	})
	if !apierrors.IsAlreadyExists(err) {
		return worded("write "+what, err)
	}
	live, err := w.tried(ctx, func() (*unstructured.Unstructured, error) {
		return api.Get(ctx, one.Secret.Name, metav1.GetOptions{})
	})
	if err != nil {
		return worded("read "+what, err)
	}
	if live.GetAnnotations()[adopt.AddressAnnotation] != one.Address {
		return fmt.Errorf("there is %s already, which was not made of this file: delete it, or keep the two apart by --prefix", what)
	}
	is, err := typed[corev1.Secret](live)
	if err != nil {
		return err
	}
	if is.Data == nil {
		is.Data = map[string][]byte{}
	}
	missing := false
	for key, value := range one.Secret.Data {
		if !bytes.Equal(is.Data[key], value) {
			is.Data[key], missing = value, true
		}
	}
	if !missing {
		return nil
	}
	if u, err = wired(is); err != nil {
		return err
	}
	_, err = api.Update(ctx, u, metav1.UpdateOptions{FieldManager: adoptManager})
	return worded("complete "+what, err)
}

// belongs has the Secret go with its object.
func (w *adopter) belongs(ctx context.Context, one *adopt.Adopted, object *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName(), UID: object.GetUID(),
	}}}})
	if err != nil {
		return err
	}
	_, err = w.tried(ctx, func() (*unstructured.Unstructured, error) {
		return w.Dynamic.Resource(secretResource).Namespace(w.Namespace).Patch(ctx, one.Secret.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: adoptManager})
	})
	return worded("write the Secret "+one.Secret.Name, err)
}

// object writes the object, or gives the one that an earlier run has written.
func (w *adopter) object(ctx context.Context, one *adopt.Adopted) (*unstructured.Unstructured, error) {
	u, err := manifestOf(one, true)
	if err != nil {
		return nil, err
	}
	what := strings.ToLower(one.Object.Kind) + "/" + one.Object.Name
	api := w.Dynamic.Resource(kindName{one.Object.APIVersion, one.Object.Plural}.resource()).Namespace(w.Namespace)
	is, err := w.tried(ctx, func() (*unstructured.Unstructured, error) {
		return api.Create(ctx, u, metav1.CreateOptions{FieldManager: adoptManager})
	})
	if !apierrors.IsAlreadyExists(err) {
		return is, worded("write "+what, err)
	}
	is, err = w.tried(ctx, func() (*unstructured.Unstructured, error) { return api.Get(ctx, one.Object.Name, metav1.GetOptions{}) })
	if err != nil {
		return nil, worded("read "+what, err)
	}
	if is.GetAnnotations()[adopt.AddressAnnotation] != one.Address {
		return nil, fmt.Errorf("there is %s already, which was not made of this file: keep the two apart by --prefix", what)
	}
	return is, nil
}

// manifestOf is the object as it is written. With held it waits for its resource when it is deleted, which one for a file to keep
// need not say.
func manifestOf(one *adopt.Adopted, held bool) (*unstructured.Unstructured, error) {
	spec, err := plainMap(one.Object.Spec)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion(one.Object.APIVersion)
	u.SetKind(one.Object.Kind)
	u.SetName(one.Object.Name)
	u.SetNamespace(one.Object.Namespace)
	u.SetAnnotations(one.Object.Annotations)
	if held && one.State != nil {
		u.SetFinalizers([]string{infra.Finalizer})
	}
	return u, nil
}

// state writes what is known of the resource. It tells whether it was not there before.
func (w *adopter) state(ctx context.Context, one *adopt.Adopted, object *unstructured.Unstructured) (bool, error) {
	state := &v1alpha1.ResourceState{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "ResourceState"},
		ObjectMeta: metav1.ObjectMeta{Name: one.StateName, Annotations: maps.Clone(one.Annotations)}, Spec: *one.State,
	}
	if object != nil {
		var err error
		if state.Spec.Written, err = json.Marshal(object.Object["spec"]); err != nil {
			return false, err
		}
		state.Spec.Object.UID, state.Spec.Object.Generation = string(object.GetUID()), object.GetGeneration()
	}
	u, err := wired(state)
	if err != nil {
		return false, err
	}
	what := "the ResourceState " + one.StateName
	api := w.Dynamic.Resource(v1alpha1.ResourceStateResource).Namespace(w.Namespace)
	_, err = w.tried(ctx, func() (*unstructured.Unstructured, error) {
		return api.Create(ctx, u, metav1.CreateOptions{FieldManager: adoptManager})
	})
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		// Of a refusal only the kind of it: an answer of the API quotes what it was given.
		return false, fmt.Errorf("write %s: %s: whoever takes over a state file needs the right to create resourcestates.%s", what, apierrors.ReasonForError(err), v1alpha1.Group)
	}
	live, err := w.tried(ctx, func() (*unstructured.Unstructured, error) { return api.Get(ctx, one.StateName, metav1.GetOptions{}) })
	if err != nil {
		return false, worded("read "+what, err)
	}
	is, err := typed[v1alpha1.ResourceState](live)
	if err != nil {
		return false, err
	}
	if is.Spec.Object.UID != state.Spec.Object.UID {
		return false, fmt.Errorf("there is %s already, of another object: plan and apply what was deleted there, or keep the two apart by --prefix", what)
	}
	return false, nil
}

// publish shows in the object's status what the resource is like.
func (w *adopter) publish(ctx context.Context, one *adopt.Adopted, object *unstructured.Unstructured) error {
	if one.State.Current == nil || w.unshown.Load() {
		return nil
	}
	kind, known := w.file.kinds.whole[one.State.Type]
	if !known || one.State.Current.SchemaVersion != kind.Schema.Version {
		return nil // the next change shows it
	}
	v, err := ctyjson.Unmarshal(one.State.Current.Value, kind.Schema.Block.ImpliedType())
	if err != nil {
		return nil
	}
	status := map[string]any{}
	var hidden []cty.Path
	for _, text := range one.State.Current.Sensitive {
		path, err := plan.ParsePath(text)
		if err != nil {
			return nil // nothing is shown of what may be secret
		}
		hidden = append(hidden, path)
	}
	if status["attributes"], err = plainMap(kind.Attributes(v, hidden)); err != nil {
		return err
	}
	condition := metav1.Condition{
		Type: infra.ConditionReady, Status: metav1.ConditionTrue, Reason: "TakenOver", Message: "It was taken over from a state file.",
		LastTransitionTime: metav1.NewTime(w.Clock.Now()), ObservedGeneration: object.GetGeneration(),
	}
	if one.State.Current.Tainted {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "MadeInPart", "The resource was created only in part: plan and apply to replace it."
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
	if err != nil {
		return err
	}
	status["conditions"] = []any{fields}
	object.Object["status"] = status
	api := w.Dynamic.Resource(kindName{one.Object.APIVersion, one.Object.Plural}.resource()).Namespace(w.Namespace)
	_, err = w.tried(ctx, func() (*unstructured.Unstructured, error) {
		return api.UpdateStatus(ctx, object, metav1.UpdateOptions{FieldManager: adoptManager})
	})
	switch {
	case apierrors.IsForbidden(err):
		w.unshown.Store(true)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // somebody else was there meanwhile
	}
	return worded("write the status of "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
}

// tried does it again if a server is just going away.
func (w *adopter) tried(ctx context.Context, do func() (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	for attempt := 0; ; attempt++ {
		u, err := do()
		if err == nil || attempt+1 >= adoptTries || !transient(err) || ctx.Err() != nil {
			return u, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-w.Clock.After(min(w.Every, time.Second<<attempt)):
		}
	}
}

// worded says what was done when the API refused.
func worded(doing string, err error) error {
	if err == nil {
		return nil
	}
	// An answer about a Secret may quote what is in it.
	var status apierrors.APIStatus
	if errors.As(err, &status) && strings.Contains(doing, "Secret ") && apierrors.IsInvalid(err) {
		return fmt.Errorf("%s: the API finds it invalid: its keys have to be of letters, digits, dots, dashes and underscores, and it has to be smaller than 1 MiB", doing)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// wired is an object as it is sent.
func wired(object any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// plainMap is a map as JSON has it.
func plainMap(m map[string]any) (map[string]any, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	return out, json.Unmarshal(text, &out)
}
