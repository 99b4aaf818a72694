package expose

import (
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

// live gives the addresses of the servers that are there, in order, and how long
// that is so if none renews. An address that a member could not use as an endpoint
// is left out.
func (s sightings) live(leases []*unstructured.Unstructured, now time.Time) (addresses []netip.AddrPort, until time.Duration) {
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
		left := last.at.Add(v1alpha1.MemberEndpointExpiry).Sub(now)
		address, usable := endpoint(lease.GetAnnotations()[v1alpha1.AddressAnnotation])
		if left <= 0 || !usable {
			continue
		}
		addresses = append(addresses, address)
		if until == 0 || left < until {
			until = left
		}
	}
	for name := range s {
		if !announced[name] {
			delete(s, name)
		}
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	return slices.Compact(addresses), until
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
