package expose

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// sightings remembers when each server was last seen to renew its Lease, by the
// clock here: that of the server may be wrong.
type sightings map[string]sighting

type sighting struct {
	uid, renewed string
	at           time.Time
}

// server is one that is there.
type server struct {
	address netip.AddrPort
	// cluster that it runs in, by name; empty if in none.
	cluster string
}

func (a server) compare(b server) int {
	return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.cluster, b.cluster))
}

// near gives the addresses that a member is to call: those of the servers that run
// in it, or of all if there is none. It is not asked to choose among them by
// itself, because kube-apiserver takes any endpoint of a Service, wherever it is.
func near(servers []server, cluster string) []netip.AddrPort {
	var own, all []netip.AddrPort
	for _, s := range servers {
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

// live gives the servers that are there, in the order of their addresses. One is gone
// when it was silent for MemberEndpointExpiry until another, or itself, was heard of:
// silence of all is no news of any of them. A leader that is cut off from the database
// hears of nobody, and has members stay where they are while it still leads.
// An address that a member could not use as an endpoint is left out.
func (s sightings) live(leases []*unstructured.Unstructured, now time.Time) []server {
	heard := s.see(leases, now)
	var servers []server
	for _, lease := range leases {
		address, usable := endpoint(lease.GetAnnotations()[v1alpha1.AddressAnnotation])
		if usable && heard.Sub(s[lease.GetName()].at) < v1alpha1.MemberEndpointExpiry {
			servers = append(servers, server{address, in(lease)})
		}
	}
	slices.SortFunc(servers, server.compare)
	return slices.Compact(servers)
}

// see takes in the Leases as they are now, and tells when one was last seen to be renewed.
func (s sightings) see(leases []*unstructured.Unstructured, now time.Time) (heard time.Time) {
	announced := map[string]bool{}
	for _, lease := range leases {
		name := lease.GetName()
		announced[name] = true
		renewed, _, _ := unstructured.NestedString(lease.Object, "spec", "renewTime")
		last, known := s[name]
		if !known || last.renewed != renewed || last.uid != string(lease.GetUID()) {
			last = sighting{string(lease.GetUID()), renewed, now}
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

// in names the cluster that a server says it runs in.
func in(lease *unstructured.Unstructured) string {
	return lease.GetLabels()[v1alpha1.MemberEndpointLabel]
}

// endpoint reads an address that may stand in an EndpointSlice: an IP address, and
// none that means something else on each machine. Kubernetes refuses the rest.
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
