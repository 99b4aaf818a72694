package view

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// ReportEndpoints writes the EndpointSlices that other clusters import of an exported Service in this cluster. Their names,
// labels and owner come from the binding: a cluster says only which endpoints they have.
func (v *Local) ReportEndpoints(ctx context.Context, b *v1alpha1.ResourceBinding, found multicluster.Endpoints) error {
	export := b.Annotations[v1alpha1.ExportedAnnotation]
	ref := b.Spec.Resource
	if !multicluster.Exports(b, v.cluster) || export == "" || ref.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("Service") {
		return newStatusError(metav1.StatusReasonForbidden, "%s %s/%s is no exported Service that is placed in cluster %s: its endpoints are not to be reported", ref.Kind, b.Namespace, ref.Name, v.cluster)
	}
	if why := found.Problem(); why != "" {
		return newStatusError(metav1.StatusReasonBadRequest, "the endpoints of Service %s/%s in cluster %s are refused: %s", b.Namespace, ref.Name, v.cluster, why)
	}
	source := multicluster.Source{NamespacedName: b.ObjectName(), UID: types.UID(export)}
	desired := multicluster.EndpointSlices(source, v.cluster, found)
	var errs []error
	for _, slice := range desired {
		errs = append(errs, v.applySlice(ctx, slice))
	}
	errs = append(errs, v.deleteSlices(ctx, source, desired))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write the endpoints of Service %s/%s in cluster %s: %w", b.Namespace, ref.Name, v.cluster, err)
	}
	return nil
}

func sliceKind() schema.GroupKind {
	return schema.GroupKind{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}
}

func sliceResource() schema.GroupVersionResource {
	return schema.GroupVersionResource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
}

// applySlice writes an EndpointSlice, unless it is so already. A syncer reports each state once. So if the cache has this state, it
// is read from the API: the last report may have written another one, here or on another server, that the cache does not have yet.
func (v *Local) applySlice(ctx context.Context, desired *discoveryv1.EndpointSlice) error {
	key := types.NamespacedName{Namespace: desired.Namespace, Name: desired.Name}
	if is, ok := v.session.Objects.Get(sliceKind(), key); ok && isSlice(is, desired) {
		live, err := v.liveSlice(ctx, key)
		if err != nil {
			return err
		}
		if live != nil && isSlice(live, desired) {
			return nil
		}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(desired)
	if err != nil {
		return err
	}
	for _, list := range []string{"endpoints", "ports"} {
		if object[list] == nil {
			object[list] = []any{}
		}
	}
	_, err = v.session.Dynamic.Resource(sliceResource()).Namespace(desired.Namespace).
		Apply(ctx, desired.Name, &unstructured.Unstructured{Object: object}, metav1.ApplyOptions{FieldManager: reporterOf(v.cluster), Force: true})
	return err
}

// liveSlice reads an EndpointSlice from the API; nil if it does not exist.
func (v *Local) liveSlice(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, error) {
	is, err := v.session.Dynamic.Resource(sliceResource()).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return is, err
}

func isSlice(is *unstructured.Unstructured, desired *discoveryv1.EndpointSlice) bool {
	now := &discoveryv1.EndpointSlice{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(is.Object, now)
	return err == nil && sameSlice(now, desired)
}

func sameSlice(is, desired *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(is.Labels, desired.Labels) && equality.Semantic.DeepEqual(is.Annotations, desired.Annotations) &&
		equality.Semantic.DeepEqual(is.OwnerReferences, desired.OwnerReferences) && is.AddressType == desired.AddressType &&
		equality.Semantic.DeepEqual(is.Ports, desired.Ports) && equality.Semantic.DeepEqual(is.Endpoints, desired.Endpoints)
}

// deleteSlices deletes the EndpointSlices of this cluster that the last report does not have.
func (v *Local) deleteSlices(ctx context.Context, source multicluster.Source, desired []*discoveryv1.EndpointSlice) error {
	kept, count := map[string]bool{}, map[discoveryv1.AddressType]int{}
	for _, slice := range desired {
		kept[slice.Name] = true
		count[slice.AddressType]++
	}
	surplus, err := v.unseenSlices(ctx, source, count)
	if err != nil {
		return err
	}
	for slice := range v.session.Objects.AllMetadata(sliceKind(), source.Namespace) {
		l := slice.GetLabels()
		if l[v1alpha1.ImportedLabel] == "true" && l[mcsv1beta1.LabelServiceName] == source.Name && l[mcsv1beta1.LabelSourceCluster] == v.cluster && !kept[slice.GetName()] {
			surplus = append(surplus, slice)
		}
	}
	var errs []error
	for _, slice := range surplus {
		uid := slice.GetUID()
		err := v.session.Dynamic.Resource(sliceResource()).Namespace(source.Namespace).
			Delete(ctx, slice.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// unseenSlices returns the EndpointSlices that follow those of a report, and that the cache lacks: the report before may have written
// them a moment ago. The last ones come first, so that a failure leaves no gap in their numbers.
func (v *Local) unseenSlices(ctx context.Context, source multicluster.Source, count map[discoveryv1.AddressType]int) (out []metav1.Object, err error) {
	for _, family := range multicluster.Families() {
		for i := count[family]; i < v1alpha1.MaxExportedSlices; i++ {
			key := types.NamespacedName{Namespace: source.Namespace, Name: multicluster.SliceName(source.NamespacedName, v.cluster, family, i)}
			if _, cached := v.session.Objects.Metadata(sliceKind(), key); cached {
				continue
			}
			live, err := v.liveSlice(ctx, key)
			if err != nil {
				return nil, err
			}
			if live == nil {
				break
			}
			out = append(out, live)
		}
	}
	slices.Reverse(out)
	return out, nil
}

// endpoints handles a syncer's report on the endpoints of an exported Service.
func (r *request) endpoints(w http.ResponseWriter, what objectKey) {
	var in EndpointsReport
	err := r.read(w, &in)
	b, ok := r.view.binding(types.NamespacedName{Namespace: what.Namespace, Name: what.Name})
	switch {
	case err != nil:
	case !ok:
		err = notInView(what, r.cluster)
	case in.UID != b.UID:
		err = newStatusError(metav1.StatusReasonConflict, "%s has UID %s, but uid is %q: it is a different object of the same name", what, b.UID, in.UID)
	default:
		err = r.view.view.ReportEndpoints(r.Context(), b, in.Endpoints)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeSuccess(w)
}

// ReportEndpoints sends which endpoints an exported Service has in the cluster.
func (v *Remote) ReportEndpoints(ctx context.Context, b *v1alpha1.ResourceBinding, found multicluster.Endpoints) error {
	if err := v.client.do(ctx, http.MethodPut, boundPath(b)+"/"+endpointsResource, EndpointsReport{UID: b.UID, Endpoints: found}, nil); err != nil {
		return fmt.Errorf("report the endpoints of Service %s/%s in cluster %s: %w", b.Namespace, b.Spec.Resource.Name, v.cluster, err)
	}
	return nil
}
