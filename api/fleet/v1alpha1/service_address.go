package v1alpha1

import (
	"crypto/sha256"
	"net/netip"
)

// The control plane runs no Services, but clients wait until a Service has a clusterIP (helm install
// --wait) and list the column. So its API server gives each Service an address that no network
// routes: IPv4 of the reserved class E, IPv6 of a unique local prefix. Each cluster allocates the
// address under which the Service is reached there.
//
// The address depends on nothing but namespace and name. So a dry run shows it, a recreated Service
// has it again, and no record of allocations is needed. Two Services can have the same IPv4 address:
// among 10,000 Services the probability is about one in six that any two do. Nothing sends packets to
// it, so nothing breaks.

// ServiceAddress returns the address that the control plane shows for a Service.
func ServiceAddress(namespace, name string, ipv6 bool) string {
	sum := sha256.Sum256([]byte(namespace + "/" + name))
	if ipv6 {
		address := serviceRange6().Addr().As16()
		copy(address[8:], sum[:8])
		return netip.AddrFrom16(address).String()
	}
	// 255.255.255.255 is broadcast, and the first address of a range is the network's.
	last := sum[3]%254 + 1
	return netip.AddrFrom4([4]byte{240 | sum[0], sum[1], sum[2], last}).String()
}

// IsServiceAddress reports whether an address is one that ServiceAddress returns. Such an address is
// never the user's choice for a cluster, even if it came back with an object that was exported here.
func IsServiceAddress(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && (serviceRange4().Contains(a) || serviceRange6().Contains(a))
}

func serviceRange4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{240}), 4)
}

// serviceRange6 has "atoll" in the random bits of a unique local prefix (RFC 4193).
func serviceRange6() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 'a', 't', 'o', 'l', 'l'}), 64)
}
