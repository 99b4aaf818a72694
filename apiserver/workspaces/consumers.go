package workspaces

import (
	"context"
	"fmt"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/apiserver/merged"
	"github.com/atoll-dev/atoll/kv"
)

// consumersPrefix begins the keys, in the keyspace of an exporter, of the workspaces that have bound an export: the exporter's UID, the export
// and the consumer's UID follow. The values are the path and the UID of the APIBinding. The server writes an entry before it serves the
// first request for a bound resource, so no object of a consumer is without one. Only the APIBinding decides: an entry may be of a workspace
// that is no consumer any more. It is removed when the workspace is gone for good.
const consumersPrefix = "/atoll/consumers/"

func consumersOf(exporter *Workspace, export string) string {
	return consumersPrefix + exporter.uid + "/" + export + "/"
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
func recordedConsumers(ctx context.Context, exporter *Workspace, export string) ([]merged.Ref, error) {
	prefix := consumersOf(exporter, export)
	found, err := exporter.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(merged.MaxWorkspaces))
	if err != nil {
		return nil, fmt.Errorf("read the consumers of the APIExport %s: %w", export, err)
	}
	if found.More {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the APIExport %s has more than %d consumers: view one consumer at a time", export, merged.MaxWorkspaces))
	}
	out := make([]merged.Ref, len(found.Kvs))
	for i, e := range found.Kvs {
		path, _, _ := strings.Cut(string(e.Value), " ")
		out[i] = merged.Ref{UID: strings.TrimPrefix(string(e.Key), prefix), Path: path, Key: string(e.Key), Revision: e.ModRevision}
	}
	return out, nil
}

// CountConsumers returns how many workspaces have or had bound an export of a workspace. One that has bound two counts twice.
func CountConsumers(ctx context.Context, exporter *Workspace) (int64, error) {
	found, err := exporter.client.KV.Get(ctx, consumersPrefix+exporter.uid+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count the consumers of its APIExports: %w", err)
	}
	return found.Count, nil
}

// removeRecord removes the entry of a workspace that is gone for good. A failure leaves it for the next time.
func removeRecord(ctx context.Context, exporter *Workspace, c merged.Ref) {
	_, _ = exporter.client.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Revision)).Then(clientv3.OpDelete(c.Key)).Commit()
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

// followAll is follow for several prefixes. The channel is closed when the changes of one cannot be followed any more.
func (w *Workspace) followAll(ctx context.Context, prefixes ...string) (<-chan struct{}, error) {
	var all []<-chan struct{}
	ctx, end := context.WithCancel(ctx)
	for _, prefix := range prefixes {
		of, err := w.follow(ctx, prefix)
		if err != nil {
			end()
			return nil, err
		}
		all = append(all, of)
	}
	changed, running := make(chan struct{}, 1), sync.WaitGroup{}
	for _, of := range all {
		running.Go(func() {
			defer end()
			for range of {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		})
	}
	go func() {
		running.Wait()
		close(changed)
	}()
	return changed, nil
}
