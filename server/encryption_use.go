package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// databaseFile is the database of a data directory without --datastore.
const databaseFile = "atoll.db"

// forgetGrace is how long after a rotation a running server may still encrypt with the former key.
const forgetGrace = 5 * time.Minute

// forgetEncryption returns the files without the former keys that nothing is encrypted with. use is
// nil if that is unknown.
func (k keyFiles) forgetEncryption(use keyUse, now time.Time) (keyFiles, error) {
	keys, err := parseEncryptionKeys(k[encryptionKeys])
	if err != nil || len(keys) < 2 || use == nil || now.Before(keys[0].created.Add(forgetGrace)) {
		return k, err
	}
	kept := keys[:1:1]
	for _, key := range keys[1:] {
		if len(use[key.name]) > 0 {
			kept = append(kept, key)
		}
	}
	return k.withEncryptionKeys(kept), nil
}

// encryptionUse counts the values of all workspaces under each key of encryption, in the present state
// and in the history.
func encryptionUse(ctx context.Context, store *Datastore) (keyUse, error) {
	use := keyUse{}
	count := func(keyspace string) func(key, value []byte, past bool) {
		return func(key, value []byte, past bool) {
			if rest, ok := bytes.CutPrefix(value, []byte("k8s:enc:aesgcm:v1:")); ok {
				if name, _, ok := bytes.Cut(rest, []byte(":")); ok {
					use.add(string(name), usePlace{keyspace, resourceOf(string(key)), past})
				}
			}
		}
	}
	// A workspace that moves gets another keyspace name meanwhile: the next list has it.
	read := map[string]bool{}
	for again := true; again; {
		all, err := store.Keyspaces(ctx)
		if err != nil {
			return nil, err
		}
		again = false
		for _, name := range all {
			if !ofWorkspace(name) || read[name] {
				continue
			}
			again = true
			err := eachValueOf(ctx, store, name, count(name))
			gone := errors.Is(err, kv.ErrKeyNotFound) || errors.Is(err, kv.ErrDropped) || errors.Is(err, kv.ErrRepartitioned)
			if err != nil && !gone {
				return nil, fmt.Errorf("look for values under former keys in keyspace %q: %w", name, err)
			}
			read[name] = err == nil
		}
	}
	return use, nil
}

// eachValueOf is eachValue for an existing keyspace.
func eachValueOf(ctx context.Context, store *Datastore, name string, see func(key, value []byte, past bool)) error {
	table, err := store.OpenExisting(ctx, name)
	if err != nil {
		return err
	}
	return eachValue(ctx, table, see)
}

// ofWorkspace reports whether a keyspace, or the one that it is a partition of, is that of a workspace, also of the one with the definitions of all.
func ofWorkspace(keyspace string) bool {
	if parent, _, ok := kv.ParsePartitionName(keyspace); ok {
		keyspace = parent
	}
	return keyspace == Workspace || keyspace == definitionsKeyspace || strings.HasPrefix(keyspace, workspaceKeyspaces)
}

// eachValue calls see for the values of a table's current state and of its history. A value of the current state may be seen as one of the history too.
func eachValue(ctx context.Context, table kv.Table, see func(key, value []byte, past bool)) error {
	const page = 500
	var head kv.Head
	for span := kv.Prefix(nil); ; {
		res, at, err := table.Range(ctx, kv.RangeRequest{Span: span, Limit: page}, false)
		if err != nil {
			return err
		}
		for _, e := range res.KVs {
			see(e.Key, e.Value, false)
		}
		head = at
		if !res.More || len(res.KVs) == 0 {
			break
		}
		span.Start = append(slices.Clone(res.KVs[len(res.KVs)-1].Key), 0)
	}
	for after := max(head.Compacted, 1); after < head.Revision; {
		changes, _, err := table.Changes(ctx, after, head.Revision, page, true)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			return nil
		}
		for _, c := range changes {
			see(c.KV.Key, c.KV.Value, true)
			if c.Prev != nil {
				see(c.KV.Key, c.Prev.Value, true)
			}
		}
		after = changes[len(changes)-1].KV.ModRevision
	}
	return nil
}
