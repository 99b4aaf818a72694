package cliview

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
	"k8s.io/apimachinery/pkg/util/json" // decodes integers as integers
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/statefile"
)

const (
	// importConcurrency is how many resources are written concurrently.
	importConcurrency = 16
	// importAttempts is how often a request is attempted if the server is going away.
	importAttempts = 5
	// importManager is the field manager of imported objects.
	importManager = "atoll-import"
)

// importer writes imported resources: for each first its Secret, so that the object can be planned; then the
// object; then its state, which has the object's UID. Objects of an earlier run are left unchanged.
type importer struct {
	*Session
	ctx  context.Context
	stop context.CancelFunc
	file *stateFile

	running *errgroup.Group
	within  context.Context
	meter   *meter
	done    atomic.Int64
	total   atomic.Int64
	// statusForbidden is true if the user may not write statuses.
	statusForbidden atomic.Bool
}

func newImporter(ctx context.Context, s *Session, file *stateFile) *importer {
	w := &importer{Session: s, ctx: ctx, file: file, meter: s.meter()}
	stoppable, stop := context.WithCancel(ctx)
	w.stop = stop
	w.running, w.within = errgroup.WithContext(stoppable)
	w.running.SetLimit(importConcurrency)
	return w
}

// submit writes a resource as soon as a worker is free.
func (w *importer) submit(one *statefile.Adopted) error {
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

func (w *importer) progress(_, total int) {
	w.total.Store(int64(total))
	w.meter.show("Importing", v1alpha1.Progress{Done: w.done.Load(), Total: int64(total)})
}

// wait waits for all writes.
func (w *importer) wait() error {
	err := w.running.Wait()
	w.stop()
	w.meter.end()
	if err == nil && w.statusForbidden.Load() {
		w.infof("You may not write the status of objects: their attributes appear after their next change.")
	}
	return err
}

func (w *importer) write(ctx context.Context, one *statefile.Adopted) error {
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
		if err := w.setOwner(ctx, one, object); err != nil {
			return err
		}
	}
	if !fresh {
		return nil
	}
	return w.publish(ctx, one, object)
}

var secretResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// secret writes the Secret with sensitive values. Keys that were added since an earlier run remain.
func (w *importer) secret(ctx context.Context, one *statefile.Adopted) error {
	if one.Secret == nil || len(one.Secret.Data) == 0 {
		return nil
	}
	what := "Secret " + one.Secret.Name
	api := w.Dynamic.Resource(secretResource).Namespace(w.Namespace)
	made := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: one.Secret.Name, Annotations: map[string]string{statefile.AddressAnnotation: one.Address}},
		Type:       corev1.SecretTypeOpaque, Data: one.Secret.Data,
	}
	u, err := toUnstructured(made)
	if err != nil {
		return err
	}
	_, err = w.retry(ctx, func() (*unstructured.Unstructured, error) {
		return api.Create(ctx, u, metav1.CreateOptions{FieldManager: importManager})
	})
	if !apierrors.IsAlreadyExists(err) {
		return wrapError("write "+what, err)
	}
	live, err := w.retry(ctx, func() (*unstructured.Unstructured, error) {
		return api.Get(ctx, one.Secret.Name, metav1.GetOptions{})
	})
	if err != nil {
		return wrapError("read "+what, err)
	}
	if live.GetAnnotations()[statefile.AddressAnnotation] != one.Address {
		return fmt.Errorf("%s already exists and was not imported from this file: delete it, or use --prefix", what)
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
	if u, err = toUnstructured(is); err != nil {
		return err
	}
	_, err = api.Update(ctx, u, metav1.UpdateOptions{FieldManager: importManager})
	return wrapError("complete "+what, err)
}

// setOwner makes the object own the Secret, so that they are deleted together.
func (w *importer) setOwner(ctx context.Context, one *statefile.Adopted, object *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName(), UID: object.GetUID(),
	}}}})
	if err != nil {
		return err
	}
	_, err = w.retry(ctx, func() (*unstructured.Unstructured, error) {
		return w.Dynamic.Resource(secretResource).Namespace(w.Namespace).Patch(ctx, one.Secret.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: importManager})
	})
	return wrapError("write Secret "+one.Secret.Name, err)
}

// object creates the object, or returns the one of an earlier run.
func (w *importer) object(ctx context.Context, one *statefile.Adopted) (*unstructured.Unstructured, error) {
	u, err := manifestOf(one, true)
	if err != nil {
		return nil, err
	}
	what := strings.ToLower(one.Object.Kind) + "/" + one.Object.Name
	api := w.Dynamic.Resource(kindName{one.Object.APIVersion, one.Object.Plural}.resource()).Namespace(w.Namespace)
	is, err := w.retry(ctx, func() (*unstructured.Unstructured, error) {
		return api.Create(ctx, u, metav1.CreateOptions{FieldManager: importManager})
	})
	if !apierrors.IsAlreadyExists(err) {
		return is, wrapError("write "+what, err)
	}
	is, err = w.retry(ctx, func() (*unstructured.Unstructured, error) { return api.Get(ctx, one.Object.Name, metav1.GetOptions{}) })
	if err != nil {
		return nil, wrapError("read "+what, err)
	}
	if is.GetAnnotations()[statefile.AddressAnnotation] != one.Address {
		return nil, fmt.Errorf("%s already exists and was not imported from this file: use --prefix", what)
	}
	return is, nil
}

// manifestOf returns the object to write. With held it has the finalizer that keeps it until its resource is
// deleted, which a manifest file does not need.
func manifestOf(one *statefile.Adopted, held bool) (*unstructured.Unstructured, error) {
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

// state writes the state of the resource, and reports whether it did not exist before.
func (w *importer) state(ctx context.Context, one *statefile.Adopted, object *unstructured.Unstructured) (bool, error) {
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
	u, err := toUnstructured(state)
	if err != nil {
		return false, err
	}
	what := "ResourceState " + one.StateName
	api := w.Dynamic.Resource(v1alpha1.ResourceStateResource).Namespace(w.Namespace)
	_, err = w.retry(ctx, func() (*unstructured.Unstructured, error) {
		return api.Create(ctx, u, metav1.CreateOptions{FieldManager: importManager})
	})
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		// Report only the reason of the rejection: the API's message quotes the request.
		return false, fmt.Errorf("write %s: %s: importing a state file requires the right to create resourcestates.%s", what, apierrors.ReasonForError(err), v1alpha1.Group)
	}
	live, err := w.retry(ctx, func() (*unstructured.Unstructured, error) { return api.Get(ctx, one.StateName, metav1.GetOptions{}) })
	if err != nil {
		return false, wrapError("read "+what, err)
	}
	is, err := typed[v1alpha1.ResourceState](live)
	if err != nil {
		return false, err
	}
	if is.Spec.Object.UID != state.Spec.Object.UID {
		return false, fmt.Errorf("%s already exists for another object: plan and apply its deletion, or use --prefix", what)
	}
	return false, nil
}

// publish writes the resource's attributes into the object's status.
func (w *importer) publish(ctx context.Context, one *statefile.Adopted, object *unstructured.Unstructured) error {
	if one.State.Current == nil || w.statusForbidden.Load() {
		return nil
	}
	kind, known := w.file.kinds.whole[one.State.Type]
	if !known || one.State.Current.SchemaVersion != kind.Schema.Version {
		return nil // the next change publishes it
	}
	v, err := ctyjson.Unmarshal(one.State.Current.Value, kind.Schema.Block.ImpliedType())
	if err != nil {
		return nil
	}
	status := map[string]any{}
	var hidden []cty.Path
	for _, text := range one.State.Current.Sensitive {
		path, err := providerapi.ParsePath(text)
		if err != nil {
			return nil // show nothing that may be secret
		}
		hidden = append(hidden, path)
	}
	if status["attributes"], err = plainMap(kind.Attributes(v, hidden)); err != nil {
		return err
	}
	condition := metav1.Condition{
		Type: infra.ConditionReady, Status: metav1.ConditionTrue, Reason: "TakenOver", Message: "The resource was imported from a state file.",
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
	_, err = w.retry(ctx, func() (*unstructured.Unstructured, error) {
		return api.UpdateStatus(ctx, object, metav1.UpdateOptions{FieldManager: importManager})
	})
	switch {
	case apierrors.IsForbidden(err):
		w.statusForbidden.Store(true)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // another client changed it meanwhile
	}
	return wrapError("write the status of "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
}

// retry repeats a request while a server is going away.
func (w *importer) retry(ctx context.Context, do func() (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	pause := wait.Backoff{Duration: min(time.Second, w.PollInterval), Factor: 2, Steps: importAttempts, Cap: w.PollInterval}
	for attempt := 1; ; attempt++ {
		u, err := do()
		if err == nil || attempt >= importAttempts || !transient(err) || ctx.Err() != nil {
			return u, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-w.Clock.After(pause.Step()):
		}
	}
}

// wrapError adds the failed operation to an error of the API.
func wrapError(doing string, err error) error {
	if err == nil {
		return nil
	}
	// The API's message about a Secret may quote its contents.
	var status apierrors.APIStatus
	if errors.As(err, &status) && strings.Contains(doing, "Secret ") && apierrors.IsInvalid(err) {
		return fmt.Errorf("%s: the API rejected it as invalid: keys consist of letters, digits, dots, dashes and underscores, and the Secret must be smaller than 1 MiB", doing)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// toUnstructured converts a typed object.
func toUnstructured(object any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// plainMap returns a map with the types that decoded JSON has.
func plainMap(m map[string]any) (map[string]any, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	return out, json.Unmarshal(text, &out)
}
