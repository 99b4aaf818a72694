package workspaces

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/atoll-dev/atoll/kv"
)

// consumersPrefix begins the keys, in the keyspace of an exporter, of the workspaces that have bound an export: the exporter's UID, the export
// and the consumer's UID follow. The values are the path and the UID of the APIBinding. The server writes an entry before it serves the
// first request for a bound resource, so no object of a consumer is without one. Only the APIBinding decides: an entry may be of a workspace
// that is no consumer any more. It is removed when the workspace is gone for good.
const consumersPrefix = "/atoll/consumers/"

// maxConsumers bounds the consumers of an export in a view over all of them.
const maxConsumers = 2000

func consumersOf(exporter *Workspace, export string) string {
	return consumersPrefix + exporter.uid + "/" + export + "/"
}

// recordedConsumer is an entry.
type recordedConsumer struct {
	uid, path, key string
	// revision is that of the entry: it changes with each APIBinding.
	revision int64
}

// RecordConsumer records in the keyspace of an exporter that a workspace has bound one of its exports. It must return before the first
// object is written.
func (s *Server) RecordConsumer(ctx context.Context, exporter *Workspace, export string, consumer *Workspace, path, bindingUID string) error {
	key, value := consumersOf(exporter, export)+consumer.uid, path+" "+bindingUID
	if known, _ := exporter.consumers.Load(key); known == value {
		return nil
	}
	found, err := exporter.client.KV.Get(ctx, key)
	if err == nil && (len(found.Kvs) == 0 || string(found.Kvs[0].Value) != value) {
		// Beyond the limits of the exporter too: they are not for what its consumers do.
		exempted, exempt := kv.WithExemption(ctx)
		exempt(true)
		_, err = exporter.client.KV.Put(exempted, key, value)
	}
	if err != nil {
		return fmt.Errorf("record a consumer of the APIExport %s: %w", export, err)
	}
	exporter.consumers.Store(key, value)
	return nil
}

// recordedConsumers returns the workspaces that have or had bound an export.
func recordedConsumers(ctx context.Context, exporter *Workspace, export string) ([]recordedConsumer, error) {
	prefix := consumersOf(exporter, export)
	found, err := exporter.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(maxConsumers))
	if err != nil {
		return nil, fmt.Errorf("read the consumers of the APIExport %s: %w", export, err)
	}
	if found.More {
		return nil, fmt.Errorf("the APIExport %s has more than %d consumers: view one consumer at a time", export, maxConsumers)
	}
	out := make([]recordedConsumer, len(found.Kvs))
	for i, e := range found.Kvs {
		path, _, _ := strings.Cut(string(e.Value), " ")
		out[i] = recordedConsumer{uid: strings.TrimPrefix(string(e.Key), prefix), path: path, key: string(e.Key), revision: e.ModRevision}
	}
	return out, nil
}

// removeRecord removes the entry of a workspace that is gone for good. A failure leaves it for the next time.
func removeRecord(ctx context.Context, exporter *Workspace, c recordedConsumer) {
	_, _ = exporter.client.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.key), "=", c.revision)).Then(clientv3.OpDelete(c.key)).Commit()
}

// follow returns a channel that receives after each change of a key with the prefix. It is closed when the changes cannot be followed any
// more, or ctx ends. What the caller reads afterwards is not older than the beginning of the watch.
func (w *Workspace) follow(ctx context.Context, prefix string) (<-chan struct{}, error) {
	now, err := w.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", prefix, err)
	}
	// One stream for this and for watches with bookmarks: a stream takes half a dozen goroutines.
	ctx = clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(ctx, bookmarksKey, "true"))
	events := w.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(now.Header.Revision+1))
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		for answer := range events {
			if answer.Err() != nil {
				return
			}
			if len(answer.Events) == 0 {
				continue // that there was no change
			}
			select {
			case changed <- struct{}{}:
			default: // the reader has not read the last one yet
			}
		}
	}()
	return changed, nil
}
