package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

func serviceResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "services"}
}

func sliceResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
}

// mark sets the mark of the binding of a Service, or removes it with "". Syncers report its endpoints while it has one.
func (c *controller) mark(ctx context.Context, b *v1alpha1.ResourceBinding, export string) error {
	if b.Annotations[v1alpha1.ExportedAnnotation] == export {
		return nil
	}
	var value any
	if export != "" {
		value = export
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": b.UID, "annotations": map[string]any{v1alpha1.ExportedAnnotation: value}}})
	if err != nil {
		return err
	}
	if _, err := c.BindingAPI(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
		return fmt.Errorf("mark binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

// writeImport writes the derived Service and the ServiceImport with its status.
func (c *controller) writeImport(ctx context.Context, export *mcsv1beta1.ServiceExport, facts multicluster.Facts) error {
	merged := facts.Import()
	if err := c.writeDerived(ctx, merged.DerivedService(facts.Source)); err != nil {
		return err
	}
	imported := merged.ServiceImport(facts.Source, export.Spec, c.addresses(facts.Source.NamespacedName))
	now, exists := c.imports.Get(facts.Source.String())
	if !exists || !sameImport(now, imported) {
		if err := c.apply(ctx, multicluster.ImportResource(), imported.Name, export.Namespace, imported); err != nil {
			return err
		}
	}
	status := facts.ImportStatus()
	var before []metav1.Condition
	if exists {
		before = now.Status.Conditions
	}
	c.stamp(status.Conditions, before, 0)
	if exists && equality.Semantic.DeepEqual(now.Status, status) {
		return nil
	}
	return c.applyStatus(ctx, multicluster.ImportResource(), mcsv1beta1.ServiceImportKindName, facts.Source.NamespacedName, &status)
}

// writeDerived writes the derived Service. One that becomes headless, or ceases to be, is made again, because its address
// cannot be changed.
func (c *controller) writeDerived(ctx context.Context, desired *corev1.Service) error {
	if u, exists := c.Objects.Get(serviceKind(), types.NamespacedName{Namespace: desired.Namespace, Name: desired.Name}); exists {
		now, err := decodeService(u)
		if err != nil {
			return err
		}
		if (now.Spec.ClusterIP == corev1.ClusterIPNone) != (desired.Spec.ClusterIP == corev1.ClusterIPNone) {
			return c.delete(ctx, serviceResource(), now) // its deletion causes another call
		}
		if sameDerived(now, desired) {
			return nil
		}
	}
	return c.apply(ctx, serviceResource(), desired.Name, desired.Namespace, desired)
}

// sameDerived compares the fields that a derived Service has; the API server sets the others.
func sameDerived(is, desired *corev1.Service) bool {
	fields := func(s *corev1.Service) corev1.ServiceSpec {
		out := corev1.ServiceSpec{Selector: s.Spec.Selector, Type: s.Spec.Type, SessionAffinity: s.Spec.SessionAffinity,
			SessionAffinityConfig: s.Spec.SessionAffinityConfig, TrafficDistribution: s.Spec.TrafficDistribution}
		for _, p := range s.Spec.Ports {
			out.Ports = append(out.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
		}
		return out
	}
	return equality.Semantic.DeepEqual(fields(is), fields(desired)) && equality.Semantic.DeepEqual(is.Labels, desired.Labels) &&
		equality.Semantic.DeepEqual(is.OwnerReferences, desired.OwnerReferences)
}

func sameImport(is, desired *mcsv1beta1.ServiceImport) bool {
	return equality.Semantic.DeepEqual(is.Spec, desired.Spec) && equality.Semantic.DeepEqual(is.Labels, desired.Labels) &&
		equality.Semantic.DeepEqual(is.Annotations, desired.Annotations) && equality.Semantic.DeepEqual(is.OwnerReferences, desired.OwnerReferences)
}

// apply writes an object by server-side apply. The API server writes nothing if it is so already.
func (c *controller) apply(ctx context.Context, gvr schema.GroupVersionResource, name, namespace string, obj any) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return fmt.Errorf("encode %s %s/%s: %w", gvr.Resource, namespace, name, err)
	}
	delete(fields, "status")
	if spec, ok := fields["spec"].(map[string]any); ok && spec["ports"] == nil {
		spec["ports"] = []any{}
	}
	if _, err := c.Dynamic.Resource(gvr).Namespace(namespace).
		Apply(ctx, name, &unstructured.Unstructured{Object: fields}, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("write %s %s/%s: %w", gvr.Resource, namespace, name, err)
	}
	return nil
}

func (c *controller) applyStatus(ctx context.Context, gvr schema.GroupVersionResource, kind string, key types.NamespacedName, status any) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("encode the status of %s %s: %w", kind, key, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name}, "status": fields}}
	if err := fleet.ApplyStatus(ctx, c.Dynamic.Resource(gvr).Namespace(key.Namespace), apply, FieldManager); err != nil {
		return fmt.Errorf("write the status of %s %s: %w", kind, key, err)
	}
	return nil
}

// stamp sets the times and generations of conditions.
func (c *controller) stamp(conditions, before []metav1.Condition, generation int64) {
	for i := range conditions {
		one := &conditions[i]
		one.LastTransitionTime, one.ObservedGeneration = metav1.NewTime(c.Clock.Now().Truncate(1e9)), generation
		if was := apimeta.FindStatusCondition(before, one.Type); was != nil && was.Status == one.Status {
			one.LastTransitionTime = was.LastTransitionTime
		}
	}
}

func (c *controller) writeConditions(ctx context.Context, export *mcsv1beta1.ServiceExport, facts multicluster.Facts) error {
	status := mcsv1beta1.ServiceExportStatus{Conditions: facts.Conditions()}
	c.stamp(status.Conditions, export.Status.Conditions, export.Generation)
	if equality.Semantic.DeepEqual(export.Status, status) {
		return nil
	}
	return c.applyStatus(ctx, multicluster.ExportResource(), mcsv1beta1.ServiceExportKindName, facts.Source.NamespacedName, &status)
}

// deleteLeft deletes the EndpointSlices of clusters that do not export a Service any more. Those of a cluster that cannot be
// reached stay until others have taken over.
func (c *controller) deleteLeft(ctx context.Context, key types.NamespacedName, b *v1alpha1.ResourceBinding) error {
	var left []metav1.Object
	for _, slice := range c.slices(key) {
		if !multicluster.Exports(b, slice.GetLabels()[mcsv1beta1.LabelSourceCluster]) {
			left = append(left, slice)
		}
	}
	if len(left) == 0 {
		return nil
	}
	now, err := c.LiveBinding(ctx, b.Key())
	if err != nil || now == nil || now.UID != b.UID {
		return err
	}
	var errs []error
	for _, slice := range left {
		if !multicluster.Exports(now, slice.GetLabels()[mcsv1beta1.LabelSourceCluster]) {
			errs = append(errs, c.delete(ctx, sliceResource(), slice))
		}
	}
	return errors.Join(errs...)
}

// withdraw removes everything that was made of a ServiceExport, and the mark of the binding.
func (c *controller) withdraw(ctx context.Context, key types.NamespacedName) error {
	var errs []error
	if b, ok := c.Bindings.Get(types.NamespacedName{Namespace: key.Namespace, Name: v1alpha1.BindingName(serviceKind(), key.Name)}); ok {
		errs = append(errs, c.mark(ctx, b, ""))
	}
	if imported, ok := c.imports.Get(key.String()); ok && ours(imported, key) {
		errs = append(errs, c.delete(ctx, multicluster.ImportResource(), imported))
	}
	name := types.NamespacedName{Namespace: key.Namespace, Name: multicluster.DerivedName(key.Namespace, key.Name)}
	if derived, ok := c.Objects.Metadata(serviceKind(), name); ok && ours(derived, key) {
		errs = append(errs, c.delete(ctx, serviceResource(), derived))
	}
	for _, slice := range c.slices(key) {
		errs = append(errs, c.delete(ctx, sliceResource(), slice))
	}
	return errors.Join(errs...)
}

func (c *controller) delete(ctx context.Context, gvr schema.GroupVersionResource, obj metav1.Object) error {
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	uid := obj.GetUID()
	err := c.Dynamic.Resource(gvr).Namespace(obj.GetNamespace()).
		Delete(ctx, obj.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %s/%s: %w", gvr.Resource, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}
