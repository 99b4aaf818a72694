package multicluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Endpoints are those of one exported Service in one cluster.
type Endpoints struct {
	Slices []Slice `json:"slices,omitempty"`
	// Truncated: the cluster has more than are reported.
	Truncated bool `json:"truncated,omitempty"`
}

// Slice has endpoints with the same ports and the same address family.
type Slice struct {
	AddressType discoveryv1.AddressType    `json:"addressType"`
	Ports       []discoveryv1.EndpointPort `json:"ports,omitempty"`
	Endpoints   []discoveryv1.Endpoint     `json:"endpoints,omitempty"`
}

// Collect returns the endpoints in the EndpointSlices of a Service in its cluster: within the bounds, those that are ready
// first, and without what means something only there (nodes, and references to pods). Those with an address in gone have
// pods that are about to stop.
func Collect(found []*discoveryv1.EndpointSlice, gone map[string]bool) Endpoints {
	groups := map[string]*Slice{}
	for _, s := range found {
		// What Atoll imports is no export, and a name instead of an address could lead anywhere.
		if s.Labels[v1alpha1.ImportedLabel] != "" || s.AddressType == discoveryv1.AddressTypeFQDN || s.DeletionTimestamp != nil {
			continue
		}
		ports := slices.SortedFunc(slices.Values(s.Ports), comparePorts)
		key, _ := json.Marshal([]any{s.AddressType, ports})
		g := groups[string(key)]
		if g == nil {
			g = &Slice{AddressType: s.AddressType, Ports: ports}
			groups[string(key)] = g
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			if e = portable(e); gone[e.Addresses[0]] {
				e = leaving(e)
			}
			g.Endpoints = append(g.Endpoints, e)
		}
	}
	return bounded(groups)
}

func comparePorts(a, b discoveryv1.EndpointPort) int {
	return cmp.Or(strings.Compare(valueOr(a.Name, ""), valueOr(b.Name, "")), cmp.Compare(valueOr(a.Port, 0), valueOr(b.Port, 0)),
		strings.Compare(string(valueOr(a.Protocol, "")), string(valueOr(b.Protocol, ""))))
}

// portable returns an endpoint as other clusters may know it.
func portable(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	// Clients use only the first address.
	out := discoveryv1.Endpoint{Addresses: e.Addresses[:1:1], Conditions: e.Conditions, Hostname: e.Hostname, Zone: e.Zone}
	if e.Hints != nil && len(e.Hints.ForZones) > 0 {
		out.Hints = &discoveryv1.EndpointHints{ForZones: e.Hints.ForZones}
	}
	return out
}

// bounded returns groups in EndpointSlices that are not too long, in an order that depends only on their content.
func bounded(groups map[string]*Slice) Endpoints {
	keys := make([]string, 0, len(groups))
	for key := range groups {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	out, left := Endpoints{}, v1alpha1.MaxExportedEndpoints
	for _, key := range keys {
		g := groups[key]
		slices.SortStableFunc(g.Endpoints, compareEndpoints)
		g.Endpoints = slices.CompactFunc(g.Endpoints, func(a, b discoveryv1.Endpoint) bool { return a.Addresses[0] == b.Addresses[0] })
		if len(g.Endpoints) > left || len(g.Ports) > v1alpha1.MaxExportedPorts {
			out.Truncated = true
			g.Endpoints, g.Ports = g.Endpoints[:min(left, len(g.Endpoints))], g.Ports[:min(v1alpha1.MaxExportedPorts, len(g.Ports))]
		}
		left -= len(g.Endpoints)
		for part := range slices.Chunk(g.Endpoints, v1alpha1.MaxEndpointsOfSlice) {
			if len(out.Slices) == v1alpha1.MaxExportedSlices {
				out.Truncated = true
				return out
			}
			out.Slices = append(out.Slices, Slice{AddressType: g.AddressType, Ports: g.Ports, Endpoints: part})
		}
	}
	return out
}

func compareEndpoints(a, b discoveryv1.Endpoint) int {
	ready := func(e discoveryv1.Endpoint) int {
		if valueOr(e.Conditions.Ready, true) {
			return 0
		}
		return 1
	}
	return cmp.Or(ready(a)-ready(b), strings.Compare(a.Addresses[0], b.Addresses[0]))
}

// Problem returns why a report is not one that Collect may have made, "" if it may be. Other clusters send their traffic to
// the addresses in it.
func (e Endpoints) Problem() string {
	if len(e.Slices) > v1alpha1.MaxExportedSlices {
		return fmt.Sprintf("more than %d slices", v1alpha1.MaxExportedSlices)
	}
	total := 0
	for _, s := range e.Slices {
		if total += len(s.Endpoints); total > v1alpha1.MaxExportedEndpoints || len(s.Endpoints) > v1alpha1.MaxEndpointsOfSlice {
			return fmt.Sprintf("more than %d endpoints, or more than %d in a slice", v1alpha1.MaxExportedEndpoints, v1alpha1.MaxEndpointsOfSlice)
		}
		if why := s.problem(); why != "" {
			return why
		}
	}
	return ""
}

func (s Slice) problem() string {
	if s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6 {
		return fmt.Sprintf("addressType must be %s or %s", discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	}
	if len(s.Ports) > v1alpha1.MaxExportedPorts {
		return fmt.Sprintf("more than %d ports", v1alpha1.MaxExportedPorts)
	}
	for _, p := range s.Ports {
		if p.Port == nil || len(validation.IsValidPortNum(int(*p.Port))) > 0 || len(valueOr(p.Name, "")) > validation.DNS1123LabelMaxLength ||
			len(valueOr(p.AppProtocol, "")) > validation.DNS1123SubdomainMaxLength {
			return "a port has no valid number, or too long a name"
		}
	}
	for _, e := range s.Endpoints {
		if why := endpointProblem(s.AddressType, e); why != "" {
			return why
		}
	}
	return ""
}

func endpointProblem(family discoveryv1.AddressType, e discoveryv1.Endpoint) string {
	if len(e.Addresses) != 1 || e.NodeName != nil || e.TargetRef != nil || len(e.DeprecatedTopology) > 0 {
		return "an endpoint must have exactly one address, and neither a node nor a target"
	}
	ip, err := netip.ParseAddr(e.Addresses[0])
	switch {
	case err != nil || ip.Zone() != "" || ip.Is4In6() || ip.Is4() != (family == discoveryv1.AddressTypeIPv4):
		return fmt.Sprintf("%.64q is not an address of type %s", e.Addresses[0], family)
	case ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
		return fmt.Sprintf("%s is not the address of a pod: it is unspecified, a loopback, link-local or a multicast address", ip)
	}
	if host := valueOr(e.Hostname, ""); host != "" && len(validation.IsDNS1123Label(host)) > 0 {
		return fmt.Sprintf("%.64q is not a valid hostname", host)
	}
	const mostZones = 8
	if len(valueOr(e.Zone, "")) > validation.LabelValueMaxLength || e.Hints != nil && (len(e.Hints.ForZones) > mostZones || len(e.Hints.ForNodes) > 0) {
		return "an endpoint has too long a zone, or too many hints"
	}
	return ""
}

// ClusterIPsProblem returns why a list cannot be the addresses of a Service, "" if it can.
func ClusterIPsProblem(ips []string) string {
	if len(ips) > v1alpha1.MaxClusterIPs {
		return fmt.Sprintf("more than %d addresses", v1alpha1.MaxClusterIPs)
	}
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() {
			return fmt.Sprintf("%.64q is not the address of a Service", text)
		}
	}
	return ""
}
