package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/postgres"
	"github.com/atoll-dev/atoll/kv/sqlite"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

// openEngine opens a keyspace of a database, and returns a function that closes both.
func openEngine(t *testing.T, db kv.Backend) (*mvcc.Keyspace, func()) {
	t.Helper()
	table, err := db.Open(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	closing := func() {
		if !closed {
			closed = true
			ks.Close()
			db.Close()
		}
	}
	t.Cleanup(closing)
	return ks, closing
}

// quotaServer is a server with a quota, its client, and the address of its metrics.
type quotaServer struct {
	t      *testing.T
	client *clientv3.Client
	web    string
	stop   func()
}

func serveQuota(t *testing.T, ks kv.Keyspace, quota int64) *quotaServer {
	addrs, stop := listenAndServe(t, etcd.ServeConfig{
		Keyspace: ks, Name: "test", Listen: []string{"127.0.0.1:0"}, MetricsListen: "127.0.0.1:0", QuotaBytes: quota,
	})
	return &quotaServer{t, connect(t, "http://"+addrs[0].String()), "http://" + addrs[1].String(), stop}
}

func (s *quotaServer) get(path string) (int, string) {
	s.t.Helper()
	r, err := http.Get(s.web + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// fill writes until the quota is reached, and returns the number of keys.
func (s *quotaServer) fill() (keys int) {
	s.t.Helper()
	value := make([]byte, 64<<10)
	random := rand.NewChaCha8([32]byte{1})
	for ; keys < 1000; keys++ {
		random.Read(value) // a database may compress values
		_, err := s.client.Put(s.t.Context(), fmt.Sprintf("fill/%04d", keys), string(value))
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return keys
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Fatal("the quota was not enforced")
	return 0
}

// refused checks that everything that adds data is refused with etcd's error, and
// everything else works.
func (s *quotaServer) refused(lease clientv3.LeaseID) {
	s.t.Helper()
	ctx, c := s.t.Context(), s.client
	put, del := clientv3.OpPut("more", "x"), clientv3.OpDelete("less")
	for name, call := range map[string]func() error{
		"put":  func() error { _, err := c.Put(ctx, "more", "x"); return err },
		"txn":  func() error { _, err := c.Txn(ctx).Then(put).Commit(); return err },
		"else": func() error { _, err := c.Txn(ctx).Else(put).Commit(); return err },
		"nested txn": func() error {
			_, err := c.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{put}, nil)).Commit()
			return err
		},
		"grant": func() error { _, err := c.Grant(ctx, 100); return err },
	} {
		if err := call(); !errors.Is(err, rpctypes.ErrNoSpace) {
			s.t.Errorf("%s: %v, want %v", name, err, rpctypes.ErrNoSpace)
		}
	}
	for name, call := range map[string]func() error{
		"get": func() error {
			_, err := c.Get(ctx, "fill/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err
		},
		"delete":    func() error { _, err := c.Delete(ctx, "less"); return err },
		"txn":       func() error { _, err := c.Txn(ctx).Then(del).Commit(); return err },
		"keepalive": func() error { _, err := c.KeepAliveOnce(ctx, lease); return err },
	} {
		if err := call(); err != nil {
			s.t.Errorf("%s with the alarm: %v", name, err)
		}
	}
}

// reported checks that the alarm is shown wherever etcd shows it.
func (s *quotaServer) reported(quota int64) {
	s.t.Helper()
	list, err := s.client.AlarmList(s.t.Context())
	if err != nil || len(list.Alarms) != 1 || list.Alarms[0].Alarm.String() != "NOSPACE" {
		s.t.Fatalf("alarms: %v, %v", list, err)
	}
	st, err := s.client.Status(s.t.Context(), s.client.Endpoints()[0])
	if err != nil || len(st.Errors) != 1 || !strings.Contains(st.Errors[0], "alarm:NOSPACE") || st.DbSizeQuota != quota {
		s.t.Errorf("status: %v, %v", st, err)
	}
	if code, text := s.get("/health"); code != http.StatusServiceUnavailable || text != `{"health":"false","reason":"ALARM NOSPACE"}`+"\n" {
		s.t.Errorf("health: %d %s", code, text)
	}
	if code, text := s.get("/health?exclude=NOSPACE"); code != http.StatusOK {
		s.t.Errorf("health without the alarm: %d %s", code, text)
	}
	if code, text := s.get("/readyz"); code != http.StatusOK {
		s.t.Errorf("readyz: %d %s", code, text)
	}
	_, text := s.get("/metrics")
	for _, want := range []string{fmt.Sprintf("etcd_server_quota_backend_bytes %v\n", float64(quota)), "atoll_kv_alarm_nospace 1\n"} {
		if !strings.Contains(text, want) {
			s.t.Errorf("metrics lack %q", want)
		}
	}
}

// recovered makes room and disarms the alarm, after which writes continue.
func (s *quotaServer) recovered(quota int64) {
	s.t.Helper()
	ctx, c := s.t.Context(), s.client
	r, err := c.Delete(ctx, "fill/", clientv3.WithPrefix())
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := c.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		s.t.Fatal(err)
	}
	// The statistics of PostgreSQL are late.
	eventually(s.t, "compaction makes room", func(ctx context.Context) bool {
		st, err := c.Status(ctx, c.Endpoints()[0])
		return err == nil && st.DbSizeInUse < quota-256<<10
	})
	if _, err := c.Put(ctx, "more", "x"); !errors.Is(err, rpctypes.ErrNoSpace) {
		s.t.Errorf("put before the alarm is disarmed: %v", err)
	}
	disarmed, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	if err != nil || len(disarmed.Alarms) != 1 {
		s.t.Fatalf("disarm: %v, %v", disarmed, err)
	}
	if _, err := c.Put(ctx, "more", "x"); err != nil {
		s.t.Errorf("put after the alarm was disarmed: %v", err)
	}
	if list, err := c.AlarmList(ctx); err != nil || len(list.Alarms) != 0 {
		s.t.Errorf("alarms: %v, %v", list, err)
	}
	if code, text := s.get("/health"); code != http.StatusOK {
		s.t.Errorf("health: %d %s", code, text)
	}
}

// quotaFor returns a quota that leaves room for a few values.
func quotaFor(t *testing.T, ks kv.Keyspace) int64 {
	t.Helper()
	st, err := ks.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.SizeInUse + 1<<20
}

// TestQuota fills a keyspace in SQLite up to its quota. The alarm survives a restart, and
// does not restrict the API server's own client.
func TestQuota(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.db")
	open := func() (*mvcc.Keyspace, func()) {
		db, err := sqlite.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return openEngine(t, db)
	}
	ks, closing := open()
	quota := quotaFor(t, ks)
	s := serveQuota(t, ks, quota)
	lease, err := s.client.Grant(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.fill(); n < 8 || n > 16 {
		t.Errorf("%d values of 64 KiB in 1 MiB", n)
	}
	s.refused(lease.ID)
	s.reported(quota)
	s.stop()
	closing()

	ks, _ = open()
	s = serveQuota(t, ks, quota)
	s.refused(lease.ID)
	s.reported(quota)
	local, err := etcd.InProcess(ks, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { local.Close() })
	if _, err := local.Put(t.Context(), "in process", "x"); err != nil {
		t.Errorf("the API server's own client: %v", err)
	}
	s.recovered(quota)
	if _, err := s.client.Revoke(t.Context(), lease.ID); err != nil {
		t.Error(err)
	}
}

// TestQuotaOfServers fills a keyspace through one of two servers on a PostgreSQL. The other
// one has no quota, and refuses writes too.
func TestQuotaOfServers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	server, err := playground.Start(t.Context(), playground.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	open := func() kv.Keyspace {
		db, err := postgres.Open(t.Context(), server.SocketURL())
		if err != nil {
			t.Fatal(err)
		}
		ks, _ := openEngine(t, db)
		return ks
	}
	ks := open()
	quota := quotaFor(t, ks)
	one, two := serveQuota(t, ks, quota), serveQuota(t, open(), 0)
	lease, err := two.client.Grant(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	one.fill()
	one.refused(lease.ID)
	one.reported(quota)
	eventually(t, "the other server refuses writes", func(ctx context.Context) bool {
		_, err := two.client.Put(ctx, "more", "x")
		return errors.Is(err, rpctypes.ErrNoSpace)
	})
	two.refused(lease.ID)
	two.reported(0)
	one.recovered(quota)
	eventually(t, "the other server accepts writes", func(ctx context.Context) bool {
		_, err := two.client.Put(ctx, "more", "x")
		return err == nil
	})
}

// eventually repeats a check until it holds.
func eventually(t *testing.T, what string, holds func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("not within 30 s: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
