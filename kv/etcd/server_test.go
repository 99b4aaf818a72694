package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// listenAndServe runs ListenAndServe until stop is called or the test ends.
func listenAndServe(t *testing.T, cfg etcd.ServeConfig) (addrs []net.Addr, stop func()) {
	t.Helper()
	ready := make(chan []net.Addr, 1)
	cfg.Ready = func(addrs []net.Addr) { ready <- addrs }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- etcd.ListenAndServe(ctx, cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case addrs = <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return addrs, stop
}

func TestPlaintextOnlyOnLoopback(t *testing.T) {
	ks := openAtoll(t)
	for _, address := range []string{"0.0.0.0:0", ":0"} {
		err := etcd.ListenAndServe(t.Context(), etcd.ServeConfig{Keyspace: ks, Listen: []string{address}})
		if err == nil || !strings.Contains(err.Error(), "specify a certificate") {
			t.Errorf("plaintext on %s: got %v, want an error that names the remedy", address, err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := etcd.NewServer(ks, etcd.Options{}).Serve(l); err == nil {
			t.Errorf("Serve on %s did not refuse", address)
		}
		l.Close()
	}
	for _, cfg := range []etcd.ServeConfig{
		{Listen: nil},
		{Listen: []string{"127.0.0.1:0"}, CertFile: "x"},
		{Listen: []string{"127.0.0.1:0"}, ClientCAFile: "x"},
		{Listen: []string{"127.0.0.1:0"}, CertFile: "missing", KeyFile: "missing"},
	} {
		cfg.Keyspace = ks
		if err := etcd.ListenAndServe(t.Context(), cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.sign(name, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	return a
}

func (a *authority) sign(name string, tmpl *x509.Certificate, parent *authority) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	tmpl.Subject = pkix.Name{CommonName: name}
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	signer, signerKey := tmpl, key
	if parent != nil {
		signer, signerKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, signer, &key.PublicKey, signerKey)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+ext), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return key, cert
}

func (a *authority) issue(name string) (certFile, keyFile string) {
	a.sign(name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a)
	return filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	serverCert, serverKey := ca.issue("server")
	addrs, _ := listenAndServe(t, etcd.ServeConfig{
		Keyspace: openAtoll(t), Listen: []string{"127.0.0.1:0"},
		CertFile: serverCert, KeyFile: serverKey, ClientCAFile: filepath.Join(ca.dir, "ca.crt"),
	})
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	try := func(issuer *authority) error {
		cfg := &tls.Config{RootCAs: roots}
		if issuer != nil {
			pair, err := tls.LoadX509KeyPair(issuer.issue("client"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{pair}
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + addrs[0].String()}, TLS: cfg, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = c.Put(ctx, "a", "1")
		return err
	}
	if err := try(ca); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if try(nil) == nil {
		t.Error("without a certificate: accepted")
	}
	if try(newAuthority(t, "stranger")) == nil {
		t.Error("with an unknown certificate: accepted")
	}
}

// TestConcurrencyPackage runs etcd's own recipes, which combine leases, sessions, watches
// and transactions.
func TestConcurrencyPackage(t *testing.T) {
	t.Parallel()
	_, c := serve(t, openAtoll(t), etcd.Options{})
	ctx := t.Context()
	newSession := func() *concurrency.Session {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(2))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, two := newSession(), newSession()
	defer two.Close()

	m1, m2 := concurrency.NewMutex(one, "/lock"), concurrency.NewMutex(two, "/lock")
	if err := m1.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m2.TryLock(ctx); err != concurrency.ErrLocked {
		t.Fatalf("second lock: %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- m2.Lock(ctx) }()
	if err := m1.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}

	e1, e2 := concurrency.NewElection(one, "/leader"), concurrency.NewElection(two, "/leader")
	if err := e1.Campaign(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	won := make(chan error, 1)
	go func() { won <- e2.Campaign(ctx, "two") }()
	if r, err := e2.Leader(ctx); err != nil || string(r.Kvs[0].Value) != "one" {
		t.Fatalf("leader: %v, %v", r, err)
	}
	// The leader dies without resigning; its lease expires.
	one.Orphan()
	select {
	case err := <-won:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no candidate took over from a dead leader")
	}
	if r, err := e2.Leader(ctx); err != nil || string(r.Kvs[0].Value) != "two" {
		t.Fatalf("leader: %v, %v", r, err)
	}
}

func TestHealthAndMetrics(t *testing.T) {
	engine := etcd.NewEngineMetrics()
	addrs, stop := listenAndServe(t, etcd.ServeConfig{
		Keyspace: openAtollWith(t, mvcc.Options{Observer: engine.Observer()}),
		Listen:   []string{"127.0.0.1:0"}, MetricsListen: "127.0.0.1:0",
		Started: func(s *etcd.Server) { s.Registry().MustRegister(engine) },
	})
	c := connect(t, "http://"+addrs[0].String())
	if _, err := c.Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "a", clientv3.WithRev(1000)); err == nil {
		t.Fatal("a read at a future revision succeeded")
	}
	health := healthpb.NewHealthClient(c.ActiveConnection())
	if r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", r, err)
	}
	page := fetch(t, "http://"+addrs[1].String()+"/metrics")
	for _, want := range []string{
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV"} 1`,
		`grpc_server_handled_total{grpc_code="OutOfRange",grpc_method="Range",grpc_service="etcdserverpb.KV"} 1`,
		`grpc_server_handling_seconds_count{grpc_method="Put",grpc_service="etcdserverpb.KV"} 1`,
		"atoll_kv_revision 2\n", "atoll_kv_compacted_revision 0\n", "atoll_kv_up 1\n", "atoll_kv_db_size_bytes ", "atoll_kv_watch_streams 0\n",
		"atoll_kv_commit_seconds_count 1\n", "atoll_kv_commit_writes_sum 1\n", "atoll_kv_changes_total 1\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("metrics lack %q:\n%s", want, page)
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if got := fetch(t, "http://"+addrs[1].String()+path); got != "ok\n" {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := fetch(t, "http://"+addrs[1].String()+"/health"); !strings.Contains(got, `"health":"true"`) {
		t.Errorf("health page: %s", got)
	}
	stop()
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// partly is a keyspace with a partition that is not served.
type partly struct{ kv.Keyspace }

func (partly) Probe(context.Context) error {
	return fmt.Errorf("keyspace %q: %w: it lacks revision 7", "default@partition:/p/", kv.ErrBehind)
}

// TestPartNotReady: a server is not ready if a part of its keyspace is not served, and says which.
func TestPartNotReady(t *testing.T) {
	addrs, stop := listenAndServe(t, etcd.ServeConfig{
		Keyspace: partly{openAtoll(t)}, Listen: []string{"127.0.0.1:0"}, MetricsListen: "127.0.0.1:0",
	})
	defer stop()
	for path, want := range map[string]string{"/livez": "ok", "/readyz": "partition:/p/", "/health": "partition:/p/"} {
		if got := fetch(t, "http://"+addrs[1].String()+path); !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// TestRestart checks that a watch survives its server's restart, and misses and repeats
// nothing.
func TestRestart(t *testing.T) {
	t.Parallel()
	ks := openAtoll(t)
	addrs, stop := listenAndServe(t, etcd.ServeConfig{Keyspace: ks, Listen: []string{"127.0.0.1:0"}})
	address := addrs[0].String()
	c := connect(t, "http://"+address)
	watch := c.Watch(clientv3.WithRequireLeader(t.Context()), "k", clientv3.WithPrefix())
	put := func(i int) {
		op := kv.Op{Put: &kv.PutOp{Key: []byte("k"), Value: fmt.Append(nil, i)}}
		if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	next := 0
	expect := func(until int) {
		t.Helper()
		for next < until {
			select {
			case r := <-watch:
				if r.Err() != nil {
					t.Fatal(r.Err())
				}
				for _, e := range r.Events {
					if string(e.Kv.Value) != fmt.Sprint(next) {
						t.Fatalf("got value %s, want %d", e.Kv.Value, next)
					}
					next++
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("no event %d", next)
			}
		}
	}
	for round := range 3 {
		if round != 1 { // the second time the stream breaks before any event
			put(next)
			expect(next + 1)
		}
		stop()
		put(next)
		put(next + 1)
		_, stop = listenAndServe(t, etcd.ServeConfig{Keyspace: ks, Listen: []string{address}})
		expect(next + 2)
	}
}

func TestOperatorCalls(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{})
	ctx := t.Context()
	if _, err := c.Put(ctx, "a", "1"); err != nil {
		t.Fatal(err)
	}
	st, err := c.Status(ctx, c.Endpoints()[0])
	if err != nil || st.Version != etcd.Version || st.DbSize == 0 || st.Header.Revision != 2 || st.Leader != st.Header.MemberId || len(st.Errors) > 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
	members, err := c.MemberList(ctx)
	if err != nil || len(members.Members) != 1 || members.Members[0].ClientURLs[0] != c.Endpoints()[0] || members.Members[0].ID != st.Header.MemberId {
		t.Errorf("members: %+v, %v", members, err)
	}
	if err := c.Sync(ctx); err != nil {
		t.Errorf("sync: %v", err)
	}
	if alarms, err := c.AlarmList(ctx); err != nil || len(alarms.Alarms) != 0 {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	if _, err := c.Defragment(ctx, c.Endpoints()[0]); err != nil {
		t.Errorf("defragment: %v", err)
	}
	if s, err := c.AuthStatus(ctx); err != nil || s.Enabled {
		t.Errorf("auth status: %v, %v", s, err)
	}
	if users, err := c.UserList(ctx); err != nil || len(users.Users) != 0 {
		t.Errorf("users: %v, %v", users, err)
	}
	if roles, err := c.RoleList(ctx); err != nil || len(roles.Roles) != 0 {
		t.Errorf("roles: %v, %v", roles, err)
	}
	if _, err := c.UserGrantRole(ctx, "x", "y"); !errors.Is(err, rpctypes.ErrUserNotFound) {
		t.Errorf("grant a role to a user: %v", err)
	}
	if _, err := c.RoleGet(ctx, "x"); !errors.Is(err, rpctypes.ErrRoleNotFound) {
		t.Errorf("get a role: %v", err)
	}
	one, err := c.HashKV(ctx, c.Endpoints()[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "a", "2"); err != nil {
		t.Fatal(err)
	}
	then, err := c.HashKV(ctx, c.Endpoints()[0], 2)
	if err != nil || then.Hash != one.Hash {
		t.Errorf("hash at revision 2: %v then, %v when it was current (%v)", then, one, err)
	}
	now, err := c.HashKV(ctx, c.Endpoints()[0], 0)
	if err != nil || now.Hash == one.Hash {
		t.Errorf("hash did not change with the data (%v)", err)
	}
	for what, call := range map[string]func() error{
		"snapshot":    func() error { _, err := c.SnapshotWithVersion(ctx); return err },
		"move leader": func() error { _, err := c.MoveLeader(ctx, 1); return err },
		"add member":  func() error { _, err := c.MemberAdd(ctx, []string{"http://x:1"}); return err },
		"downgrade":   func() error { _, err := c.Downgrade(ctx, clientv3.DowngradeValidate, "3.5"); return err },
		"enable auth": func() error { _, err := c.AuthEnable(ctx); return err },
		"add user":    func() error { _, err := c.UserAdd(ctx, "x", "y"); return err },
		"add role":    func() error { _, err := c.RoleAdd(ctx, "x"); return err },
	} {
		if err := call(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: got %v, want Unimplemented", what, err)
		}
	}
}

// TestAbandonedSocket checks that a server reuses the socket of a killed server, but not
// that of a running one.
func TestAbandonedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	cfg := etcd.ServeConfig{Keyspace: openAtoll(t), Listen: []string{"unix:" + path}}
	listenAndServe(t, cfg)
	if err := etcd.ListenAndServe(t.Context(), cfg); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second server on the same socket: %v", err)
	}
}
