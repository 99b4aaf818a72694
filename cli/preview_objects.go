package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// previewObjects returns the moves if objects were applied: policies, cluster settings,
// namespaces, and workloads. A server-side dry run defaults and validates them. It also returns the
// edits of policies that would not take effect at once. It writes the changed taints of clusters and the next
// times of schedules to notes.
func (f *fleetReader) previewObjects(ctx context.Context, s *scheduler.State, objects []*unstructured.Unstructured, namespace string, notes io.Writer) ([]scheduler.Move, []scheduler.Edit, error) {
	made := map[string]bool{}
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			made[o.GetName()] = true
			s.Namespaces[o.GetName()] = o.GetLabels()
		}
	}
	var tainting []*unstructured.Unstructured
	edited := map[string]bool{}
	for _, o := range objects {
		whole, err := f.asApplied(ctx, o, namespace, made)
		if err != nil {
			return nil, nil, err
		}
		if gvk := whole.GroupVersionKind(); gvk.Group == v1alpha1.Group && gvk.Kind == "ClusterTaintPolicy" {
			tainting = append(tainting, whole)
			continue
		} else if gvk.Group == v1alpha1.Group && gvk.Kind == "ScaleSchedule" {
			if err := previewSchedule(s, whole, notes); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err := put(s, whole); err != nil {
			return nil, nil, err
		}
		edited[whole.GetKind()+" "+policyName(whole.GetNamespace(), whole.GetName())] = true
	}
	for _, o := range tainting { // the Clusters of the file count
		if err := previewTaints(s, o, notes); err != nil {
			return nil, nil, err
		}
	}
	edits := s.Settle(func(p *placement.Subject) bool { return edited[p.Kind+" "+policyName(p.Meta.Namespace, p.Meta.Name)] })
	return s.Moves(s.Snapshot()), edits, nil
}

// asApplied returns an object as it would be after an apply. In a namespace that the
// same file creates, a dry run is not possible yet, so the object is returned as
// written.
func (f *fleetReader) asApplied(ctx context.Context, o *unstructured.Unstructured, namespace string, made map[string]bool) (*unstructured.Unstructured, error) {
	gvk := o.GroupVersionKind()
	mapping, err := f.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: apply the kind's CustomResourceDefinition first, or correct apiVersion and kind", gvk.Kind, o.GetName(), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	if policy := slices.Contains([]string{"Placement", "ClusterPlacement", "VolumePolicy"}, gvk.Kind); policy && gvk.Group == v1alpha1.Group {
		if out, err := f.asReplaced(ctx, mapping.Resource, o); err == nil {
			return out, nil
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%s %s would be rejected: %w", gvk.Kind, o.GetName(), err)
		}
	}
	out, err := f.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o,
		metav1.ApplyOptions{FieldManager: "atoll-preview", Force: true, DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsNotFound(err) && made[o.GetNamespace()] {
		return o, nil
	}
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s %s would be rejected: %w: use another namespace with -n, or add the Namespace to the file", gvk.Kind, o.GetName(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s would be rejected: %w", gvk.Kind, o.GetName(), err)
	}
	return out, nil
}

// asReplaced returns an existing policy with the spec of o. An apply by another field manager would add the elements
// of o to lists, such as names of clusters, and keep the other elements.
func (f *fleetReader) asReplaced(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	spec, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec", "value": spec}})
	if err != nil {
		return nil, err
	}
	return f.dynamic.Resource(gvr).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: "atoll-preview", DryRun: []string{metav1.DryRunAll}})
}

// put adds an object to a snapshot.
func put(s *scheduler.State, o *unstructured.Unstructured) error {
	switch gvk := o.GroupVersionKind(); {
	case gvk.Group == v1alpha1.Group && gvk.Kind == "Placement":
		return replace(o, &s.Placements)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "ClusterPlacement":
		return replace(o, &s.ClusterPlacements)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "Cluster":
		return replace(o, &s.Clusters)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "VolumePolicy":
		return replace(o, &s.VolumePolicies)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "FleetQuota":
		q := &v1alpha1.FleetQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, q); err != nil {
			return fmt.Errorf("read FleetQuota %s: %w", o.GetName(), err)
		}
		return s.AddQuota(q)
	case gvk.GroupKind() == interpret.AutoscalerKind():
		return s.AddAutoscaler(o)
	case gvk.Group == "" && gvk.Kind == "PersistentVolumeClaim":
		s.AddClaim(o)
		return nil
	default:
		k, known := s.Kind(gvk.GroupKind())
		if !known || !k.Placed || s.StaysHome(o) != "" {
			return nil
		}
		p := scheduler.Placed{Kind: k, Object: o}
		i := slices.IndexFunc(s.Placed, func(q scheduler.Placed) bool { return q.Key() == p.Key() })
		if i >= 0 {
			s.Placed[i] = p
			return nil
		}
		s.Placed = append(s.Placed, p)
		return nil
	}
}

// replace puts an object into a list, replacing the one with its name. An object that
// does not exist yet counts as the newest, and a changed one gets a new generation.
func replace[T any, P interface {
	*T
	metav1.Object
}](o *unstructured.Unstructured, list *[]P) error {
	item := P(new(T))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, item); err != nil {
		return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	i := slices.IndexFunc(*list, func(q P) bool { return q.GetName() == item.GetName() && q.GetNamespace() == item.GetNamespace() })
	if i >= 0 {
		(*list)[i] = item
		return nil
	}
	*list = append(*list, item)
	return nil
}
