package multicluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"
)

// service returns the spec of a Service.
func service(t *testing.T, spec string) corev1.ServiceSpec {
	t.Helper()
	var out corev1.ServiceSpec
	if err := yaml.Unmarshal([]byte(spec), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestMerge has the cases of the conformance tests of the Multi-Cluster Services API.
func TestMerge(t *testing.T) {
	const http, both = "{ports: [{name: http, port: 80}]}", "{ports: [{name: http, port: 80}, {name: metrics, port: 9090}]}"
	for _, test := range []struct {
		name    string
		exports []string // oldest first, of clusters a, b, c
		want    string
		reasons string
	}{
		{name: "one cluster", exports: []string{http}, want: "ClusterSetIP http/TCP/80 None"},
		{name: "equal exports", exports: []string{both, both, both}, want: "ClusterSetIP http/TCP/80 metrics/TCP/9090 None"},
		{name: "ports are the union", exports: []string{http, "{ports: [{name: metrics, port: 9090}]}"}, want: "ClusterSetIP http/TCP/80 metrics/TCP/9090 None", reasons: "PortConflict"},
		{name: "a port less", exports: []string{both, http}, want: "ClusterSetIP http/TCP/80 metrics/TCP/9090 None", reasons: "PortConflict"},
		{name: "the oldest decides about a port", exports: []string{http, "{ports: [{name: http, port: 8080}]}"}, want: "ClusterSetIP http/TCP/80 None", reasons: "PortConflict"},
		{name: "another protocol", exports: []string{http, "{ports: [{name: http, port: 80, protocol: UDP}]}"}, want: "ClusterSetIP http/TCP/80 None", reasons: "PortConflict"},
		{name: "another application protocol", exports: []string{http, "{ports: [{name: http, port: 80, appProtocol: https}]}"}, want: "ClusterSetIP http/TCP/80 None", reasons: "PortConflict"},
		{name: "another name", exports: []string{http, "{ports: [{name: web, port: 80}]}"}, want: "ClusterSetIP http/TCP/80 None", reasons: "PortConflict"},
		{name: "a port without a name", exports: []string{"{ports: [{port: 80}]}"}, want: "ClusterSetIP /TCP/80 None"},
		{name: "headless", exports: []string{"{clusterIP: None, ports: [{name: http, port: 80}]}"}, want: "Headless http/TCP/80 None"},
		{name: "headless without ports", exports: []string{"{clusterIP: None}"}, want: "Headless None"},
		{name: "the oldest is headless", exports: []string{"{clusterIP: None, ports: [{name: http, port: 80}]}", http}, want: "Headless http/TCP/80 None", reasons: "TypeConflict"},
		{name: "the oldest has an address", exports: []string{http, "{clusterIP: None, ports: [{name: http, port: 80}]}"}, want: "ClusterSetIP http/TCP/80 None", reasons: "TypeConflict"},
		{name: "load balancers and node ports have an address", exports: []string{"{type: LoadBalancer, ports: [{name: http, port: 80, nodePort: 30080}]}", "{type: NodePort, ports: [{name: http, port: 80, nodePort: 30081}]}"},
			want: "ClusterSetIP http/TCP/80 None"},
		{name: "session affinity", exports: []string{"{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}}"}, want: "ClusterSetIP ClientIP 10"},
		{name: "the oldest has session affinity", exports: []string{"{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}}", "{sessionAffinity: None}"},
			want: "ClusterSetIP ClientIP 10", reasons: "SessionAffinityConflict,SessionAffinityConfigConflict"},
		{name: "the oldest has none", exports: []string{"{sessionAffinity: None}", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}}"},
			want: "ClusterSetIP None", reasons: "SessionAffinityConflict"},
		{name: "another timeout", exports: []string{"{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}}", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 20}}}"},
			want: "ClusterSetIP ClientIP 10", reasons: "SessionAffinityConfigConflict"},
		{name: "internal traffic policy", exports: []string{"{internalTrafficPolicy: Local}", "{}"}, want: "ClusterSetIP None Local", reasons: "InternalTrafficPolicyConflict"},
		{name: "traffic distribution", exports: []string{"{trafficDistribution: PreferSameZone}", "{trafficDistribution: PreferClose}"}, want: "ClusterSetIP None PreferSameZone", reasons: "TrafficDistributionConflict"},
		{name: "everything differs", exports: []string{http, "{clusterIP: None, sessionAffinity: ClientIP}"}, want: "ClusterSetIP http/TCP/80 None", reasons: "PortConflict,TypeConflict,SessionAffinityConflict"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var copies []Copy
			for i, spec := range test.exports {
				one := Export{Cluster: string(rune('a' + i)), Created: time.Unix(int64(i), 0), Service: service(t, spec)}
				copies = append([]Copy{{Export: one, Reported: true}}, copies...) // the order is of no importance
			}
			facts := Facts{Service: &copies[0].Service, Clusters: copies}
			if got := describe(facts.Import()); got != test.want {
				t.Errorf("imported %q, want %q", got, test.want)
			}
			if c := facts.conflict(); test.reasons == "" && c.Reason != "NoConflicts" || test.reasons != "" && c.Reason != test.reasons {
				t.Errorf("conflict %+v, want %q", c, test.reasons)
			}
		})
	}
}

func describe(i Import) string {
	out := []string{string(i.Type)}
	for _, p := range i.Ports {
		out = append(out, fmt.Sprintf("%s/%s/%d", p.Name, p.Protocol, p.Port))
	}
	out = append(out, string(i.SessionAffinity))
	if i.SessionAffinityConfig != nil {
		out = append(out, fmt.Sprint(*i.SessionAffinityConfig.ClientIP.TimeoutSeconds))
	}
	if i.InternalTrafficPolicy != nil {
		out = append(out, string(*i.InternalTrafficPolicy))
	}
	if i.TrafficDistribution != nil {
		out = append(out, *i.TrafficDistribution)
	}
	return strings.Join(out, " ")
}

// TestOldest: of exports of the same age, one that no policy overrides decides, and then the cluster of the first name.
func TestOldest(t *testing.T) {
	at := time.Unix(1, 0)
	exports := []Export{
		{Cluster: "a", Created: at, Overridden: true, Service: service(t, "{sessionAffinity: ClientIP, ports: [{name: http, port: 8080}]}")},
		{Cluster: "b", Created: at, Service: service(t, "{ports: [{name: http, port: 80}]}")},
		{Cluster: "c", Created: at, Service: service(t, "{ports: [{name: http, port: 80}]}")},
	}
	merged := Merge(exports)
	if got := describe(merged); got != "ClusterSetIP http/TCP/80 None" {
		t.Error(got)
	}
	const ports = "the ports of cluster b differ from those of a; the union is imported, and b decides about ports that both define"
	const affinity = "sessionAffinity is None in cluster b, and differs in a"
	if len(merged.Conflicts) != 2 || merged.Conflicts[0].Message != ports || merged.Conflicts[1].Message != affinity {
		t.Errorf("%+v", merged.Conflicts)
	}
}

// TestConditions has each message.
func TestConditions(t *testing.T) {
	web := service(t, "{ports: [{name: http, port: 80}]}")
	external := service(t, "{type: ExternalName, externalName: example.com}")
	in := func(cluster string, reported, truncated bool) Copy {
		return Copy{Export: Export{Cluster: cluster, Service: web}, Reported: reported, Truncated: truncated}
	}
	const missing = "Service shop/web does not exist in Atoll: create it, or delete the ServiceExport"
	const noEndpoints = "Service shop/web has type ExternalName, which has no endpoints: use its external name, or delete the ServiceExport"
	const valid = "Valid=True Valid: the Service exists and can be exported"
	const same = "Conflict=False NoConflicts: the Service is the same in all clusters"
	const waits = "the endpoints of east are not known yet: the cluster cannot be reached, or its syncer is of an older version or may not watch EndpointSlices there"
	for name, test := range map[string]struct {
		facts Facts
		want  []string
	}{
		"no Service":    {Facts{}, []string{"Valid=False NoService: " + missing, "Ready=False Failed: " + missing}},
		"ExternalName":  {Facts{Service: &external}, []string{"Valid=False InvalidServiceType: " + noEndpoints, "Ready=False Failed: " + noEndpoints}},
		"in no cluster": {Facts{Service: &web}, []string{valid, "Ready=False Pending: no cluster has the Service yet: it goes where the workloads run whose pods it selects", same}},
		"not reported":  {Facts{Service: &web, Clusters: []Copy{in("east", false, false)}}, []string{valid, "Ready=False Pending: " + waits, same}},
		"exported":      {Facts{Service: &web, Clusters: []Copy{in("east", true, false), in("west", true, false)}}, []string{valid, "Ready=True Exported: exported from east, west", same}},
		"partly":        {Facts{Service: &web, Clusters: []Copy{in("east", false, false), in("west", true, false)}}, []string{valid, "Ready=True Exported: exported from west; " + waits, same}},
		"truncated": {Facts{Service: &web, Clusters: []Copy{in("east", true, true)}},
			[]string{valid, "Ready=True Exported: exported from east; east has more endpoints than the others may know, and exports a part of them", same}},
		"refused": {Facts{Service: &web, Refused: "services is forbidden"}, []string{valid, "Ready=False Failed: Atoll refuses an object that the export needs: services is forbidden", same}},
		"taken": {Facts{Service: &web, Taken: "ServiceImport shop/web"},
			[]string{valid, "Ready=False Failed: ServiceImport shop/web exists already, and was not made for this ServiceExport: delete or rename it", same}},
	} {
		test.facts.Source.Namespace, test.facts.Source.Name = "shop", "web"
		var got []string
		for _, c := range test.facts.Conditions() {
			got = append(got, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
		if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

// TestObjects: labels that a user exports do not replace those of Atoll, and a headless Service has neither an address nor
// session affinity.
func TestObjects(t *testing.T) {
	s := Source{UID: "1"}
	s.Namespace, s.Name = "shop", "web"
	i := Merge([]Export{{Service: service(t, "{clusterIP: None, sessionAffinity: ClientIP}")}})
	if d := i.DerivedService(s); d.Spec.ClusterIP != "None" || d.Spec.SessionAffinity != "None" || d.Name != DerivedName("shop", "web") || !MayBeDerived(d.Name) || d.OwnerReferences[0].UID != "1" {
		t.Errorf("%+v", d)
	}
	is := i.ServiceImport(s, mcsv1beta1.ServiceExportSpec{ExportedLabels: map[string]string{"team": "a", "fleet.atoll.dev/imported": "no", "atoll.dev/x": "y", "multicluster.kubernetes.io/service-name": "other"}}, "{}")
	labels, _ := json.Marshal(is.Labels)
	if string(labels) != `{"fleet.atoll.dev/imported":"true","multicluster.kubernetes.io/service-name":"web","team":"a"}` {
		t.Errorf("%s", labels)
	}
	if is.Spec.Type != mcsv1beta1.Headless || is.Annotations["fleet.atoll.dev/cluster-ips"] != "{}" || is.Annotations[DerivedAnnotation] != DerivedName("shop", "web") {
		t.Errorf("%+v", is)
	}
	if DerivedName("shop", "web") == DerivedName("sho", "pweb") {
		t.Error("two Services have one derived name")
	}
}
