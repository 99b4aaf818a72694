package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/atoll-dev/atoll/aggregate"
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/expose"
)

// memberServerName is the name by which members call a server: their API servers
// address it as a Service in their own cluster.
const memberServerName = expose.Service + "." + v1alpha1.SystemNamespace + ".svc"

// WithoutMemberPort as MemberPort disables the member port.
const WithoutMemberPort = -1

// memberListener is the port that the API servers of members call for the groups
// exposed to them. It authenticates callers differently from the main port, and does
// not accept the main port's credentials.
type memberListener struct {
	listener net.Listener
	// address that is announced to members.
	address netip.AddrPort
	// open has the connections from members.
	open connections
}

// listenForMembers opens the member port, unless it is disabled.
func (c *Config) listenForMembers() (*memberListener, error) {
	announced, bind, err := c.memberAddresses()
	if err != nil || !bind.IsValid() {
		return nil, err
	}
	listener, err := listen(bind.String(), c.MemberPort, "--member-address", "--member-port")
	if err != nil {
		return nil, err
	}
	if announced.Port() == 0 {
		port := listener.Addr().(*net.TCPAddr).Port
		announced = netip.AddrPortFrom(announced.Addr(), uint16(port))
	}
	return &memberListener{listener: listener, address: announced}, nil
}

// memberAddresses returns the address to announce to members, with port 0 for the
// listener's port, and the IP to listen on. That is invalid if members are not served.
func (c *Config) memberAddresses() (announced netip.AddrPort, bind netip.Addr, err error) {
	switch {
	case c.MemberPort == WithoutMemberPort && c.MemberAddress != "":
		return announced, bind, errors.New("--member-address requires a member port: omit --member-address, or set --member-port to a port from 1 to 65535, or to 0 for any free one")
	case c.MemberPort == WithoutMemberPort:
		return announced, bind, nil
	case c.MemberPort < 0 || c.MemberPort > 65535:
		return announced, bind, fmt.Errorf("member port %d is out of range: use a port from 1 to 65535, 0 for any free one, or -1 to serve no members", c.MemberPort)
	}
	bind, err = netip.ParseAddr(c.BindAddress)
	if err != nil {
		return announced, bind, err
	}
	bind = bind.Unmap()
	if c.MemberAddress == "" {
		if bind.IsLoopback() {
			return announced, netip.Addr{}, nil // no member could reach it
		}
		address := bind
		if bind.IsUnspecified() {
			if address, err = netip.ParseAddr(c.advertiseIP().String()); err != nil {
				return announced, bind, err
			}
		}
		if usableByMembers(address) != nil {
			return announced, netip.Addr{}, nil
		}
		return netip.AddrPortFrom(address, 0), bind, nil
	}
	announced, err = parseMemberAddress(c.MemberAddress)
	if err != nil {
		return announced, netip.Addr{}, err
	}
	if bind.IsLoopback() {
		bind = announced.Addr()
	}
	return announced, bind, nil
}

// parseMemberAddress parses IP or IP:PORT.
func parseMemberAddress(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		var ip netip.Addr
		if ip, err = netip.ParseAddr(text); err == nil {
			at = netip.AddrPortFrom(ip, 0)
		}
	}
	if err == nil {
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		err = usableByMembers(at.Addr())
	}
	if err != nil {
		return at, fmt.Errorf("member address %q is invalid: %w: use the IP address, or IP:PORT, at which member clusters reach this server", text, err)
	}
	return at, nil
}

// usableByMembers rejects addresses that Kubernetes does not accept as an endpoint:
// those that mean something else on each machine.
func usableByMembers(ip netip.Addr) error {
	switch {
	case ip.IsLoopback():
		return errors.New("it is a loopback address, which other machines cannot reach")
	case ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip.Zone() != "":
		return errors.New("it is not a unicast address that other machines can reach")
	}
	return nil
}

func (f *memberListener) Close() error { return f.listener.Close() }

// serveMembers serves members until ctx ends. Watches end when the API does.
func (s *Server) serveMembers(ctx context.Context) error {
	if !awaitServing(ctx, s.api) {
		return nil
	}
	connected := aggregate.ConnContext(s.cfg.Clock)
	server := &http.Server{
		Handler: s.members.open.handler(aggregate.NewHandler(s.directory, s.api.Handler(), s.metrics.members)),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// Which authority is valid depends on the member; the handler verifies it.
			ClientAuth:     tls.RequestClientCert,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.pki.serving.Load(), nil },
		},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return s.members.open.connContext(connected(ctx, conn), conn)
		},
		// Limits how long an unauthenticated client can occupy a connection.
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      30 * time.Second,
		},
		ConnState: s.members.open.track,
		ErrorLog:  log.New(handshakeErrors{}, "", 0),
	}
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		// Longer than the API takes to end its watches.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close()
		}
	})()
	if err := server.ServeTLS(s.members.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve members on %s: %w", s.members.listener.Addr(), err)
	}
	<-stopped
	return nil
}

// handshakeErrors logs http.Server's messages about connections at a higher verbosity:
// any client that reaches the port can cause them.
type handshakeErrors struct{}

func (handshakeErrors) Write(line []byte) (int, error) {
	klog.V(2).InfoS("member port", "message", string(line))
	return len(line), nil
}

// sharedAPI returns the spec of the SharedAPI that exposes a group to a member, if one
// does.
func (s *Server) sharedAPI(cluster, group string) (v1alpha1.SharedAPISpec, bool) {
	return s.directory.SharedAPI(cluster, group)
}

// memberClientConfig returns the client configuration with which a member joined.
func (s *Server) memberClientConfig(ctx context.Context, cluster string) (*rest.Config, string, error) {
	client, err := dynamic.NewForConfig(s.api.ClientConfig(serverUser))
	if err != nil {
		return nil, "", err
	}
	access, err := fleet.ReadAccess(ctx, client, cluster)
	if err != nil {
		return nil, "", err
	}
	return access.REST, access.Digest, nil
}

// MemberAddress returns the address at which members reach this server, as IP:PORT;
// empty if it serves none.
func (s *Server) MemberAddress() string {
	if s.members == nil {
		return ""
	}
	return net.JoinHostPort(s.members.address.Addr().String(), strconv.Itoa(int(s.members.address.Port())))
}
