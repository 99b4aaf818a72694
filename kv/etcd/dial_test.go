package etcd_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
)

func TestDial(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	serverCert, serverKey := ca.issue("server")
	addrs, _ := listenAndServe(t, etcd.ServeConfig{
		Keyspace: openAtoll(t), Listen: []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "s")},
		CertFile: serverCert, KeyFile: serverKey, ClientCAFile: filepath.Join(ca.dir, "ca.crt"),
	})
	_, plain := serve(t, openAtoll(t), etcd.Options{})
	open := strings.TrimPrefix(plain.Endpoints()[0], "http://")
	cert, key := ca.issue("client")
	files := etcd.ClientTLS{CAFile: filepath.Join(ca.dir, "ca.crt"), CertFile: cert, KeyFile: key}
	secure := addrs[0].String()

	for _, ok := range []struct {
		address string
		files   etcd.ClientTLS
	}{
		{"https://" + secure, files},
		{"etcds://" + secure + "/", files},
		{"etcd://" + open, etcd.ClientTLS{}},
		{"http://" + open + ",127.0.0.1:1", etcd.ClientTLS{}},
		{"http://127.0.0.1:1," + open, etcd.ClientTLS{}},
	} {
		c, err := etcd.Dial(t.Context(), ok.address, ok.files)
		if err != nil {
			t.Errorf("%s: %v", ok.address, err)
			continue
		}
		if _, err := etcd.Remote(c).Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}); err != nil {
			t.Errorf("%s: %v", ok.address, err)
		}
		c.Close()
	}
	for _, bad := range []struct {
		address string
		files   etcd.ClientTLS
		want    string
	}{
		{"https://" + secure, etcd.ClientTLS{CAFile: files.CAFile}, "check the scheme"},
		{"https://" + secure, etcd.ClientTLS{CertFile: cert, KeyFile: key}, "check the scheme"},
		{"https://" + secure, etcd.ClientTLS{CertFile: cert}, "required together"},
		{"https://" + secure, etcd.ClientTLS{CAFile: key}, "no certificate"},
		{"http://" + open, files, "not encrypted"},
		{"http://127.0.0.1:1", etcd.ClientTLS{}, "listens there"},
		{"http://u:secret@" + open, etcd.ClientTLS{}, "client certificates"},
		{"http://" + open + "/path", etcd.ClientTLS{}, "use http"},
		{"ftp://" + open, etcd.ClientTLS{}, "unknown scheme"},
		{open, etcd.ClientTLS{}, "use http"},
		{"http://", etcd.ClientTLS{}, "use http"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		c, err := etcd.Dial(ctx, bad.address, bad.files)
		cancel()
		if err == nil || !strings.Contains(err.Error(), bad.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", bad.address, err, bad.want)
		}
		if err == nil {
			c.Close()
		}
	}
}

// TestDialSilence checks that a server that accepts connections and does not answer cannot
// hang a command.
func TestDialSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := etcd.Dial(ctx, "http://"+l.Addr().String(), etcd.ClientTLS{}); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a silent server: %v", err)
		if err == nil {
			c.Close()
		}
	}
}
