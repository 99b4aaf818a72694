package system

import (
	"net"
)

// ServesMembers reports whether members can connect to servers on this machine. Shared APIs require
// it.
func ServesMembers() bool { return memberFlags() != nil }

// memberFlags returns the flags that have a server serve the members, at an address that members can
// connect to. Kubernetes rejects loopback addresses in EndpointSlices. On a machine without another
// address it returns nil, and servers do not serve members.
func memberFlags() []string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return []string{"--member-address", network.IP.String(), "--member-port", "0"}
		}
	}
	return nil
}
