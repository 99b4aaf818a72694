package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/atoll-dev/atoll/kv"
)

// ClientTLS names the files that authenticate the server and the client. Without them, an
// https:// server is verified by the system's certificate authorities.
type ClientTLS struct {
	CAFile, CertFile, KeyFile string
}

// The time that a server may be silent before a client closes the connection, and the time
// that it may take to answer.
const (
	dialTimeout      = 5 * time.Second
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 5 * time.Second
)

// Dial connects to an etcd server (http, https, etcd, etcds or unix; several hosts of one
// cluster separated by commas) and checks that it answers: an etcd client would otherwise
// wait for it forever, without an error.
func Dial(ctx context.Context, address string, files ClientTLS) (*clientv3.Client, error) {
	endpoints, encrypted, err := parseEndpoints(address)
	if err != nil {
		return nil, err
	}
	cfg := clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(), Context: context.WithoutCancel(ctx),
		DialTimeout: dialTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		// Pages of values are larger than gRPC's default limit.
		DialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1 << 30))},
	}
	switch {
	case encrypted:
		if cfg.TLS, err = files.config(); err != nil {
			return nil, err
		}
	case files != (ClientTLS{}):
		return nil, fmt.Errorf("connect to %s: certificates are given, but the address is not encrypted: use https:// or etcds://", endpoints[0])
	}
	if err := probe(ctx, endpoints); err != nil {
		return nil, err
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", strings.Join(endpoints, ", "), err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := Remote(client).Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte{0}}, CountOnly: true}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: it accepts connections, but does not answer like etcd: %w: check the scheme (http or https) and the certificates",
			endpoints[0], err), client.Close())
	}
	return client, nil
}

// probe checks whether any endpoint accepts connections. gRPC retries forever and does not
// return the reason of a failure.
func probe(ctx context.Context, endpoints []string) (err error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	for _, e := range endpoints {
		network, address := "tcp", e
		if scheme, rest, _ := strings.Cut(e, "://"); scheme == "unix" {
			network, address = "unix", rest
		} else {
			address = rest
		}
		conn, derr := dialer.DialContext(ctx, network, address)
		if derr == nil {
			return conn.Close()
		}
		err = errors.Join(err, fmt.Errorf("connect to %s: %w: check that an etcd server or `atoll kv serve` listens there", e, derr))
	}
	return err
}

func parseEndpoints(address string) (endpoints []string, encrypted bool, err error) {
	scheme, rest, ok := strings.Cut(address, "://")
	form := "use http://host:port, https://host:port or unix:///path"
	switch {
	case !ok || rest == "":
		return nil, false, fmt.Errorf("invalid address of an etcd server: %s", form)
	case scheme == "unix":
		return []string{address}, false, nil
	case scheme == "http", scheme == "etcd":
		scheme = "http"
	case scheme == "https", scheme == "etcds":
		scheme, encrypted = "https", true
	default:
		return nil, false, fmt.Errorf("invalid address of an etcd server: unknown scheme %q: %s", scheme, form)
	}
	for _, host := range strings.Split(strings.TrimSuffix(rest, "/"), ",") {
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || u.Host == "" || u.Path != "" || u.RawQuery != "" {
			return nil, false, fmt.Errorf("invalid address of an etcd server: %s", form)
		}
		if u.User != nil {
			return nil, false, errors.New("invalid address of an etcd server: user names are not supported: use client certificates")
		}
		if u.Port() == "" {
			u.Host += ":2379"
		}
		endpoints = append(endpoints, u.String())
	}
	return endpoints, encrypted, nil
}

func (f ClientTLS) config() (*tls.Config, error) {
	if (f.CertFile == "") != (f.KeyFile == "") {
		return nil, errors.New("connect to etcd: a client certificate and its key are required together: specify both files or neither")
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: read the certificate authority: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("connect to etcd: read the certificate authority: %s has no certificate in PEM format", f.CAFile)
		}
	}
	if f.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: load client certificate %s with key %s: %w", f.CertFile, f.KeyFile, err)
		}
		out.Certificates = []tls.Certificate{cert}
	}
	return out, nil
}
