package multicluster

import (
	"fmt"
	"iter"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// SlicesManager is the value of the label endpointslice.kubernetes.io/managed-by of the EndpointSlices that clusters import.
// The controllers of a cluster change only their own.
const SlicesManager = "services.fleet.atoll.dev"

// Source identifies a ServiceExport, and with it the Service of the same name.
type Source struct {
	types.NamespacedName
	UID types.UID // of the ServiceExport
}

// metadata returns that of an object made of a ServiceExport. The garbage collector deletes it with the ServiceExport.
func (s Source) metadata(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: name,
		Labels: map[string]string{v1alpha1.ImportedLabel: "true", mcsv1beta1.LabelServiceName: s.Name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: mcsv1beta1.SchemeGroupVersion.String(), Kind: mcsv1beta1.ServiceExportKindName,
			Name: s.Name, UID: s.UID}}}
}

// EndpointSlices returns the EndpointSlices that other clusters import of a Service in one cluster. There is at least one:
// a Service without endpoints differs from one whose cluster has not reported.
func EndpointSlices(s Source, cluster string, e Endpoints) []*discoveryv1.EndpointSlice {
	parts := e.Slices
	if len(parts) == 0 {
		parts = []Slice{{AddressType: discoveryv1.AddressTypeIPv4}}
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(parts))
	count := map[discoveryv1.AddressType]int{}
	for _, p := range parts {
		meta := s.metadata(SliceName(s.NamespacedName, cluster, p.AddressType, count[p.AddressType]))
		count[p.AddressType]++
		meta.Labels[mcsv1beta1.LabelSourceCluster] = cluster
		meta.Labels[discoveryv1.LabelServiceName] = DerivedName(s.Namespace, s.Name)
		meta.Labels[discoveryv1.LabelManagedBy] = SlicesManager
		if e.Truncated {
			// Kubernetes marks Endpoints of too many addresses in the same way.
			meta.Annotations = map[string]string{corev1.EndpointsOverCapacity: "truncated"}
		}
		out = append(out, &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
			ObjectMeta: meta, AddressType: p.AddressType, Ports: p.Ports, Endpoints: p.Endpoints})
	}
	return out
}

// Families are the address types that EndpointSlices of exported Services may have.
func Families() []discoveryv1.AddressType {
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

// SliceName returns the name of one of the EndpointSlices of a Service in a cluster. Those of a family are numbered from 0, without
// gaps.
func SliceName(service types.NamespacedName, cluster string, family discoveryv1.AddressType, i int) string {
	return fmt.Sprintf("%s-%s-%s-%d", DerivedName(service.Namespace, service.Name), cluster, strings.ToLower(string(family)), i)
}

// SliceNames returns the names that the EndpointSlices of a Service in one cluster may have.
func SliceNames(service types.NamespacedName, cluster string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, family := range Families() {
			for i := range v1alpha1.MaxExportedSlices {
				if !yield(SliceName(service, cluster, family, i)) {
					return
				}
			}
		}
	}
}

// DerivedService returns the Service that programs in the importing clusters use. It selects no pods: its EndpointSlices are
// those of all clusters. The endpoints have no nodes, so a policy that only some nodes of a cluster take part would leave
// none: the internal traffic policy stays with the ServiceImport.
func (i Import) DerivedService(s Source) *corev1.Service {
	out := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: s.metadata(DerivedName(s.Namespace, s.Name)),
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, SessionAffinity: i.SessionAffinity, SessionAffinityConfig: i.SessionAffinityConfig,
			TrafficDistribution: i.TrafficDistribution}}
	if i.Type == mcsv1beta1.Headless {
		out.Spec.ClusterIP, out.Spec.SessionAffinity, out.Spec.SessionAffinityConfig = corev1.ClusterIPNone, corev1.ServiceAffinityNone, nil
	}
	for _, p := range i.Ports {
		out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
	}
	return out
}

// ServiceImport returns the ServiceImport without its status. addresses are the clusterIPs of the derived Service in each
// cluster.
func (i Import) ServiceImport(s Source, exported mcsv1beta1.ServiceExportSpec, addresses string) *mcsv1beta1.ServiceImport {
	meta := s.metadata(s.Name)
	labels, annotations := foreign(exported.ExportedLabels), foreign(exported.ExportedAnnotations)
	maps.Copy(labels, meta.Labels)
	annotations[DerivedAnnotation] = DerivedName(s.Namespace, s.Name)
	if addresses != "" {
		annotations[v1alpha1.ClusterIPsAnnotation] = addresses
	}
	meta.Labels, meta.Annotations = labels, annotations
	return &mcsv1beta1.ServiceImport{TypeMeta: metav1.TypeMeta{APIVersion: mcsv1beta1.SchemeGroupVersion.String(), Kind: mcsv1beta1.ServiceImportKindName}, ObjectMeta: meta,
		Spec: mcsv1beta1.ServiceImportSpec{Ports: i.Ports, Type: i.Type, SessionAffinity: i.SessionAffinity, SessionAffinityConfig: i.SessionAffinityConfig,
			InternalTrafficPolicy: i.InternalTrafficPolicy, TrafficDistribution: i.TrafficDistribution}}
}

// foreign returns labels or annotations without those of Atoll: they decide where the object goes.
func foreign(given map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range given {
		if domain, _, _ := strings.Cut(key, "/"); domain != "atoll.dev" && !strings.HasSuffix(domain, ".atoll.dev") {
			out[key] = value
		}
	}
	return out
}
