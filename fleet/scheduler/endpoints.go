package scheduler

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/transition"
)

func serviceKind() schema.GroupKind { return schema.GroupKind{Kind: "Service"} }

func endpointSliceKind() schema.GroupKind {
	return schema.GroupKind{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}
}

// drainsEndpoints reports whether objects of a kind have pods that can leave the endpoints of Services before they stop: the
// syncer knows which of them the cluster's controllers stop.
func drainsEndpoints(kind schema.GroupKind) bool {
	switch kind {
	case schema.GroupKind{Group: "apps", Kind: "Deployment"}, schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}, schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		return true
	}
	return false
}

// setEndpoints adds to the reports how far pods that are about to stop have left the endpoints of exported Services.
func (s *scheduler) setEndpoints(in *transition.Input, fleet *placement.Fleet, o object, b *v1alpha1.ResourceBinding) {
	if !drainsEndpoints(o.GroupKind) {
		return
	}
	exported := s.exportedServices(o)
	for _, share := range b.Spec.Clusters {
		r, reported := in.Reports[share.Name]
		if !reported {
			continue
		}
		var projected []multicluster.Projected
		for _, service := range exported {
			if _, has := service.Share(share.Name); !has {
				continue
			}
			if r.Exported = true; share.Drain != nil {
				projected = append(projected, s.projected(fleet, service.ObjectName(), share.Name)...)
			}
		}
		if state, has := b.State(share.Name); has && state.Drain != nil {
			withdrawn, importers := multicluster.Withdrawn(state.Drain.Addresses, projected)
			if r.Drain = (transition.DrainReport{Importers: importers, Message: state.Drain.Message}); withdrawn && state.Drain.Message == "" {
				r.Drain.Revision = state.Drain.Revision
			}
		}
		in.Reports[share.Name] = r
	}
}

// exportedServices returns the bindings of the exported Services that select the pods of an object.
func (s *scheduler) exportedServices(o object) (out []*v1alpha1.ResourceBinding) {
	for _, needed := range s.needs.neededBy(o) {
		if needed.GroupKind != serviceKind() {
			continue
		}
		if b, bound := s.Bindings.Get(needed.binding()); bound && b.Annotations[v1alpha1.ExportedAnnotation] != "" {
			out = append(out, b)
		}
	}
	return out
}

// projected returns the EndpointSlices that clusters import of a Service in one cluster, and how far the clusters that answer
// have applied them.
func (s *scheduler) projected(fleet *placement.Fleet, service types.NamespacedName, cluster string) (out []multicluster.Projected) {
	for name := range multicluster.SliceNames(service, cluster) {
		key := types.NamespacedName{Namespace: service.Namespace, Name: name}
		u, exists := s.Objects.Get(endpointSliceKind(), key)
		b, bound := s.Bindings.Get(object{endpointSliceKind(), key}.binding())
		if !exists && !bound {
			continue
		}
		p := multicluster.Projected{Applied: map[string]int64{}}
		if exists {
			p.Slice = decodeSlice(u)
		}
		if bound {
			for _, share := range b.Spec.Clusters {
				p.Applied[share.Name] = 0 // it may be about to apply an earlier one
			}
			for _, state := range b.Status.Clusters {
				if p.Applied[state.Name] = 0; state.UID != "" && isInSync(state.Reason) {
					p.Applied[state.Name] = state.Generation
				}
			}
		}
		for importer := range p.Applied {
			if c, joined := fleet.Cluster(importer); !joined || c.IsSilent() {
				delete(p.Applied, importer)
			}
		}
		out = append(out, p)
	}
	return out
}

// decodeSlice returns an EndpointSlice. One that cannot be decoded, which Atoll's API server does not store, has no endpoints.
func decodeSlice(u *unstructured.Unstructured) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return &discoveryv1.EndpointSlice{}
	}
	return out
}

// endpointsApplied queues the objects whose next step may wait until clusters apply an EndpointSlice.
func (s *scheduler) endpointsApplied(b *v1alpha1.ResourceBinding) {
	o := boundBy(b)
	if o.GroupKind != endpointSliceKind() {
		return
	}
	slice, exists := s.Objects.Metadata(o.GroupKind, o.NamespacedName)
	if !exists || slice.GetLabels()[v1alpha1.ImportedLabel] != "true" {
		return
	}
	service := object{serviceKind(), types.NamespacedName{Namespace: o.Namespace, Name: slice.GetLabels()[mcsv1beta1.LabelServiceName]}}
	cluster := slice.GetLabels()[mcsv1beta1.LabelSourceCluster]
	for _, user := range s.needs.usersOf(service) {
		if b, bound := s.Bindings.Get(user.binding()); bound {
			if share, runs := b.Share(cluster); runs && share.Drain != nil {
				s.queue.Add(user)
			}
		}
	}
}
