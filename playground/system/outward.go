package system

import (
	"net"
)

// ServesMembers tells whether members can call servers on this machine, as they do for
// APIs that all share.
func ServesMembers() bool { return memberFlags() != nil }

// memberFlags have a server serve the members by way of an address that they can
// call: Kubernetes wants no loopback's in a Service. A machine that has no other
// goes without.
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
