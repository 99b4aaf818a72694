// Package overlay shows what every workspace begins with, without storing it: the namespaces, roles and bindings of Kubernetes. They are the
// same in all workspaces but for their UIDs and creation times, so a server has them once, and a client of a workspace's keyspace shows the unchanged
// ones. It also writes the objects that only one workspace begins with, and those that every new namespace gets.
package overlay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/atoll-dev/atoll/kv"
)

// ChangedPrefix begins the keys that say that a base object has been changed or deleted: the key of the object follows. From then on the
// keyspace alone decides about it.
const ChangedPrefix = "/atoll/changed"

// overlay is the client of a workspace's keyspace, with the base objects that have not been changed. They have the revision in which the
// workspace was created.
//
// Before the first change of a base object, it is written into the keyspace (materialize). So all that follows is the keyspace's own
// work: compare, events of watches, history.
type overlay struct {
	kubernetes.Interface // of the keyspace
	kv                   clientv3.KV
	base                 *Base
	birth                Birth
}

// Install makes a client show the base objects. It must be called before the first request.
func (b *Base) Install(client *kubernetes.Client, of Birth) {
	o := &overlay{client.Kubernetes, client.Client.KV, b, of}
	client.Kubernetes, client.Client.KV = o, overlaidKV{client.Client.KV, o}
}

// Get implements kubernetes.Interface.
func (o *overlay) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	resp, err := o.Interface.Get(ctx, key, opts)
	if err != nil || resp.KV != nil || !o.base.has(key) {
		return resp, err
	}
	found, err := o.unchanged(ctx, []string{key}, key, cmp.Or(opts.Revision, resp.Revision))
	if err == nil && len(found) > 0 {
		resp.KV = found[0]
	}
	return resp, err
}

// List implements kubernetes.Interface.
func (o *overlay) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	resp, err := o.Interface.List(ctx, prefix, opts)
	keys := o.base.between(cmp.Or(opts.Continue, prefix), clientv3.GetPrefixRangeEnd(prefix))
	if err != nil || len(keys) == 0 {
		return resp, err
	}
	found, err := o.unchanged(ctx, keys, prefix, cmp.Or(opts.Revision, resp.Revision))
	if err == nil {
		resp.Kvs, resp.Count = mergePage(resp.Kvs, resp.Count, found, opts.Limit)
	}
	return resp, err
}

// Count implements kubernetes.Interface.
func (o *overlay) Count(ctx context.Context, prefix string, _ kubernetes.CountOptions) (int64, error) {
	resp, err := o.kv.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	found, err := o.unchanged(ctx, o.base.between(prefix, clientv3.GetPrefixRangeEnd(prefix)), prefix, resp.Header.Revision)
	return resp.Count + int64(len(found)), err
}

// OptimisticPut implements kubernetes.Interface.
func (o *overlay) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	expected, err := o.materialize(ctx, key, expected)
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	return o.Interface.OptimisticPut(ctx, key, value, expected, opts)
}

// OptimisticDelete implements kubernetes.Interface.
func (o *overlay) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	expected, err := o.materialize(ctx, key, expected)
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	return o.Interface.OptimisticDelete(ctx, key, expected, opts)
}

// materialize writes a base object into the keyspace, unless it has been changed before. It returns the revision that the caller has to
// expect now: the caller may have seen the object in that of the creation.
func (o *overlay) materialize(ctx context.Context, key string, expected int64) (int64, error) {
	if !o.base.has(key) {
		return expected, nil
	}
	changed, err := o.kv.Get(ctx, ChangedPrefix+key, clientv3.WithCountOnly())
	if err != nil || changed.Count > 0 {
		return expected, err
	}
	value, err := o.base.value(ctx, o.birth, key)
	if err != nil {
		return expected, err
	}
	// At a limit too: the base object was there already, and the write may be a deletion.
	exempted, exempt := kv.WithExemption(ctx)
	exempt(true)
	done, err := o.kv.Txn(exempted).
		If(clientv3.Compare(clientv3.CreateRevision(ChangedPrefix+key), "=", 0), clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(value)), clientv3.OpPut(ChangedPrefix+key, "")).Commit()
	if err != nil {
		return expected, fmt.Errorf("write %s, which the workspace had from the beginning: %w", key, err)
	}
	if done.Succeeded && expected == o.birth.Revision {
		return done.Header.Revision, nil
	}
	return expected, nil
}

// unchanged returns those of the base objects that had not been changed at a revision. prefix is one of all their keys.
func (o *overlay) unchanged(ctx context.Context, keys []string, prefix string, revision int64) ([]*mvccpb.KeyValue, error) {
	if len(keys) == 0 || revision < o.birth.Revision {
		return nil, nil
	}
	markers, err := o.kv.Get(ctx, ChangedPrefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	changed := make(map[string]bool, len(markers.Kvs))
	for _, m := range markers.Kvs {
		changed[strings.TrimPrefix(string(m.Key), ChangedPrefix)] = true
	}
	var out []*mvccpb.KeyValue
	for _, key := range keys {
		if changed[key] {
			continue
		}
		value, err := o.base.value(ctx, o.birth, key)
		if err != nil {
			return nil, err
		}
		out = append(out, &mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: o.birth.Revision, ModRevision: o.birth.Revision, Version: 1})
	}
	return out, nil
}

// mergePage merges base objects into a page of stored ones. count is how many stored ones there are, from the beginning of the page on; limit
// bounds the page, 0 does not. Both are sorted.
func mergePage(stored []*mvccpb.KeyValue, count int64, unchanged []*mvccpb.KeyValue, limit int64) ([]*mvccpb.KeyValue, int64) {
	byKey := func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) }
	more := count > int64(len(stored))
	page := slices.Clone(stored)
	for _, o := range unchanged {
		if _, also := slices.BinarySearchFunc(stored, o, byKey); also {
			continue // an earlier version of Atoll has written it
		}
		count++
		if more && byKey(o, stored[len(stored)-1]) > 0 {
			continue // stored ones may come before it: it is in a later page
		}
		page = append(page, o)
	}
	slices.SortFunc(page, byKey)
	if limit > 0 && int64(len(page)) > limit {
		page = page[:limit]
	}
	return page, count
}

// overlaidKV is the part of a client that upstream's watches read the present objects with.
type overlaidKV struct {
	clientv3.KV
	overlay *overlay
}

// Get implements clientv3.KV. A page may have more than the limit.
func (k overlaidKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := k.KV.Get(ctx, key, opts...)
	op := clientv3.OpGet(key, opts...)
	end := key + "\x00"
	if len(op.RangeBytes()) > 0 {
		end = string(op.RangeBytes())
	}
	keys := k.overlay.base.between(key, end)
	if err != nil || len(keys) == 0 {
		return resp, err
	}
	found, err := k.overlay.unchanged(ctx, keys, commonPrefix(keys[0], keys[len(keys)-1]), cmp.Or(op.Rev(), resp.Header.Revision))
	if err != nil {
		return nil, err
	}
	if op.IsCountOnly() {
		resp.Count += int64(len(found))
		return resp, nil
	}
	if op.IsKeysOnly() {
		for _, o := range found {
			o.Value = nil
		}
	}
	count := int64(len(resp.Kvs))
	if resp.More {
		count++ // that more are stored is all that matters
	}
	page, all := mergePage(resp.Kvs, count, found, 0)
	resp.Count += all - count
	resp.Kvs = page
	return resp, nil
}

func commonPrefix(a, b string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return a[:i]
		}
	}
	return a[:min(len(a), len(b))]
}
