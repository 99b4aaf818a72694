package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
)

// restricted is a server with rules for its clients.
type restricted struct {
	t        *testing.T
	ca       *authority
	roots    *x509.CertPool
	endpoint string
	file     string
	reloads  chan error

	mu       sync.Mutex
	refusals []string
}

const accessOfTwo = `
users:
- {commonName: east, prefix: /east/, access: readwrite}
- {commonName: west, prefix: /west/, access: readwrite}
- {commonName: reader, prefix: /west/, access: read}
- {commonName: admin, access: admin}
`

func serveRestricted(t *testing.T, ks kv.Keyspace, rules string) *restricted {
	t.Helper()
	r := &restricted{t: t, ca: newAuthority(t, "ca"), roots: x509.NewCertPool(), file: filepath.Join(t.TempDir(), "access.yaml"), reloads: make(chan error, 8)}
	r.roots.AddCert(r.ca.cert)
	r.write(rules)
	cert, key := r.ca.issue("server")
	addrs, _ := listenAndServe(t, etcd.ServeConfig{
		Keyspace: ks, Name: "test", Listen: []string{"127.0.0.1:0"},
		CertFile: cert, KeyFile: key, ClientCAFile: filepath.Join(r.ca.dir, "ca.crt"), ClientAccessFile: r.file,
		OnAccess: func(err error) { r.reloads <- err },
		OnRefuse: func(commonName, method, reason string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.refusals = append(r.refusals, commonName+" "+method+": "+reason)
		},
	})
	r.endpoint = "https://" + addrs[0].String()
	return r
}

// write replaces the file of rules, as editors do.
func (r *restricted) write(rules string) {
	r.t.Helper()
	if err := os.WriteFile(r.file+".new", []byte(rules), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.file+".new", r.file); err != nil {
		r.t.Fatal(err)
	}
}

// client connects with a certificate of a common name.
func (r *restricted) client(name string) *clientv3.Client {
	r.t.Helper()
	pair, err := tls.LoadX509KeyPair(r.ca.issue(name))
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{r.endpoint}, Logger: zap.NewNop(), Context: context.Background(),
		TLS: &tls.Config{RootCAs: r.roots, Certificates: []tls.Certificate{pair}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// openRestricted returns Atoll through the client of an admin, whose calls are all checked.
func openRestricted(t testing.TB) kv.Keyspace {
	return etcd.Remote(serveRestricted(t.(*testing.T), openAtoll(t), accessOfTwo).client("admin"))
}

func denied(err error) bool {
	return status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), "etcdserver: permission denied")
}

// TestRestrictedClients makes every call as a client without the right to it. Afterwards
// nothing has changed.
func TestRestrictedClients(t *testing.T) {
	t.Parallel()
	r := serveRestricted(t, openAtoll(t), accessOfTwo)
	admin, west := r.client("admin"), r.client("west")
	lease, err := west.Grant(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"1", "2", "3"} {
		if _, err := west.Put(t.Context(), "/west/a", value, clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.Compact(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	before := dumpAll(t, admin)
	calls := attacks(int64(lease.ID))
	for _, attacker := range []string{"east", "stranger", ""} {
		conn := r.client(attacker).ActiveConnection()
		for name, attack := range calls {
			if err := attack(t.Context(), conn); !denied(err) {
				t.Errorf("%s as %q: %v, want permission denied", name, attacker, err)
			}
		}
	}
	if after := dumpAll(t, admin); after != before {
		t.Errorf("the attacks changed %s to %s", before, after)
	}
	r.mu.Lock()
	if got := strings.Join(r.refusals, "\n"); !strings.Contains(got, `east /etcdserverpb.KV/Put: no rule grants writing the key "/west/a"`) {
		t.Errorf("the operator is not told why: %s", got)
	}
	r.mu.Unlock()
	for name, err := range map[string]error{
		"status as a stranger": func() error { _, err := r.client("stranger").Status(t.Context(), r.endpoint); return err }(),
		"put by the reader":    func() error { _, err := r.client("reader").Put(t.Context(), "/west/a", "x"); return err }(),
	} {
		if !denied(err) && !strings.Contains(fmt.Sprint(err), "permission denied") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := healthpb.NewHealthClient(r.client("stranger").ActiveConnection()).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health as a stranger: %v", err)
	}
}

func dumpAll(t *testing.T, admin *clientv3.Client) string {
	t.Helper()
	kvs, err := admin.Get(t.Context(), "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	leases, err := admin.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(kvs.Header.Revision, kvs.Kvs, leases.Leases)
}

// TestRightsOfClients uses everything that a client with a prefix needs.
func TestRightsOfClients(t *testing.T) {
	t.Parallel()
	r := serveRestricted(t, openAtoll(t), accessOfTwo)
	ctx, west, reader := t.Context(), r.client("west"), r.client("reader")
	prefix := clientv3.WithPrefix()
	lease, err := west.Grant(ctx, 1000)
	if err != nil {
		t.Fatal(err)
	}
	watch := reader.Watch(ctx, "/west/", prefix, clientv3.WithCreatedNotify())
	if w := <-watch; !w.Created {
		t.Fatalf("watch: %v", w.Err())
	}
	put := clientv3.OpPut("/west/a", "1", clientv3.WithLease(lease.ID))
	if _, err := west.Txn(ctx).If(clientv3.Compare(clientv3.Version("/west/a"), "=", 0)).Then(put, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("/west/", prefix)}, nil)).Commit(); err != nil {
		t.Fatal(err)
	}
	if w := <-watch; w.Err() != nil || len(w.Events) != 1 {
		t.Errorf("watch: %v, %v", w, w.Err())
	}
	for name, call := range map[string]func() error{
		"keepalive":         func() error { _, err := west.KeepAliveOnce(ctx, lease.ID); return err },
		"time to live":      func() error { _, err := reader.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys()); return err },
		"get":               func() error { _, err := reader.Get(ctx, "/west/", prefix); return err },
		"progress":          func() error { return reader.RequestProgress(ctx) },
		"status":            func() error { _, err := reader.Status(ctx, r.endpoint); return err },
		"endpoints":         func() error { _, err := reader.MemberList(ctx); return err },
		"alarms":            func() error { _, err := reader.AlarmList(ctx); return err },
		"no such lease":     func() error { _, err := west.TimeToLive(ctx, 99, clientv3.WithAttachedKeys()); return err },
		"revoke by reading": func() error { _, err := reader.Revoke(ctx, lease.ID); return wantDenied(err) },
		"renew by reading":  func() error { _, err := reader.KeepAliveOnce(ctx, lease.ID); return wantDenied(err) },
		"lock": func() error {
			l, err := v3lockpb.NewLockClient(west.ActiveConnection()).Lock(ctx, &v3lockpb.LockRequest{Name: []byte("/west/lock")})
			if err == nil {
				_, err = v3lockpb.NewLockClient(west.ActiveConnection()).Unlock(ctx, &v3lockpb.UnlockRequest{Key: l.Key})
			}
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := west.Revoke(ctx, lease.ID); err != nil {
		t.Errorf("revoke: %v", err)
	}
	if _, err := r.client("admin").Compact(ctx, 2); err != nil {
		t.Errorf("compact: %v", err)
	}
}

func wantDenied(err error) error {
	if strings.Contains(fmt.Sprint(err), "permission denied") {
		return nil
	}
	return fmt.Errorf("%v, want permission denied", err)
}

// TestRightsWithdrawn changes the rules under an open watch. It ends, and an invalid file
// changes nothing.
func TestRightsWithdrawn(t *testing.T) {
	t.Parallel()
	r := serveRestricted(t, openAtoll(t), accessOfTwo)
	ctx, reader, west := t.Context(), r.client("reader"), r.client("west")
	opened := func(c *clientv3.Client) clientv3.WatchChan {
		watch := c.Watch(ctx, "/west/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if w := <-watch; !w.Created {
			t.Fatalf("watch: %v", w.Err())
		}
		return watch
	}
	withdrawn, kept := opened(reader), opened(west)

	r.write("users: [{commonName: reader, acess: admin}]")
	if err := <-r.reloads; err == nil || !strings.Contains(err.Error(), `line 1: unknown field "acess"`) {
		t.Errorf("an invalid file: %v", err)
	}
	if _, err := reader.Get(ctx, "/west/a"); err != nil {
		t.Errorf("with an invalid file: %v", err)
	}

	r.write(strings.ReplaceAll(accessOfTwo, "reader, prefix: /west/", "reader, prefix: /east/"))
	if err := <-r.reloads; err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Get(ctx, "/west/a"); wantDenied(err) != nil {
		t.Errorf("get after the right was withdrawn: %v", err)
	}
	for w := range withdrawn { // the client tries to resume it
		if len(w.Events) > 0 {
			t.Errorf("an event after the right was withdrawn: %v", w.Events)
		}
		if w.Canceled && wantDenied(w.Err()) != nil {
			t.Errorf("the watch ended with %v", w.Err())
		}
	}
	if _, err := west.Put(ctx, "/west/a", "1"); err != nil {
		t.Fatal(err)
	}
	if w := <-kept; len(w.Events) != 1 {
		t.Errorf("the watch of another client: %v, %v", w, w.Err())
	}
}

// TestAccessNeedsCertificates checks that rules without client certificates are refused.
func TestAccessNeedsCertificates(t *testing.T) {
	t.Parallel()
	err := etcd.ListenAndServe(t.Context(), etcd.ServeConfig{Keyspace: openAtoll(t), Listen: []string{"127.0.0.1:0"}, ClientAccessFile: "access.yaml"})
	if err == nil || !strings.Contains(err.Error(), "certificate authority of clients") {
		t.Error(err)
	}
}
