package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/fleet/override"
)

// reconcile brings everything that is made of a ServiceExport in line with it.
func (c *controller) reconcile(ctx context.Context, key types.NamespacedName) error {
	export, exists := c.exports.Get(key.String())
	if !exists || export.DeletionTimestamp != nil || !exportedHere(export) {
		if exists && export.DeletionTimestamp == nil {
			return c.withdraw(ctx, key)
		}
		if gone, err := c.gone(ctx, key); err != nil || !gone {
			return err
		}
		return c.withdraw(ctx, key)
	}
	facts := multicluster.Facts{Source: multicluster.Source{NamespacedName: key, UID: export.UID}}
	service, err := c.service(ctx, key)
	if err != nil {
		return err
	}
	if service == nil {
		return errors.Join(c.withdraw(ctx, key), c.writeConditions(ctx, export, facts))
	}
	facts.Service = &service.Spec
	if reason, _ := facts.Invalid(); reason != "" {
		return errors.Join(c.withdraw(ctx, key), c.writeConditions(ctx, export, facts))
	}
	b, bound := c.Bindings.Get(types.NamespacedName{Namespace: key.Namespace, Name: v1alpha1.BindingName(serviceKind(), key.Name)})
	if bound && b.DeletionTimestamp == nil {
		facts.Clusters = c.copies(export, service, b)
		err = errors.Join(c.mark(ctx, b, string(export.UID)), c.deleteLeft(ctx, key, b))
	}
	if facts.Taken = c.taken(key); facts.Taken == "" {
		failed := c.writeImport(ctx, export, facts)
		if apierrors.IsForbidden(failed) || apierrors.IsInvalid(failed) {
			facts.Refused = failed.Error()
		}
		err = errors.Join(err, failed)
	}
	return errors.Join(err, c.writeConditions(ctx, export, facts))
}

// exportedHere reports whether Atoll exports the Service. A user may leave that to controllers in the clusters.
func exportedHere(export *mcsv1beta1.ServiceExport) bool {
	return interpret.HomeOf(export, nil) != v1alpha1.HomeMembers
}

// gone reports by a live read whether a ServiceExport does not exist, or is being deleted. The cache may have lost it.
func (c *controller) gone(ctx context.Context, key types.NamespacedName) (bool, error) {
	k := interpret.Generic(mcsv1beta1.SchemeGroupVersion.WithKind(mcsv1beta1.ServiceExportKindName), mcsv1beta1.ServiceExportPluralName, false, nil)
	now, err := c.Objects.Live(ctx, k, key)
	return err == nil && (now == nil || now.GetDeletionTimestamp() != nil), err
}

// service returns the Service of Atoll; nil if it does not exist.
func (c *controller) service(ctx context.Context, key types.NamespacedName) (*corev1.Service, error) {
	u, ok := c.Objects.Get(serviceKind(), key)
	if !ok {
		k, served := c.Kinds.Get(serviceKind())
		if !served {
			return nil, fmt.Errorf("read Service %s: the control plane does not serve Services at the moment", key)
		}
		// What clusters import is removed without the Service, so the cache is not enough.
		live, err := c.Objects.Live(ctx, k, key)
		if err != nil || live == nil {
			return nil, err
		}
		u = live
	}
	if u.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	return decodeService(u)
}

func decodeService(u *unstructured.Unstructured) (*corev1.Service, error) {
	out := &corev1.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("decode Service %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	return out, nil
}

// copies returns the Service as each of its clusters has it.
func (c *controller) copies(export *mcsv1beta1.ServiceExport, service *corev1.Service, b *v1alpha1.ResourceBinding) []multicluster.Copy {
	reported := c.reported(b.ObjectName())
	var out []multicluster.Copy
	for _, share := range b.Spec.Clusters {
		if state, has := b.State(share.Name); !has || state.UID == "" || !multicluster.Exports(b, share.Name) {
			continue
		}
		one := multicluster.Copy{Export: multicluster.Export{Cluster: share.Name, Created: export.CreationTimestamp.Time, Service: service.Spec}}
		if len(share.Overrides) > 0 {
			if overridden, err := overriddenService(service, b.OverridesOf(share)); err == nil { // the binding reports the error
				one.Overridden, one.Service = !equality.Semantic.DeepEqual(overridden.Spec, service.Spec), overridden.Spec
			}
		}
		one.Truncated, one.Reported = reported[share.Name]
		out = append(out, one)
	}
	return out
}

func overriddenService(service *corev1.Service, overrides []v1alpha1.Override) (*corev1.Service, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(service)
	if err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = "v1", "Service"
	out, err := override.Apply(&unstructured.Unstructured{Object: fields}, overrides)
	if err != nil {
		return nil, err
	}
	return decodeService(out)
}

// slices returns the EndpointSlices that clusters reported for a Service, by their names.
func (c *controller) slices(key types.NamespacedName) map[string]metav1.Object {
	out := map[string]metav1.Object{}
	for slice := range c.Objects.AllMetadata(sliceKind(), key.Namespace) {
		if l := slice.GetLabels(); l[v1alpha1.ImportedLabel] == "true" && l[mcsv1beta1.LabelServiceName] == key.Name {
			out[slice.GetName()] = slice
		}
	}
	return out
}

// reported returns the clusters that have reported their endpoints, and whether they have more than they report.
func (c *controller) reported(key types.NamespacedName) map[string]bool {
	out := map[string]bool{}
	for _, slice := range c.slices(key) {
		cluster := slice.GetLabels()[mcsv1beta1.LabelSourceCluster]
		out[cluster] = out[cluster] || slice.GetAnnotations()[corev1.EndpointsOverCapacity] != ""
	}
	return out
}

// addresses returns the addresses of the derived Service in each of its clusters, as JSON; "" if none has any.
func (c *controller) addresses(key types.NamespacedName) string {
	name := multicluster.DerivedName(key.Namespace, key.Name)
	b, ok := c.Bindings.Get(types.NamespacedName{Namespace: key.Namespace, Name: v1alpha1.BindingName(serviceKind(), name)})
	if !ok {
		return ""
	}
	out := map[string][]string{}
	for _, share := range b.Spec.Clusters {
		if state, has := b.State(share.Name); has && len(state.ClusterIPs) > 0 {
			out[share.Name] = state.ClusterIPs
		}
	}
	if len(out) == 0 {
		return ""
	}
	data, err := json.Marshal(out)
	if err != nil {
		return ""
	}
	return string(data)
}

// taken returns which object of another owner has the name of one that would be made, "" if none has.
func (c *controller) taken(key types.NamespacedName) string {
	name := multicluster.DerivedName(key.Namespace, key.Name)
	if derived, ok := c.Objects.Metadata(serviceKind(), types.NamespacedName{Namespace: key.Namespace, Name: name}); ok && !ours(derived, key) {
		return fmt.Sprintf("Service %s/%s", key.Namespace, name)
	}
	if imported, ok := c.imports.Get(key.String()); ok && !ours(imported, key) {
		return "ServiceImport " + key.String()
	}
	return ""
}

// ours reports whether an object was made of a ServiceExport.
func ours(obj metav1.Object, key types.NamespacedName) bool {
	l := obj.GetLabels()
	return l[v1alpha1.ImportedLabel] == "true" && l[mcsv1beta1.LabelServiceName] == key.Name
}
