package test

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
)

// createKey creates a key whose value is its name, and returns the revision
// that the server gave it.
func createKey(ctx context.Context, client *clientv3.Client, name string) (int64, error) {
	r, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(name), "=", 0)).
		Then(clientv3.OpPut(name, name)).
		Commit()
	if err == nil && !r.Succeeded {
		// The client tried twice: the first one had been done.
		err = errRefused
	}
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// The same for `atoll kv serve` and etcd's own client, whose watches resume by
// themselves.
func TestAKilledStoreLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	start := func() *child.Process {
		process, err := atoll.Run(filepath.Join(dir, "kv.log"), "kv", "serve",
			"--datastore", "sqlite://"+filepath.Join(dir, "kv.db"), "--listen", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(process.Kill)
		return process
	}
	process := start()
	var clients []*clientv3.Client
	for range 8 {
		c, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"http://" + address}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
			// The time that a client waits before it tries a server again.
			BackoffWaitBetween: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	eventually(t, 30*time.Second, "kv serve answers", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := clients[0].Get(ctx, "anything")
		return err
	})

	ctx, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	o := newObserver("watcher")
	created := make(chan struct{})
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stopWatching()
	watcher.Go(func() { o.watch(ctx, clients[1], "client-", created) })
	await(t, created, "the watch is created")

	l := newLedger()
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers sync.WaitGroup
	l.write(writing, &writers, func(ctx context.Context, c int, name string) (int64, error) {
		return createKey(ctx, clients[c%len(clients)], name)
	})
	for range crashes {
		await(t, l.more(crashWrites), "clients write")
		process.Kill()
		process = start()
	}
	await(t, l.more(crashWrites), "clients write")
	stopWriting()
	writers.Wait()

	r, err := clients[0].Get(t.Context(), "client-", clientv3.WithPrefix())
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
	l.check(t, stored)
	o.check(t, stored)
}
