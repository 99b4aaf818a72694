package store

import (
	"bytes"
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// A primary with a synchronous standby dies under load, and the standby takes
// over: the servers find it by themselves, and nothing that was acknowledged is
// lost.
func TestFailoverToASynchronousStandby(t *testing.T) {
	t.Parallel()
	primary, standby := startPair(t, true)
	servers := startStores(t, bothHosts(t, primary, standby), 2)
	l, stop := writeTo(t, servers)
	await(t, l.more(1000), "clients write")
	primary.Kill()
	promote(t, standby)
	await(t, l.more(1000), "clients write to the new primary")
	stop()
	client := servers.client(t)
	l.check(t, storedKeys(t, client))
}

// A primary with a lagging standby dies. The standby lacks acknowledged writes, so the servers refuse to serve
// its state, with the reason.
func TestFailoverToALaggingStandby(t *testing.T) {
	t.Parallel()
	primary, standby := startPair(t, false)
	servers := startStores(t, bothHosts(t, primary, standby), 2)
	l, stop := writeTo(t, servers)
	await(t, l.more(500), "clients write")
	standby.Kill()
	await(t, l.more(500), "clients write while the standby is away")
	primary.Kill()
	restart(t, standby)
	promote(t, standby)
	stop()
	before := slices.Max(slices.Collect(maps.Values(l.acknowledged)))
	for i := range servers.addresses {
		client := servers.clientOf(t, i)
		eventually(t, 3*time.Minute, "a server refuses to serve", func(ctx context.Context) error {
			// A server waits for its database for some seconds before it answers.
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			r, err := client.Get(ctx, "client-", clientv3.WithPrefix(), clientv3.WithCountOnly())
			switch {
			case err == nil:
				t.Fatalf("server %d serves %d keys at revision %d from a standby that lagged", i, r.Count, r.Header.Revision)
				return nil
			case strings.Contains(err.Error(), "acknowledged before") && strings.Contains(err.Error(), "atoll kv recover"):
				return nil
			default:
				return err
			}
		})
	}
	for i := range servers.addresses {
		servers.kill(i)
	}
	recovers(t, servers, before)
}

// recovers follows the advice that servers give when they have lost something:
// the loss is accepted, both serve again, and no revision is made twice.
func recovers(t *testing.T, servers *stores, before int64) {
	t.Helper()
	var out bytes.Buffer
	for _, flags := range [][]string{{"--dry-run"}, nil} {
		// Killed servers count as alive for some seconds.
		eventually(t, time.Minute, "the database can be recovered", func(ctx context.Context) error {
			atoll := cli.New("atoll")
			atoll.SetArgs(append([]string{"kv", "recover", "--datastore", servers.datastore, "--all"}, flags...))
			atoll.SetOut(&out)
			err := atoll.ExecuteContext(ctx)
			if err != nil && !strings.Contains(err.Error(), "stop them first") {
				t.Fatal(err)
			}
			return err
		})
	}
	t.Logf("%s", out.String())
	for i := range servers.addresses {
		servers.start(t, i)
	}
	l, stop := writeTo(t, servers)
	await(t, l.more(500), "clients write again")
	stop()
	for name, revision := range l.acknowledged {
		if revision <= before {
			t.Errorf("revision %d was acknowledged before the failover, and %d after it (%s)", before, revision, name)
		}
	}
	for i := range servers.addresses {
		client := servers.clientOf(t, i)
		stored := storedKeys(t, client)
		maps.DeleteFunc(stored, func(_ string, revision int64) bool { return revision <= before })
		l.check(t, stored)
		// A client that continues from its last revision has to list again.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if r := <-client.Watch(ctx, "client-", clientv3.WithPrefix(), clientv3.WithRev(before)); r.CompactRevision <= before {
			t.Errorf("server %d lets a watch from revision %d go on: %+v", i, before, r)
		}
	}
}

func startPair(t *testing.T, synchronous bool) (primary, standby *postgres.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	primary, err := postgres.Start(ctx, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() })
	if standby, err = primary.Standby(ctx, synchronous); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop() })
	return primary, standby
}

func restart(t *testing.T, standby *postgres.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := standby.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

func promote(t *testing.T, standby *postgres.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
}

// bothHosts is one URL for whichever of two databases is the primary.
func bothHosts(t *testing.T, primary, standby *postgres.Server) string {
	t.Helper()
	u, err := url.Parse(primary.URL())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(primary.URL(), u.Host, u.Host+","+standby.Address(), 1)
}

// writeTo has clients write until stop is called, which waits for them.
func writeTo(t *testing.T, servers *stores) (l *ledger, stop func()) {
	t.Helper()
	var clients []*clientv3.Client
	for range 8 {
		clients = append(clients, servers.client(t))
	}
	awaitAnswer(t, clients[0])
	l = newLedger()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var writers sync.WaitGroup
	l.write(ctx, &writers, func(ctx context.Context, c int, name string) (int64, error) {
		return createKey(ctx, clients[c%len(clients)], name)
	})
	return l, func() {
		cancel()
		writers.Wait()
	}
}

func storedKeys(t *testing.T, client *clientv3.Client) map[string]int64 {
	t.Helper()
	r, err := client.Get(t.Context(), "client-", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]int64{}
	for _, kv := range r.Kvs {
		stored[string(kv.Key)] = kv.ModRevision
		if string(kv.Value) != string(kv.Key) {
			t.Errorf("%s has the value %q", kv.Key, kv.Value)
		}
	}
	return stored
}
