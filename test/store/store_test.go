package store

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	servers := startStores(t, "sqlite://"+filepath.Join(t.TempDir(), "kv.db"), 1)
	client := servers.client(t)
	awaitAnswer(t, client)

	ctx, stopWatching := context.WithCancel(t.Context())
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stopWatching()
	o := newObserver("watcher")
	created := make(chan struct{})
	watcher.Go(func() { o.watch(ctx, client, "client-", created) })
	await(t, created, "the watch is created")

	l, stop := writeTo(t, servers)
	for range *runs {
		await(t, l.more(crashWrites), "clients write")
		servers.kill(0)
		servers.start(t, 0)
	}
	await(t, l.more(crashWrites), "clients write")
	stop()
	stored := storedKeys(t, client)
	l.check(t, stored)
	o.check(t, stored)
}
