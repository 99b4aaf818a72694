package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/kv"
)

// KeyNeed is a kind of values that a former key of encryption is kept for.
type KeyNeed struct {
	// Workspace is the path of their workspace, "" for the root. If the path cannot be read without a server, Keyspace is set instead.
	Workspace, Keyspace string
	// Resource is that of the values: secrets.
	Resource string
	// Values is how many objects are stored under the key, and Past how many past versions of objects.
	Values, Past int
}

// usePlace is where values under a key are.
type usePlace struct {
	keyspace, resource string
	past               bool
}

// keyUse has how many values are under each key of encryption, history included.
type keyUse map[string]map[usePlace]int

func (u keyUse) add(key string, place usePlace) {
	if u[key] == nil {
		u[key] = map[usePlace]int{}
	}
	u[key][place]++
}

// resourceOf returns the resource of a stored key, with its group if that is in the key.
func resourceOf(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, "/registry/"), "/")
	if len(parts) > 1 && strings.Contains(parts[0], ".") {
		return parts[1] + "." + parts[0]
	}
	return parts[0]
}

// explainKept records why former keys of encryption are still there after they were to be forgotten.
func (u keyUse) explainKept(keys []Key, paths map[string]string, now time.Time) []Key {
	current := slices.IndexFunc(keys, func(k Key) bool { return k.Name == KeyEncryption && !k.Former })
	for i := range keys {
		k := &keys[i]
		switch {
		case k.Name != KeyEncryption || !k.Former:
		case u == nil:
			k.Kept = "whether values are encrypted with it is not known, because the database is not in the data directory"
		case len(u[k.Fingerprint]) > 0:
			k.Kept = "these values are encrypted with it"
			k.Needs = u.needs(k.Fingerprint, paths)
		case current >= 0 && now.Before(keys[current].Since.Add(forgetGrace)):
			k.Kept = fmt.Sprintf("servers may still encrypt with it until %s", keys[current].Since.Add(forgetGrace).UTC().Format(time.RFC3339))
		}
	}
	return keys
}

// needs returns the values that need a key, sorted. paths are those of workspaces by UID.
func (u keyUse) needs(key string, paths map[string]string) (all []KeyNeed) {
	for place, n := range u[key] {
		need := KeyNeed{Resource: place.resource}
		if uid := uidOf(place.keyspace); uid != Workspace {
			if need.Workspace = paths[uid]; need.Workspace == "" {
				need.Keyspace = place.keyspace
			}
		}
		i := slices.IndexFunc(all, func(k KeyNeed) bool {
			return k.Workspace == need.Workspace && k.Keyspace == need.Keyspace && k.Resource == need.Resource
		})
		if i < 0 {
			i, all = len(all), append(all, need)
		}
		if place.past {
			all[i].Past += n
		} else {
			all[i].Values += n
		}
	}
	slices.SortFunc(all, func(a, b KeyNeed) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Keyspace, b.Keyspace), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

// storedPaths returns the paths of workspaces by UID, from the tables. It leaves out those that it cannot read.
func storedPaths(ctx context.Context, store *Datastore) (map[string]string, error) {
	paths := map[string]string{}
	type level struct{ keyspace, path string }
	for next := []level{{keyspace: Workspace}}; len(next) > 0; next = next[1:] {
		table, err := store.OpenExisting(ctx, next[0].keyspace)
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte(storedWorkspaces))}, false)
		if err != nil {
			if isGone(err) {
				continue
			}
			return nil, err
		}
		for _, one := range found.KVs {
			var w metav1.PartialObjectMetadata
			if json.Unmarshal(one.Value, &w) != nil || w.UID == "" || paths[string(w.UID)] != "" {
				continue // encrypted
			}
			path := below(next[0].path, w.Name)
			paths[string(w.UID)] = path
			next = append(next, level{keyspaceOf(string(w.UID)), path})
		}
	}
	return paths, nil
}

// kept is explainKept for the keys of a datastore.
func (u keyUse) kept(ctx context.Context, keys []Key, store *Datastore, now time.Time) ([]Key, error) {
	var paths map[string]string
	if len(u) > 0 {
		var err error
		if paths, err = storedPaths(ctx, store); err != nil {
			return nil, fmt.Errorf("find the workspaces that need former keys: %w", err)
		}
	}
	return u.explainKept(keys, paths, now), nil
}

// useIn calls do with the use of keys in the database of a data directory. use and store are nil if the database is elsewhere.
func useIn(ctx context.Context, path string, do func(use keyUse, store *Datastore) error) (err error) {
	if !exists(path) {
		return do(nil, nil)
	}
	store, err := OpenDatastoreReadOnly(ctx, SQLiteURL(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	use, err := encryptionUse(ctx, store)
	if err != nil {
		return err
	}
	return do(use, store)
}
