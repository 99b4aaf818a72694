//go:build unix

package plugin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// An access holds the connections to a provider.
type access struct {
	protocol int
	conn     *grpc.ClientConn
	// once is the connection through the keeper, for named calls. Nil without a keeper.
	once *grpc.ClientConn
}

// An endpoint is the socket and the certificates that are needed to connect to a provider that
// another process started. Unnamed calls use it, because they would take 40 % longer through the
// keeper.
type endpoint struct {
	Socket           string
	Certificate, Key []byte // ours
	Peer             []byte // the provider's
}

// endpoint returns the connection data that go-plugin uses itself and does not export.
func (d *direct) endpoint() (*endpoint, error) {
	at := d.client.ReattachConfig()
	config := d.config.TLSConfig
	if at == nil || config == nil || len(config.Certificates) != 1 {
		return nil, errors.New("the plug-in library does not expose its connection")
	}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial(at.Addr.Network(), at.Addr.String(), config)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	peers := conn.ConnectionState().PeerCertificates
	if len(peers) == 0 {
		return nil, errors.New("the provider has no certificate")
	}
	ours := config.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(ours.PrivateKey)
	if err != nil {
		return nil, err
	}
	return &endpoint{Socket: at.Addr.String(), Certificate: ours.Certificate[0], Key: key, Peer: peers[0].Raw}, nil
}

// dial connects to a provider whose private directory is dir.
func (d *endpoint) dial(dir string) (*grpc.ClientConn, error) {
	if filepath.Dir(d.Socket) != dir {
		return nil, fmt.Errorf("its socket %q is outside its own directory", d.Socket)
	}
	peer, err := x509.ParseCertificate(d.Peer)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(d.Key)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(peer)
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		var unixDialer net.Dialer
		return unixDialer.DialContext(ctx, "unix", d.Socket)
	}
	return grpc.NewClient("passthrough:///provider", grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{d.Certificate}, PrivateKey: key}},
			RootCAs:      trusted, ServerName: "localhost", MinVersion: tls.VersionTLS12,
		})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerSize)), grpc.WithDisableServiceConfig())
}
