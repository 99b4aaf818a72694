package workspaces

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/util/webhook"
	clientrest "k8s.io/client-go/rest"
)

// outgoing decides what webhooks of workspaces may reach. Their URLs come from users of a workspace, who must not get the server to call what
// only it can reach, or to send its own credentials.
type outgoing struct {
	// networks are those that webhooks may be in; none stands for all but the server's own machine and link.
	networks []netip.Prefix
}

// resolver returns the configuration of the clients of webhooks. It does not use upstream's: that has the credentials of the server's client
// for kubernetes.default.svc, and of the cluster that the server runs in.
func (o outgoing) resolver(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	config := func() (*clientrest.Config, error) {
		return &clientrest.Config{UserAgent: "kube-apiserver-admission", Timeout: webhookTimeout, Dial: o.dial}, nil
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
	dialer := net.Dialer{Timeout: webhookTimeout, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return fmt.Errorf("webhooks of workspaces cannot be at %s: %w", resolved, err)
		}
		if !o.permits(at.Addr()) {
			return fmt.Errorf("webhooks of workspaces may not be at %s: an administrator of the server permits networks with --workspace-webhook-networks", at.Addr())
		}
		return nil
	}}
	return dialer.DialContext(ctx, network, address)
}

// permits reports whether webhooks may be at an address.
func (o outgoing) permits(at netip.Addr) bool {
	at = at.Unmap().WithZone("")
	if len(o.networks) > 0 {
		return slices.ContainsFunc(o.networks, func(n netip.Prefix) bool { return n.Contains(at) })
	}
	return at.IsGlobalUnicast() // neither loopback, nor link-local, nor unspecified, nor multicast
}
