package v1alpha1

import (
	"net/netip"
	"testing"
)

func TestServiceAddress(t *testing.T) {
	for _, name := range []string{"web", "db", "a-very-long-name-of-a-service", ""} {
		for _, ipv6 := range []bool{false, true} {
			got := ServiceAddress("shop", name, ipv6)
			a, err := netip.ParseAddr(got)
			if err != nil || a.Is4() == ipv6 || !IsServiceAddress(got) {
				t.Errorf("the address of shop/%s is %s (%v)", name, got, err)
			}
			if got != ServiceAddress("shop", name, ipv6) || got == ServiceAddress("shop", name+"x", ipv6) {
				t.Errorf("%s does not depend on the name alone", got)
			}
		}
	}
	for _, other := range []string{"", "None", "10.96.0.1", "223.255.255.255", "fd00::1", "fe80::1"} {
		if IsServiceAddress(other) {
			t.Errorf("%q counts as an address of the control plane", other)
		}
	}
}
