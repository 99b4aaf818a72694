package expose

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// leaseObservations records when each server was last seen to renew its Lease, by the local clock, because
// the server's clock may be wrong.
type leaseObservations map[string]leaseObservation

type leaseObservation struct {
	uid, renewed string
	at           time.Time
	// alive: a renewal was seen. Leases that are there when the observation begins may be of servers
	// that ended long ago.
	alive bool
}

// server is a live server.
type server struct {
	address netip.AddrPort
	// cluster that it runs in; empty if none.
	cluster string
	// alive: it was seen to renew its Lease.
	alive bool
}

// compare orders servers by address; of two with the same address, the one that is alive is first.
func (a server) compare(b server) int {
	alive := map[bool]int{true: 0, false: 1}
	return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.cluster, b.cluster), cmp.Compare(alive[a.alive], alive[b.alive]))
}

func (a server) same(b server) bool { return a.address == b.address && a.cluster == b.cluster }

// addressesFor returns the addresses that a member should use: those of the servers in its own
// cluster, or of all servers if it has none. The member cannot choose by itself, because
// kube-apiserver uses any endpoint of a Service, however distant.
//
// A server that was not seen to be alive yet keeps its address, if it is among the present ones of the
// member, but does not get one: a new leader must not disturb a member whose own server is well. A
// member without any address takes what there is.
func addressesFor(servers []server, cluster string, present []netip.AddrPort) []netip.AddrPort {
	var own, all []netip.AddrPort
	for _, s := range servers {
		if !s.alive && len(present) > 0 && !slices.Contains(present, s.address) {
			continue
		}
		all = append(all, s.address)
		if s.cluster == cluster {
			own = append(own, s.address)
		}
	}
	if len(own) > 0 {
		return slices.Compact(own)
	}
	return slices.Compact(all)
}

// live returns the live servers, in the order of their addresses. A server is gone if its last
// renewal is older, by MemberEndpointExpiry or more, than the latest renewal of any server. If no
// server renews, none counts as gone. So a leader without a connection to the database, which sees
// no renewals, changes nothing while it still leads. Addresses that a member cannot use as an
// endpoint are skipped.
func (s leaseObservations) live(leases []*unstructured.Unstructured, now time.Time) []server {
	heard := s.observe(leases, now)
	var servers []server
	for _, lease := range leases {
		address, usable := endpoint(lease.GetAnnotations()[v1alpha1.AddressAnnotation])
		if usable && heard.Sub(s[lease.GetName()].at) < v1alpha1.MemberEndpointExpiry {
			servers = append(servers, server{address, in(lease), s[lease.GetName()].alive})
		}
	}
	slices.SortFunc(servers, server.compare)
	return slices.CompactFunc(servers, server.same)
}

// presentAddresses returns the addresses that a member uses at present, from its EndpointSlices.
func presentAddresses(objects []*unstructured.Unstructured) (present []netip.AddrPort) {
	for _, u := range objects {
		if u.GetKind() != "EndpointSlice" {
			continue
		}
		ports, _, _ := unstructured.NestedSlice(u.Object, "ports")
		endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
		for _, p := range ports {
			port, _ := p.(map[string]any)
			number, _, _ := unstructured.NestedInt64(port, "port")
			for _, e := range endpoints {
				endpoint, _ := e.(map[string]any)
				addresses, _, _ := unstructured.NestedStringSlice(endpoint, "addresses")
				for _, text := range addresses {
					if address, err := netip.ParseAddr(text); err == nil && number > 0 && number < 1<<16 {
						present = append(present, netip.AddrPortFrom(address, uint16(number)))
					}
				}
			}
		}
	}
	return present
}

// observe records the current Leases, and returns the time of the latest renewal.
func (s leaseObservations) observe(leases []*unstructured.Unstructured, now time.Time) (heard time.Time) {
	announced := map[string]bool{}
	first := len(s) == 0
	for _, lease := range leases {
		name := lease.GetName()
		announced[name] = true
		renewed, _, _ := unstructured.NestedString(lease.Object, "spec", "renewTime")
		last, known := s[name]
		if !known || last.renewed != renewed || last.uid != string(lease.GetUID()) {
			last = leaseObservation{string(lease.GetUID()), renewed, now, known || !first}
			s[name] = last
		}
		if last.at.After(heard) {
			heard = last.at
		}
	}
	for name := range s {
		if !announced[name] {
			delete(s, name)
		}
	}
	return heard
}

// in returns the cluster that a server runs in.
func in(lease *unstructured.Unstructured) string {
	return lease.GetLabels()[v1alpha1.MemberEndpointLabel]
}

// endpoint parses an address for an EndpointSlice: an IP address that means the same on every
// machine. Kubernetes rejects all others.
func endpoint(address string) (netip.AddrPort, bool) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || ap.Port() == 0 {
		return netip.AddrPort{}, false
	}
	ip := ap.Addr().Unmap()
	if ip.Zone() != "" || ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(ip, ap.Port()), true
}
