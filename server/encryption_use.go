package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// keyUse counts the values under each key of encryption, history included.
type keyUse map[string]int

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
		if use[key.name] > 0 {
			kept = append(kept, key)
		}
	}
	return k.withEncryptionKeys(kept), nil
}

// encryptionUse counts the values of all workspaces under each key of encryption, in the present state
// and in the history.
func encryptionUse(ctx context.Context, store *Datastore) (keyUse, error) {
	all, err := store.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	use := keyUse{}
	count := func(value []byte) {
		if rest, ok := bytes.CutPrefix(value, []byte("k8s:enc:aesgcm:v1:")); ok {
			if name, _, ok := bytes.Cut(rest, []byte(":")); ok {
				use[string(name)]++
			}
		}
	}
	for _, name := range all {
		if !ofWorkspace(name) {
			continue
		}
		table, err := store.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := eachValue(ctx, table, count); err != nil {
			return nil, fmt.Errorf("look for values under former keys in keyspace %q: %w", name, err)
		}
	}
	return use, nil
}

// ofWorkspace reports whether a keyspace, or the one that it is a partition of, is that of a workspace.
func ofWorkspace(keyspace string) bool {
	if parent, _, ok := kv.ParsePartitionName(keyspace); ok {
		keyspace = parent
	}
	return keyspace == Workspace || strings.HasPrefix(keyspace, workspaceKeyspaces)
}

// encryptionUseIn is encryptionUse of the database in a data directory. It returns nil if the database
// is elsewhere.
func encryptionUseIn(ctx context.Context, dataDir string) (use keyUse, err error) {
	path := filepath.Join(dataDir, databaseFile)
	if !exists(path) {
		return nil, nil
	}
	store, err := OpenDatastoreReadOnly(ctx, SQLiteURL(path))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return encryptionUse(ctx, store)
}

// eachValue calls see for the values of a table's current state and of its history.
func eachValue(ctx context.Context, table kv.Table, see func(value []byte)) error {
	const page = 500
	var head kv.Head
	for span := kv.Prefix(nil); ; {
		res, at, err := table.Range(ctx, kv.RangeRequest{Span: span, Limit: page}, false)
		if err != nil {
			return err
		}
		for _, e := range res.KVs {
			see(e.Value)
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
			see(c.KV.Value)
			if c.Prev != nil {
				see(c.Prev.Value)
			}
		}
		after = changes[len(changes)-1].KV.ModRevision
	}
	return nil
}
