package server

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/postgres"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// Datastore is an open database that holds keyspaces.
type Datastore struct {
	kv.Backend
	url    string
	shared bool
}

// OpenDatastore opens the database of a URL, such as sqlite:///var/lib/atoll/atoll.db
// or postgres://user@host/database.
func OpenDatastore(ctx context.Context, rawURL string) (*Datastore, error) {
	return openDatastore(ctx, rawURL, false)
}

// OpenDatastoreReadOnly opens an existing database for reading, also while servers have
// it open. It creates neither a database nor a keyspace. Errors: fs.ErrNotExist.
func OpenDatastoreReadOnly(ctx context.Context, rawURL string) (*Datastore, error) {
	return openDatastore(ctx, rawURL, true)
}

// OpenDatastoreToRecover opens a database that may lack acknowledged writes. If its URL
// names several hosts, only one of them may accept writes.
func OpenDatastoreToRecover(ctx context.Context, rawURL string, toRead bool) (*Datastore, error) {
	return openDatastore(ctx, rawURL, toRead, postgres.ToRecover())
}

// Repair says how the files of a datastore were repaired.
type Repair = sqlite.Repair

// RepairDatastore repairs a datastore whose files are damaged, so that OpenDatastore refuses it, and keeps the damaged
// files under other names. It returns nil if there is nothing to repair. A dry run changes nothing.
func RepairDatastore(ctx context.Context, rawURL string, dryRun bool) (*Repair, error) {
	if !strings.HasPrefix(rawURL, "sqlite:") {
		return nil, nil
	}
	path, err := sqlitePath(rawURL)
	if err != nil {
		return nil, err
	}
	return sqlite.RepairFile(ctx, path, dryRun)
}

// LogBehind returns an observer that also logs when a keyspace is no longer served because
// the database lacks acknowledged writes, and when it is again.
func LogBehind(o mvcc.Observer, keyspace string) mvcc.Observer {
	o.Behind = func(err error) {
		if err != nil {
			klog.ErrorS(err, "The keyspace is not served", "keyspace", keyspace)
			return
		}
		klog.InfoS("The database has all acknowledged writes again: the keyspace is served", "keyspace", keyspace)
	}
	return o
}

func openDatastore(ctx context.Context, rawURL string, toRead bool, opts ...postgres.Option) (*Datastore, error) {
	scheme, _, _ := strings.Cut(rawURL, "://")
	switch scheme {
	case "sqlite":
		path, err := sqlitePath(rawURL)
		if err != nil {
			return nil, err
		}
		return openSQLite(path, toRead)
	case "postgres", "postgresql":
		// Not parsed here: it may name several hosts, which net/url does not support.
		opening := postgres.Open
		if toRead {
			opening = postgres.OpenReadOnly
		}
		db, err := opening(ctx, rawURL, opts...)
		if err != nil {
			return nil, err
		}
		return &Datastore{Backend: db, url: db.Where(), shared: true}, nil
	default:
		const remedy = "use the form sqlite:///path/to/file.db or postgres://user@host:5432/database"
		if scheme == rawURL {
			// Not repeated in the message: it may contain a password.
			return nil, errors.New("datastore is not a URL: " + remedy)
		}
		if !isScheme(scheme) {
			return nil, errors.New("datastore is not a URL: " + remedy)
		}
		return nil, fmt.Errorf("datastore URL has the unknown scheme %q: %s", scheme, remedy)
	}
}

// isScheme reports whether text can be a URL's scheme, and not a part of something else.
func isScheme(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < 'a' || r > 'z' })
}

// URL returns the database's URL without secrets.
func (d *Datastore) URL() string { return d.url }

// Shared reports whether other processes may have the database open too.
func (d *Datastore) Shared() bool { return d.shared }

// Keyspace opens a keyspace with its partitions, and creates it if it does not exist.
// The options apply to all of its engines.
func (d *Datastore) Keyspace(ctx context.Context, name string, options mvcc.Options) (*partition.Keyspace, error) {
	if parent, _, ok := kv.ParsePartitionName(name); ok {
		return nil, fmt.Errorf("open keyspace %q in %s: %w: it is a partition; open its keyspace %q instead", name, d.url, kv.ErrInvalidRequest, parent)
	}
	return d.openKeyspace(ctx, &engines{datastore: d, name: name, options: options})
}

// ExistingKeyspace is Keyspace for one that exists.
// Errors: kv.ErrKeyNotFound.
func (d *Datastore) ExistingKeyspace(ctx context.Context, name string, options mvcc.Options) (*partition.Keyspace, error) {
	return d.openKeyspace(ctx, &engines{datastore: d, name: name, options: options, existing: true})
}

func (d *Datastore) openKeyspace(ctx context.Context, e *engines) (*partition.Keyspace, error) {
	keyspace, err := partition.Open(ctx, e.name, e, partition.Options{})
	if err != nil {
		return nil, fmt.Errorf("open keyspace %q in %s: %w", e.name, d.url, err)
	}
	return keyspace, nil
}

// name returns a name for a keyspace that is unique in this process.
func (d *Datastore) name(keyspace string) string { return d.url + "#" + keyspace }

// SQLiteURL returns the URL of a database file.
func SQLiteURL(path string) string {
	return (&url.URL{Scheme: "sqlite", Path: filepath.ToSlash(path)}).String()
}

// sqlitePath returns the file of a URL.
func sqlitePath(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", errors.New("datastore URL is invalid: use the form sqlite:///path/to/file.db")
	}
	if u.Host != "" || u.Path == "" {
		return "", fmt.Errorf("datastore %s does not name a file: use sqlite:///path/to/file.db, with three slashes", u.Redacted())
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", fmt.Errorf("datastore %s has parts after the file's path: write ? in the path as %%3F and # as %%23", u.Redacted())
	}
	return u.Path, nil
}

func openSQLite(path string, toRead bool) (*Datastore, error) {
	var db kv.Backend
	var err error
	if toRead {
		db, err = sqlite.OpenReadOnly(path)
	} else {
		db, err = sqlite.Open(path)
	}
	if err != nil {
		return nil, err
	}
	return &Datastore{Backend: db, url: SQLiteURL(path)}, nil
}
