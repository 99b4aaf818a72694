//go:build unix

package provider

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

// An access is how a provider is spoken to.
type access struct {
	protocol int
	conn     *grpc.ClientConn
	// once is for calls that have a name: through the keeper. Nil if there is none.
	once *grpc.ClientConn
}

// A door is what it takes to speak to a provider that another process started: its socket, and the certificates that
// the two agreed on. Calls that need no keeper would take 40 % longer through one.
type door struct {
	Socket           string
	Certificate, Key []byte // ours
	Peer             []byte // the provider's
}

// door gives the way in that go-plugin uses itself, and keeps to itself.
func (d *direct) door() (*door, error) {
	at := d.client.ReattachConfig()
	config := d.config.TLSConfig
	if at == nil || config == nil || len(config.Certificates) != 1 {
		return nil, errors.New("the plug-in library tells nothing of its connection")
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
		return nil, errors.New("it has no certificate")
	}
	ours := config.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(ours.PrivateKey)
	if err != nil {
		return nil, err
	}
	return &door{Socket: at.Addr.String(), Certificate: ours.Certificate[0], Key: key, Peer: peers[0].Raw}, nil
}

// open connects to a provider whose private directory is dir.
func (d *door) open(dir string) (*grpc.ClientConn, error) {
	if filepath.Dir(d.Socket) != dir {
		return nil, fmt.Errorf("it is at %q, and not in its own directory", d.Socket)
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
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", d.Socket)
	}
	return grpc.NewClient("passthrough:///provider", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{d.Certificate}, PrivateKey: key}},
			RootCAs:      trusted, ServerName: "localhost", MinVersion: tls.VersionTLS12,
		})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer)), grpc.WithDisableServiceConfig())
}
