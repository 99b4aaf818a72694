package system

import (
	"net"
	"net/netip"
)

// memberFlags have a server answer members. They call no loopback, so it takes an
// address of this machine that is another; without one nothing can be shared.
func memberFlags() []string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() && prefix.Addr().IsGlobalUnicast() {
			return []string{"--member-address", prefix.Addr().String(), "--member-port", "0"}
		}
	}
	return nil
}
