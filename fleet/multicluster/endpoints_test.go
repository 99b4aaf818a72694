package multicluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func slice(t *testing.T, manifest string) *discoveryv1.EndpointSlice {
	t.Helper()
	out := &discoveryv1.EndpointSlice{}
	if err := yaml.Unmarshal([]byte(manifest), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCollect: endpoints of EndpointSlices with the same ports are together, without nodes and targets. Hostnames, zones and
// conditions stay. Imported EndpointSlices, and names in place of addresses, are left out.
func TestCollect(t *testing.T) {
	const ports = "ports: [{name: http, port: 8080, protocol: TCP}]"
	found := []*discoveryv1.EndpointSlice{
		slice(t, `{addressType: IPv4, `+ports+`, endpoints: [{addresses: [10.0.0.2], conditions: {ready: false}}, {addresses: [10.0.0.3], hostname: db-0, zone: z1, nodeName: n, targetRef: {kind: Pod}, hints: {forZones: [{name: z1}], forNodes: [{name: n}]}}]}`),
		slice(t, `{addressType: IPv4, `+ports+`, endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.1]}]}`),
		slice(t, `{addressType: IPv4, ports: [{name: http, port: 9090, protocol: TCP}], endpoints: [{addresses: [10.0.0.9]}]}`),
		slice(t, `{addressType: IPv6, `+ports+`, endpoints: [{addresses: ["fd00::1"]}]}`),
		slice(t, `{addressType: FQDN, `+ports+`, endpoints: [{addresses: [example.com]}]}`),
		slice(t, `{metadata: {labels: {fleet.atoll.dev/imported: "true"}}, addressType: IPv4, `+ports+`, endpoints: [{addresses: [10.0.0.7]}]}`),
	}
	got := Collect(found, nil)
	var lines []string
	for _, s := range got.Slices {
		for _, e := range s.Endpoints {
			lines = append(lines, fmt.Sprint(s.AddressType, " ", *s.Ports[0].Port, " ", e.Addresses, " ", valueOr(e.Hostname, ""), valueOr(e.Zone, ""), e.NodeName == nil && e.TargetRef == nil))
		}
	}
	const want = "IPv4 8080 [10.0.0.1] true\nIPv4 8080 [10.0.0.3] db-0z1true\nIPv4 8080 [10.0.0.2] true\nIPv4 9090 [10.0.0.9] true\nIPv6 8080 [fd00::1] true"
	if strings.Join(lines, "\n") != want || got.Truncated || got.Problem() != "" {
		t.Errorf("%s\n%v %s", strings.Join(lines, "\n"), got.Truncated, got.Problem())
	}
	if hints := got.Slices[0].Endpoints[1].Hints; hints == nil || len(hints.ForZones) != 1 || hints.ForNodes != nil {
		t.Errorf("hints %+v", hints)
	}
	for i := range found {
		other := append(append([]*discoveryv1.EndpointSlice{}, found[i:]...), found[:i]...)
		if a, b := fmt.Sprintf("%+v", describeSlices(Collect(other, nil))), fmt.Sprintf("%+v", describeSlices(got)); a != b {
			t.Errorf("in another order: %s, want %s", a, b)
		}
	}
}

func describeSlices(e Endpoints) (out []string) {
	for _, s := range e.Slices {
		for _, one := range s.Endpoints {
			out = append(out, fmt.Sprint(s.AddressType, *s.Ports[0].Port, one.Addresses))
		}
	}
	return out
}

// TestBounds: a cluster reports at most so many endpoints, ready ones first, in slices of at most so many.
func TestBounds(t *testing.T) {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	no := false
	for i := range 1200 {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)}}
		if i < 300 {
			e.Conditions.Ready = &no
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	got := Collect([]*discoveryv1.EndpointSlice{s}, nil)
	unready := 0
	for _, part := range got.Slices {
		for _, e := range part.Endpoints {
			if !valueOr(e.Conditions.Ready, true) {
				unready++
			}
		}
	}
	if len(got.Slices) != 10 || !got.Truncated || unready != 100 || got.Problem() != "" {
		t.Errorf("%d slices, truncated %v, %d not ready, %s", len(got.Slices), got.Truncated, unready, got.Problem())
	}
	source := Source{UID: "1"}
	source.Namespace, source.Name = "shop", "web"
	objects := EndpointSlices(source, "east", got)
	first := objects[0]
	if len(objects) != 10 || first.Name != DerivedName("shop", "web")+"-east-ipv4-0" || first.Annotations[corev1.EndpointsOverCapacity] != "truncated" ||
		first.Labels[discoveryv1.LabelServiceName] != DerivedName("shop", "web") || first.Labels[discoveryv1.LabelManagedBy] != SlicesManager {
		t.Errorf("%+v", first.ObjectMeta)
	}
	if empty := EndpointSlices(source, "east", Endpoints{}); len(empty) != 1 || len(empty[0].Endpoints) != 0 || empty[0].Labels["multicluster.kubernetes.io/source-cluster"] != "east" {
		t.Errorf("without endpoints: %+v", empty)
	}
}

// TestProblem: what Collect cannot have made is refused.
func TestProblem(t *testing.T) {
	one := func(change func(*Slice)) Endpoints {
		port := int32(80)
		s := Slice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
		change(&s)
		return Endpoints{Slices: []Slice{s}}
	}
	address := func(a string) Endpoints { return one(func(s *Slice) { s.Endpoints[0].Addresses = []string{a} }) }
	text := strings.Repeat("x", 300)
	for want, e := range map[string]Endpoints{
		"":                                      one(func(*Slice) {}),
		"127.0.0.1 is not the address of a pod": address("127.0.0.1"),
		"169.254.169.254 is not the address of a pod": address("169.254.169.254"),
		"0.0.0.0 is not the address of a pod":         address("0.0.0.0"),
		"224.0.0.1 is not the address of a pod":       address("224.0.0.1"),
		`"fd00::1" is not an address of type IPv4`:    address("fd00::1"),
		`"example.com" is not an address`:             address("example.com"),
		"addressType must be IPv4 or IPv6":            one(func(s *Slice) { s.AddressType = discoveryv1.AddressTypeFQDN }),
		"exactly one address":                         one(func(s *Slice) { s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.0.0.2") }),
		"neither a node nor a target":                 one(func(s *Slice) { s.Endpoints[0].NodeName = &text }),
		"is not a valid hostname":                     one(func(s *Slice) { s.Endpoints[0].Hostname = &text }),
		"too long a zone":                             one(func(s *Slice) { s.Endpoints[0].Zone = &text }),
		"a port has no valid number":                  one(func(s *Slice) { s.Ports[0].Port = nil }),
		"more than 100 ports":                         one(func(s *Slice) { s.Ports = make([]discoveryv1.EndpointPort, 101) }),
		"more than 100 in a slice":                    one(func(s *Slice) { s.Endpoints = make([]discoveryv1.Endpoint, 101) }),
		"more than 32 slices":                         {Slices: make([]Slice, v1alpha1.MaxExportedSlices+1)},
	} {
		if got := e.Problem(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if ClusterIPsProblem([]string{"10.96.0.1", "fd00::1"}) != "" || ClusterIPsProblem([]string{"10.96.0.1", "10.96.0.2", "10.96.0.3"}) == "" || ClusterIPsProblem([]string{"None"}) == "" || ClusterIPsProblem([]string{"127.0.0.1"}) == "" {
		t.Error("addresses of Services")
	}
}
