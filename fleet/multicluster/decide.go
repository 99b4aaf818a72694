package multicluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Export is a Service as one cluster has it.
type Export struct {
	Cluster string
	// Created is when the Service was exported. The oldest export decides where exports differ.
	Created time.Time
	// Overridden: a policy changes the Service in this cluster. Of exports of the same age, one that is as its author wrote
	// it decides.
	Overridden bool
	Service    corev1.ServiceSpec
}

// Exports reports whether a cluster exports the endpoints of a Service, by the binding of the Service. It stays in a cluster
// until the pods there are gone. If other clusters have taken those over, or a user deleted their workload, it exports them
// no more. A cluster that does not answer goes on to export them until then: nothing is removed because of not knowing.
func Exports(b *v1alpha1.ResourceBinding, cluster string) bool {
	_, placed := b.Share(cluster)
	_, leaves := b.RequestedRemoval(cluster)
	return placed && !leaves
}

// Import is what all clusters import of an exported Service.
type Import struct {
	Type                  mcsv1beta1.ServiceImportType
	Ports                 []mcsv1beta1.ServicePort
	SessionAffinity       corev1.ServiceAffinity
	SessionAffinityConfig *corev1.SessionAffinityConfig
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   *string
	// Conflicts are the properties in which the exports differ.
	Conflicts []Conflict
}

// Conflict is a property in which exports differ.
type Conflict struct {
	Reason  mcsv1beta1.ServiceExportConditionReason
	Message string
}

// Merge returns what clusters import of the exports of one Service; there is at least one. Ports are the union of all. Of
// every other property, and of a port that two exports define differently, the oldest export decides.
func Merge(exports []Export) Import {
	ordered := slices.SortedFunc(slices.Values(exports), func(a, b Export) int {
		return cmp.Or(a.Created.Compare(b.Created), overriddenLast(a, b), strings.Compare(a.Cluster, b.Cluster))
	})
	oldest := ordered[0]
	out := Import{Type: importType(oldest.Service), SessionAffinity: cmp.Or(oldest.Service.SessionAffinity, corev1.ServiceAffinityNone),
		InternalTrafficPolicy: oldest.Service.InternalTrafficPolicy, TrafficDistribution: oldest.Service.TrafficDistribution}
	if out.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.SessionAffinityConfig = oldest.Service.SessionAffinityConfig
	}
	var conflict Conflict
	out.Ports, conflict = mergePorts(ordered)
	out.add(conflict)
	out.compare(ordered, mcsv1beta1.ServiceExportReasonTypeConflict, "type", func(s corev1.ServiceSpec) any { return importType(s) })
	out.compare(ordered, mcsv1beta1.ServiceExportReasonSessionAffinityConflict, "sessionAffinity", func(s corev1.ServiceSpec) any {
		return cmp.Or(s.SessionAffinity, corev1.ServiceAffinityNone)
	})
	out.compare(ordered, mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict, "sessionAffinityConfig", affinityConfig(out.SessionAffinity))
	out.compare(ordered, mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, "internalTrafficPolicy", func(s corev1.ServiceSpec) any {
		return valueOr(s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	})
	out.compare(ordered, mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, "trafficDistribution", func(s corev1.ServiceSpec) any {
		return valueOr(s.TrafficDistribution, "")
	})
	return out
}

func overriddenLast(a, b Export) int {
	switch {
	case a.Overridden == b.Overridden:
		return 0
	case a.Overridden:
		return 1
	}
	return -1
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// affinityConfig returns the configuration of the session affinity that is in effect. That of another one is no conflict
// of its own.
func affinityConfig(affinity corev1.ServiceAffinity) func(corev1.ServiceSpec) any {
	return func(s corev1.ServiceSpec) any {
		if affinity != corev1.ServiceAffinityClientIP || s.SessionAffinity != affinity || s.SessionAffinityConfig == nil || s.SessionAffinityConfig.ClientIP == nil {
			return corev1.DefaultClientIPServiceAffinitySeconds
		}
		return valueOr(s.SessionAffinityConfig.ClientIP.TimeoutSeconds, corev1.DefaultClientIPServiceAffinitySeconds)
	}
}

func importType(s corev1.ServiceSpec) mcsv1beta1.ServiceImportType {
	if s.ClusterIP == corev1.ClusterIPNone {
		return mcsv1beta1.Headless
	}
	return mcsv1beta1.ClusterSetIP
}

func (i *Import) add(c Conflict) {
	if c.Reason != "" {
		i.Conflicts = append(i.Conflicts, c)
	}
}

// compare adds a conflict if exports have another value of a property than the first one.
func (i *Import) compare(ordered []Export, reason mcsv1beta1.ServiceExportConditionReason, property string, of func(corev1.ServiceSpec) any) {
	oldest := of(ordered[0].Service)
	var differ []string
	for _, e := range ordered[1:] {
		if v := of(e.Service); !equality.Semantic.DeepEqual(v, oldest) {
			differ = append(differ, e.Cluster)
		}
	}
	if len(differ) > 0 {
		i.add(Conflict{reason, fmt.Sprintf("%s is %v in cluster %s, and differs in %s", property, oldest, ordered[0].Cluster, list(differ))})
	}
}

// mergePorts returns the union of the ports.
func mergePorts(ordered []Export) ([]mcsv1beta1.ServicePort, Conflict) {
	var out []mcsv1beta1.ServicePort
	var differ []string
	for _, e := range ordered {
		same := len(e.Service.Ports) == len(ordered[0].Service.Ports)
		for _, p := range e.Service.Ports {
			port := mcsv1beta1.ServicePort{Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), AppProtocol: p.AppProtocol, Port: p.Port}
			at := slices.IndexFunc(out, func(o mcsv1beta1.ServicePort) bool {
				return o.Name == port.Name || o.Port == port.Port && o.Protocol == port.Protocol
			})
			if at < 0 {
				out = append(out, port)
			}
			same = same && (at >= 0 && equality.Semantic.DeepEqual(out[at], port) || e.Cluster == ordered[0].Cluster)
		}
		if !same {
			differ = append(differ, e.Cluster)
		}
	}
	if len(out) > 1 {
		// A Service of one port may leave out its name, one of several may not.
		out = slices.DeleteFunc(out, func(p mcsv1beta1.ServicePort) bool { return p.Name == "" && len(out) > 1 })
	}
	if len(differ) == 0 {
		return out, Conflict{}
	}
	return out, Conflict{mcsv1beta1.ServiceExportReasonPortConflict,
		fmt.Sprintf("the ports of cluster %s differ from those of %s; the union is imported, and %s decides about ports that both define", ordered[0].Cluster, list(differ), ordered[0].Cluster)}
}

// list returns some names for a message.
func list(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more clusters", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
