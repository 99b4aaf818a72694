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

// memberServerName is how members call a server: their API servers address it as
// a Service of theirs.
const memberServerName = expose.Service + "." + v1alpha1.SystemNamespace + ".svc"

// WithoutMemberPort as MemberPort serves no members.
const WithoutMemberPort = -1

// memberFace is the port that the API servers of members call, for what is
// exposed to them. It knows who calls by another rule than the main port, and
// nothing that the main port trusts counts here.
type memberFace struct {
	listener net.Listener
	// address that is told to members.
	address netip.AddrPort
	// open connections of members.
	open connections
}

// listenForMembers opens the member port, unless there is to be none.
func (c *Config) listenForMembers() (*memberFace, error) {
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
	return &memberFace{listener: listener, address: announced}, nil
}

// memberAddresses gives what members are told, with port 0 if it is that of the
// listener, and the IP to listen on: not valid if members are not served.
func (c *Config) memberAddresses() (announced netip.AddrPort, bind netip.Addr, err error) {
	switch {
	case c.MemberPort == WithoutMemberPort && c.MemberAddress != "":
		return announced, bind, errors.New("a member address without a member port has no use: leave --member-address out, or give --member-port a port from 1 to 65535, or 0 for any free one")
	case c.MemberPort == WithoutMemberPort:
		return announced, bind, nil
	case c.MemberPort < 0 || c.MemberPort > 65535:
		return announced, bind, fmt.Errorf("member port %d is out of range: give one from 1 to 65535, 0 for any free one, or -1 to serve no members", c.MemberPort)
	}
	bind, err = netip.ParseAddr(c.BindAddress)
	if err != nil {
		return announced, bind, err
	}
	bind = bind.Unmap()
	if c.MemberAddress == "" {
		if bind.IsLoopback() {
			return announced, netip.Addr{}, nil // no member could call it
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
	announced, err = readMemberAddress(c.MemberAddress)
	if err != nil {
		return announced, netip.Addr{}, err
	}
	if bind.IsLoopback() {
		bind = announced.Addr()
	}
	return announced, bind, nil
}

// readMemberAddress reads IP or IP:PORT.
func readMemberAddress(text string) (netip.AddrPort, error) {
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
		return at, fmt.Errorf("member address %q cannot be used: %w: give the IP address, or IP:PORT, by which member clusters reach this server", text, err)
	}
	return at, nil
}

// usableByMembers refuses what Kubernetes does not take as an endpoint: addresses
// that mean something else on each machine.
func usableByMembers(ip netip.Addr) error {
	switch {
	case ip.IsLoopback():
		return errors.New("it is the loopback's, which leads each machine to itself")
	case ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip.Zone() != "":
		return errors.New("it is not an address of one machine that others can reach")
	}
	return nil
}

func (f *memberFace) Close() error { return f.listener.Close() }

// serveMembers answers members until ctx ends. Watches end when the API does.
func (s *Server) serveMembers(ctx context.Context) error {
	if !s.awaitAPI(ctx) {
		return nil
	}
	server := &http.Server{
		Handler: aggregate.NewHandler(s.directory, s.api.Handler()),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// Whose a certificate is depends on the member; the handler finds out.
			ClientAuth:     tls.RequestClientCert,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.pki.serving.Load(), nil },
		},
		ConnContext: aggregate.ConnContext(s.cfg.Clock),
		// What a stranger can hold on to without having said anything.
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      30 * time.Second,
		},
		ConnState: s.members.open.note,
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

// handshakeErrors take what http.Server says of connections: whoever can reach
// the port can make it say something.
type handshakeErrors struct{}

func (handshakeErrors) Write(line []byte) (int, error) {
	klog.V(2).InfoS("On the member port", "message", string(line))
	return len(line), nil
}

// termsOf are the terms on which a group is exposed to a member.
func (s *Server) termsOf(cluster, group string) (v1alpha1.SharedAPISpec, bool) {
	return s.directory.Terms(cluster, group)
}

// reachMember gives the way to a member by which it joined.
func (s *Server) reachMember(ctx context.Context, cluster string) (*rest.Config, string, error) {
	client, err := dynamic.NewForConfig(s.api.ClientConfig(serverUser))
	if err != nil {
		return nil, "", err
	}
	access, err := fleet.Reach(ctx, client, cluster)
	if err != nil {
		return nil, "", err
	}
	return access.REST, access.Digest, nil
}

// awaitAPI tells whether the API became ready before ctx ended.
func (s *Server) awaitAPI(ctx context.Context) bool {
	select {
	case <-s.api.Ready():
		return true
	case <-ctx.Done():
		return false
	}
}

// MemberAddress is where members reach this server, as IP:PORT; empty if it
// serves none.
func (s *Server) MemberAddress() string {
	if s.members == nil {
		return ""
	}
	return net.JoinHostPort(s.members.address.Addr().String(), strconv.Itoa(int(s.members.address.Port())))
}
