package workspaces

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/util/webhook"
	clientrest "k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver/turns"
)

// outgoing decides what webhooks and clusters of workspaces may be. Their URLs come from users of a workspace, who must not get the server to call what
// only it can reach, or to send its own credentials.
type outgoing struct {
	// networks are those that they may be in; none stands for all but the server's own machine and link, and the metadata of clouds.
	networks []netip.Prefix
}

// resolver returns the configuration of the clients of webhooks. It does not use upstream's: that has the credentials of the server's client
// for kubernetes.default.svc, and of the cluster that the server runs in.
func (o outgoing) resolver(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	config := func() (*clientrest.Config, error) {
		return &clientrest.Config{UserAgent: "kube-apiserver-admission", Timeout: webhookTimeout, Dial: o.dial, WrapTransport: turns.WithoutTurn}, nil
	}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc:        func(string) (*clientrest.Config, error) { return config() },
		ClientConfigForServiceFunc: func(string, string, int) (*clientrest.Config, error) { return config() },
	}
}

// webhookTimeout is the longest time of a call; a webhook may have a shorter one.
const webhookTimeout = 30 * time.Second

// dial connects to an address that webhooks may have. It checks the address after its name was resolved, so a name cannot hide one.
func (o outgoing) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return o.dialTo(ctx, network, address, "webhooks", "--workspace-webhook-networks")
}

// permits reports whether webhooks and clusters may be at an address. own are the addresses of the server's machine: a connection to them does not
// leave it, so no firewall sees it.
func (o outgoing) permits(at netip.Addr, own []net.Addr) bool {
	at = at.Unmap().WithZone("")
	if len(o.networks) > 0 {
		return slices.ContainsFunc(o.networks, func(n netip.Prefix) bool { return n.Contains(at) })
	}
	// Global unicast: neither loopback, nor link-local, nor unspecified, nor multicast.
	return at.IsGlobalUnicast() && !isMetadataService(at) && !slices.ContainsFunc(own, func(a net.Addr) bool { return isAt(a, at) })
}

// isAt reports whether an address of an interface is this one.
func isAt(a net.Addr, at netip.Addr) bool {
	network, ok := a.(*net.IPNet)
	if !ok {
		return false
	}
	ip, ok := netip.AddrFromSlice(network.IP)
	return ok && ip.Unmap() == at
}

// isMetadataService reports whether a cloud answers at an address with the credentials of the machine that asks. Most clouds use a link-local one,
// 169.254.169.254; these are the others, of EC2, Google Cloud, Alibaba Cloud and Azure.
func isMetadataService(at netip.Addr) bool {
	switch at.String() {
	case "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16":
		return true
	}
	return false
}
