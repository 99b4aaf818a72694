package status

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// records holds the ControllerRevisions that this controller wrote. ReplicaSets are a kind of the
// fleet, so the session has a cache of them.
type records struct {
	controllers.Cache[unstructured.Unstructured]
}

func newRecords(client dynamic.Interface) *records {
	return &records{controllers.NewCache[unstructured.Unstructured](client, controllerRevisions(), controllers.CacheOptions{
		Transform: func(obj any) (any, error) {
			if u, ok := obj.(*unstructured.Unstructured); ok {
				u.SetManagedFields(nil)
			}
			return obj, nil
		},
		Select: func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.RevisionLabel },
	})}
}

func controllerRevisions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "controllerrevisions"}
}

// listenToRecords requeues the workload whose record is deleted or edited.
func (c *controller) listenToRecords() error {
	return c.records.OnChange(func(was, is *unstructured.Unstructured) {
		var before, after metav1.Object // an interface with a nil pointer is not nil
		if was != nil {
			before = was
		}
		if is != nil {
			after = is
		}
		if owner, changed := recordChanged(before, after); changed {
			c.queue.AddAfter(owner, batchWindow)
		}
	})
}

// runRecords fills the cache of ControllerRevisions and keeps it up to date until ctx ends.
func (c *controller) runRecords(ctx context.Context) error {
	c.records.Informer.RunWithContext(ctx)
	return nil
}

// awaitRecords returns when the cache is filled: an empty cache would give each workload a new
// revision.
func (c *controller) awaitRecords(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), c.records.Informer.HasSynced)
}

// recordChanged returns the binding of the workload whose record somebody may have deleted or edited.
func recordChanged(was, is metav1.Object) (binding types.NamespacedName, changed bool) {
	if was == nil || was.GetLabels()[v1alpha1.RevisionLabel] == "" || is != nil && is.GetGeneration() == was.GetGeneration() {
		return types.NamespacedName{}, false
	}
	owner := metav1.GetControllerOfNoCopy(was)
	if owner == nil {
		return types.NamespacedName{}, false
	}
	gk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	return types.NamespacedName{Namespace: was.GetNamespace(), Name: v1alpha1.BindingName(gk, owner.Name)}, true
}

// recordHistory writes the records of a workload's templates, and the number of the current one into
// a Deployment's annotation. status is the aggregated status of the workload.
func (c *controller) recordHistory(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, status map[string]any) error {
	kind, has := k.HistoryKind()
	if !has || obj.GetDeletionTimestamp() != nil {
		return nil
	}
	api, existing, taken := c.existingRecords(kind, obj)
	if api == nil {
		return nil
	}
	recorded, err := k.History(obj, status, existing, taken)
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range recorded.Write {
		errs = append(errs, writeRecord(ctx, api, record, existing))
	}
	for _, name := range recorded.Delete {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete the record %s/%s: %w", obj.GetNamespace(), name, err))
		}
	}
	if revision := strconv.FormatInt(recorded.Revision, 10); k.Kind == "Deployment" && recorded.Revision > 0 && obj.GetAnnotations()[interpret.RevisionAnnotation] != revision {
		errs = append(errs, c.writeRevision(ctx, k, obj, revision))
	}
	return errors.Join(errs...)
}

// existingRecords returns the records of a workload, and whether another object has a name. A record
// whose workload was deleted without it is taken over by a workload of the same name.
func (c *controller) existingRecords(kind schema.GroupVersionKind, obj *unstructured.Unstructured) (dynamic.ResourceInterface, []*unstructured.Unstructured, func(string) bool) {
	mine := func(o metav1.Object) bool {
		owner := metav1.GetControllerOfNoCopy(o)
		if owner == nil {
			return o.GetLabels()[v1alpha1.RevisionLabel] != "" && strings.HasPrefix(o.GetName(), obj.GetName()+"-")
		}
		return owner.UID == obj.GetUID()
	}
	if kind.Kind == "ControllerRevision" {
		if c.records == nil {
			return nil, nil, nil
		}
		var existing []*unstructured.Unstructured
		for _, record := range c.records.In(obj.GetNamespace()) {
			if mine(record) {
				existing = append(existing, record)
			}
		}
		taken := func(name string) bool {
			o, found := c.records.Get(controllers.CacheKey(types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}))
			return found && !mine(o)
		}
		return c.Dynamic.Resource(controllerRevisions()).Namespace(obj.GetNamespace()), existing, taken
	}
	k, served := c.Kinds.Get(kind.GroupKind())
	if !served {
		return nil, nil, nil
	}
	var existing []*unstructured.Unstructured
	for o := range c.Objects.AllMetadata(kind.GroupKind(), obj.GetNamespace()) {
		if !mine(o) {
			continue
		}
		if record, found := c.Objects.Get(kind.GroupKind(), types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}); found {
			existing = append(existing, record)
		}
	}
	taken := func(name string) bool {
		o, found := c.Objects.Metadata(kind.GroupKind(), types.NamespacedName{Namespace: obj.GetNamespace(), Name: name})
		return found && !mine(o)
	}
	return c.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()), existing, taken
}

// writeRecord applies a record, and its status if it has one.
func writeRecord(ctx context.Context, api dynamic.ResourceInterface, record *unstructured.Unstructured, existing []*unstructured.Unstructured) error {
	fail := func(err error) error {
		return fmt.Errorf("write %s %s/%s: %w", record.GetKind(), record.GetNamespace(), record.GetName(), err)
	}
	status, hasStatus := record.Object["status"].(map[string]any)
	var was *unstructured.Unstructured
	for _, e := range existing {
		if e.GetName() == record.GetName() {
			was = e
		}
	}
	generation := int64(0)
	if was == nil || !sameRecord(was, record) {
		desired := record.DeepCopy()
		delete(desired.Object, "status")
		desired.SetResourceVersion("")
		desired.SetManagedFields(nil)
		desired.SetGeneration(0)
		unstructured.RemoveNestedField(desired.Object, "metadata", "creationTimestamp")
		if was == nil {
			desired.SetUID("")
		}
		is, err := api.Apply(ctx, record.GetName(), desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if err != nil {
			return fail(err)
		}
		generation = is.GetGeneration()
	} else {
		generation = was.GetGeneration()
	}
	if !hasStatus {
		return nil
	}
	status["observedGeneration"] = generation
	err := fleet.ApplyStatus(ctx, api, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": record.GetAPIVersion(), "kind": record.GetKind(),
		"metadata": map[string]any{"name": record.GetName(), "namespace": record.GetNamespace()},
		"status":   status,
	}}, FieldManager)
	if err != nil {
		return fail(err)
	}
	return nil
}

// sameRecord reports whether two records differ in their status only.
func sameRecord(a, b *unstructured.Unstructured) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	delete(a.Object, "status")
	delete(b.Object, "status")
	return sameJSON(a.Object, b.Object)
}

// writeRevision applies the number of a Deployment's template as its annotation.
func (c *controller) writeRevision(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, revision string) error {
	metadata := identity(obj)
	metadata["annotations"] = map[string]any{interpret.RevisionAnnotation: revision}
	apply := &unstructured.Unstructured{Object: map[string]any{"apiVersion": k.GroupVersion().String(), "kind": k.GroupVersionKind.Kind, "metadata": metadata}}
	_, err := c.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()).Apply(ctx, obj.GetName(), apply, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("write the revision of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}
