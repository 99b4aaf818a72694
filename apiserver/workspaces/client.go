package workspaces

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	clientrest "k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver"
)

// ClientConfigAs returns the configuration of a client of an open workspace, as the part of Atoll with that name. It has all permissions in the
// workspace, and may impersonate users of it. Unlike those of ClientConfig, its requests count among those of the workspace: limits, turns and fair
// queues apply to them, because users of the workspace determine how many there are. They do not keep the workspace open: the caller does.
func (s *Server) ClientConfigAs(w *Workspace, path, name string) (*clientrest.Config, error) {
	config, err := s.ClientConfig(w)
	if err != nil {
		return nil, err
	}
	chain, err := s.built()
	if err != nil {
		return nil, err
	}
	config.Transport = loopback{chain: chain, workspace: w, path: path, as: &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}
	return config, nil
}

// contextOf returns the context of a request, with its user.
func (l loopback) contextOf(r *http.Request) context.Context {
	ctx := withWorkspace(r.Context(), l.workspace, l.path)
	if l.as != nil {
		return apiserver.MarkImpersonation(request.WithUser(ctx, l.as), r)
	}
	return context.WithValue(request.WithUser(ctx, serverIdentity), serversKey{}, true)
}

// OriginUID returns the UID of the Workspace that this one was created with: a move does not change it, and no copy has it.
func (w *Workspace) OriginUID() string { return w.issuedBy }

// Count returns how many custom resources of a kind a workspace stores.
func (w *Workspace) Count(ctx context.Context, resource schema.GroupResource) (int64, error) {
	found, err := w.client.KV.Get(ctx, customKey(resource), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count the %s of a workspace: %w", resource, err)
	}
	return found.Count, nil
}

// RestrictedDial returns a function that connects to addresses in the networks; with none, to all but those of the server's own machine, link-local
// ones, and the metadata services of clouds. what and flag are for its errors: what connects there, and the flag that permits networks.
func RestrictedDial(networks []netip.Prefix, what, flag string) func(ctx context.Context, network, address string) (net.Conn, error) {
	o := outgoing{networks}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return o.dialTo(ctx, network, address, what, flag)
	}
}

// dialTo connects to an address that is permitted. It checks the address after its name was resolved.
func (o outgoing) dialTo(ctx context.Context, network, address, what, flag string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: webhookTimeout, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return fmt.Errorf("%s of workspaces cannot be at %s: %w", what, resolved, err)
		}
		own, err := net.InterfaceAddrs()
		if err != nil {
			return fmt.Errorf("%s of workspaces cannot be at %s: read the addresses of the server's machine: %w", what, resolved, err)
		}
		if !o.permits(at.Addr(), own) {
			return fmt.Errorf("%s of workspaces may not be at %s: an administrator of the server permits networks with %s", what, at.Addr(), flag)
		}
		return nil
	}}
	return dialer.DialContext(ctx, network, address)
}
