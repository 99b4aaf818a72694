package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// TestModeOfTLS: without a mode, the certificate of a database on another machine is verified. A mode in the URL or in the
// environment is as it is with libpq.
func TestModeOfTLS(t *testing.T) {
	for _, tt := range []struct {
		url, env string
		verified bool
	}{
		{"postgres://a@db.example.com/atoll", "", true},
		{"postgres://a@db.example.com/atoll?", "", true},
		{"postgres://a@db.example.com/atoll?pool_max_conns=4", "", true},
		{"postgres://a@10.1.2.3,127.0.0.1/atoll", "", true},
		{"postgresql://a@127.0.0.1,db.example.com/atoll", "", true},
		{"host=/var/run/postgresql,db.example.com user=a", "", true},
		{"host=db.example.com user=a", "", true},
		{"host=db.example.com user=a sslmode=prefer", "", false},
		{"postgres://a@db.example.com/atoll?sslmode=prefer", "", false},
		{"postgres://a@db.example.com/atoll?sslmode=disable", "", false},
		{"postgres://a@db.example.com/atoll", "require", false},
		{"postgres://a@127.0.0.1/atoll", "", false},
		{"postgres://a@[::1]:5433/atoll", "", false},
		{"postgres://a@localhost/atoll", "", false},
		{"postgres://a@/atoll?host=/var/run/postgresql", "", false},
	} {
		t.Setenv("PGSSLMODE", tt.env)
		o := options{schema: "atoll", maxConns: 16}
		config, err := parse(tt.url, &o)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		strict := true
		for _, f := range config.Fallbacks {
			strict = strict && (f.TLSConfig != nil && !f.TLSConfig.InsecureSkipVerify || strings.HasPrefix(f.Host, "/"))
		}
		strict = strict && (config.TLSConfig != nil && !config.TLSConfig.InsecureSkipVerify || strings.HasPrefix(config.Host, "/"))
		if o.verified != tt.verified || tt.verified && !strict {
			t.Errorf("%s (PGSSLMODE=%s): verified %v, strict %v", tt.url, tt.env, o.verified, strict)
		}
	}
}

// TestFakeServerGetsNoPassword: a server that has no TLS, or another certificate, is not even asked which user it wants, and
// the error says what to do.
func TestFakeServerGetsNoPassword(t *testing.T) {
	for name, tt := range map[string]struct {
		answer byte // to the request for TLS
		want   string
	}{
		"without TLS":         {'N', "set up TLS in the database"},
		"another certificate": {'S', "name the authority of the database's certificate with sslrootcert=FILE"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		other := httptest.NewTLSServer(nil)
		defer other.Close()
		heard := make(chan string, 1)
		go func() { heard <- fakeServer(listener, tt.answer, other.TLS) }()
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		// The mode as it is for a host on another machine.
		_, err = Open(ctx, withMode("postgres://user:secret-password@"+listener.Addr().String()+"/atoll", "verify-full"), WithTimeout(time.Second))
		stop()
		if !errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret-password") {
			t.Errorf("%s: %v", name, err)
		}
		listener.Close()
		if got := <-heard; strings.Contains(got, "user") || strings.Contains(got, "secret-password") {
			t.Errorf("%s: the server got %q", name, got)
		}
	}
	if got := tlsRemedy(x509.UnknownAuthorityError{}, true); !strings.HasPrefix(got, " (the URL names no sslmode, so it is verify-full; ") {
		t.Error(got)
	}
}

// fakeServer answers requests for TLS, and returns all else that it is sent in clear.
func fakeServer(listener net.Listener, answer byte, config *tls.Config) string {
	var heard strings.Builder
	for {
		conn, err := listener.Accept()
		if err != nil {
			return heard.String()
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		request := make([]byte, 8)
		if _, err := io.ReadFull(conn, request); err == nil && binary.BigEndian.Uint32(request[4:]) == 80877103 { // SSLRequest
			_, _ = conn.Write([]byte{answer})
			if answer == 'S' {
				_ = tls.Server(conn, config).Handshake()
			}
		} else {
			heard.Write(request)
		}
		rest, _ := io.ReadAll(io.LimitReader(conn, 1<<16))
		heard.Write(rest)
		conn.Close()
	}
}
