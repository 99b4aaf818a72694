package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/kv"
)

// ServeConfig configures a server of one keyspace for etcd clients.
type ServeConfig struct {
	Keyspace kv.Keyspace
	// Name of the keyspace; the cluster's ID is derived from it.
	Name string
	// Listen lists the addresses to serve on: "host:port", or "unix:path".
	Listen []string
	// CertFile and KeyFile enable TLS. They are read again for each connection, so they can
	// be replaced in place.
	CertFile, KeyFile string
	// ClientCAFile requires clients to have a certificate signed by it.
	ClientCAFile string
	// ClientAccessFile restricts clients by the common names of their certificates; empty means
	// that every client may do everything. The file is read again when it changes.
	ClientAccessFile string
	// OnAccess is called when the file has changed: with nil if its rules are in effect, with
	// the error if it is invalid and the former rules stay.
	OnAccess func(error)
	// OnRefuse is called for each call that the rules refuse.
	OnRefuse func(commonName, method, reason string)
	// ClientURLs and TracerProvider are as in Options.
	ClientURLs     []string
	TracerProvider trace.TracerProvider
	// These are as in Options.
	MaxResponseBytes                    int64
	MaxWatchesPerConnection, MaxWatches int
	MaxConcurrentStreams                uint32
	// QuotaBytes and OnAlarm are as in Options.
	QuotaBytes int64
	OnAlarm    func(raised bool, inUse, quota int64)
	// MetricsListen is an address for Prometheus and health checks over HTTP (/metrics,
	// /health); empty means none.
	MetricsListen string
	// Ready is called when all listeners accept connections, with their addresses in the
	// order of Listen, and then the one for metrics.
	Ready func(addrs []net.Addr)
	// Started is called before Ready with the server, to add metrics.
	Started func(*Server)
}

// stopTimeout is the time that calls in progress get when the server stops.
const stopTimeout = 5 * time.Second

// ListenAndServe serves until ctx ends, and then stops gracefully and returns
// nil. The keyspace stays open.
func ListenAndServe(ctx context.Context, cfg ServeConfig) (err error) {
	if len(cfg.Listen) == 0 {
		return errors.New("serve etcd clients: no address to listen on: specify at least one, such as 127.0.0.1:2379")
	}
	tlsConfig, err := cfg.tls()
	if err != nil {
		return err
	}
	access, content, err := cfg.access()
	if err != nil {
		return err
	}
	srv := NewServer(cfg.Keyspace, Options{
		TLS: tlsConfig, Cluster: cfg.Name, ClientURLs: cfg.ClientURLs, TracerProvider: cfg.TracerProvider,
		MaxResponseBytes: cfg.MaxResponseBytes, MaxConcurrentStreams: cfg.MaxConcurrentStreams,
		MaxWatchesPerConnection: cfg.MaxWatchesPerConnection, MaxWatches: cfg.MaxWatches,
		QuotaBytes: cfg.QuotaBytes, OnAlarm: cfg.OnAlarm, access: access,
	})
	if cfg.Started != nil {
		cfg.Started(srv)
	}

	var opened []net.Listener
	defer func() {
		if err != nil {
			for _, l := range opened {
				l.Close()
			}
		}
	}()
	addrs := make([]net.Addr, 0, len(cfg.Listen)+1)
	for _, address := range append(append([]string(nil), cfg.Listen...), cfg.MetricsListen) {
		if address == "" {
			continue
		}
		l, err := listen(ctx, address)
		if err != nil {
			return err
		}
		opened = append(opened, l)
		addrs = append(addrs, l.Addr())
	}
	for _, l := range opened[:len(cfg.Listen)] {
		if err := checkPlaintext(l.Addr(), tlsConfig != nil); err != nil {
			return err
		}
	}

	group, gctx := errgroup.WithContext(ctx)
	for _, l := range opened[:len(cfg.Listen)] {
		group.Go(func() error { return srv.Serve(l) })
	}
	if access != nil {
		group.Go(func() error {
			followAccessFile(gctx, cfg.ClientAccessFile, content, func(rules accessRules) {
				access.replace(rules)
				cfg.OnAccess(nil)
			}, cfg.OnAccess)
			return nil
		})
	}
	var web *http.Server
	if len(opened) > len(cfg.Listen) {
		web = &http.Server{Handler: srv.webHandler(), ReadHeaderTimeout: 10 * time.Second}
		l := opened[len(cfg.Listen)]
		group.Go(func() error {
			if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve metrics on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		srv.Stop(stop)
		if web != nil {
			return web.Shutdown(stop)
		}
		return nil
	})
	if cfg.Ready != nil {
		cfg.Ready(addrs)
	}
	return group.Wait()
}

// access reads the access of clients, nil if they are not restricted.
func (cfg *ServeConfig) access() (*accessControl, []byte, error) {
	if cfg.ClientAccessFile == "" {
		return nil, nil, nil
	}
	if cfg.ClientCAFile == "" {
		return nil, nil, errors.New("serve etcd clients: rules for the access of clients need their certificates: specify a certificate authority of clients, too")
	}
	if cfg.OnAccess == nil {
		cfg.OnAccess = func(error) {}
	}
	rules, content, err := readAccessFile(cfg.ClientAccessFile)
	if err != nil {
		return nil, nil, fmt.Errorf("serve etcd clients: %w", err)
	}
	return newAccessControl(cfg.Keyspace, rules, cfg.OnRefuse), content, nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if network == "unix" && errors.Is(err, syscall.EADDRINUSE) && abandoned(ctx, address) {
		if err = os.Remove(address); err == nil {
			l, err = new(net.ListenConfig).Listen(ctx, network, address)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// abandoned reports whether a file is a socket without a listener. A killed server leaves
// one behind.
func abandoned(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (cfg *ServeConfig) tls() (*tls.Config, error) {
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("serve etcd clients: a certificate and its key are required together: specify both files or neither")
	}
	if cfg.CertFile == "" {
		if cfg.ClientCAFile != "" {
			return nil, errors.New("serve etcd clients: client certificates require TLS: specify a certificate and key for the server, too")
		}
		return nil, nil
	}
	load := func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load certificate %s with key %s: %w", cfg.CertFile, cfg.KeyFile, err)
		}
		return &cert, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	out := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() },
	}
	if cfg.ClientCAFile != "" {
		pem, err := os.ReadFile(cfg.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate authority: %w", err)
		}
		out.ClientCAs = x509.NewCertPool()
		if !out.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the client certificate authority: %s has no certificate in PEM format", cfg.ClientCAFile)
		}
		out.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return out, nil
}
