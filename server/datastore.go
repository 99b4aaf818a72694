package server

import (
	"context"
	"fmt"
	"net/url"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// Datastore is an open database that holds keyspaces.
type Datastore struct {
	kv.Backend
	url    string
	shared bool
}

// OpenDatastore opens the database that a URL names, such as
// sqlite:///var/lib/atoll/atoll.db.
func OpenDatastore(rawURL string) (*Datastore, error) { return openDatastore(rawURL, false) }

// OpenDatastoreToRead opens a database that is there for looking at it only,
// also while a server has it open. It makes neither a database nor a keyspace.
func OpenDatastoreToRead(rawURL string) (*Datastore, error) { return openDatastore(rawURL, true) }

func openDatastore(rawURL string, toRead bool) (*Datastore, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// url.Parse quotes its input, which may hold a password.
		return nil, fmt.Errorf("datastore URL cannot be read: write it like sqlite:///path/to/file.db")
	}
	switch u.Scheme {
	case "sqlite":
		return openSQLite(u, toRead)
	default:
		return nil, fmt.Errorf("datastore %s has the unknown scheme %q: this version knows sqlite, as in sqlite:///path/to/file.db",
			u.Redacted(), u.Scheme)
	}
}

// URL names the database, without secrets.
func (d *Datastore) URL() string { return d.url }

// Shared tells whether other processes may have the database open too.
func (d *Datastore) Shared() bool { return d.shared }

// Keyspace opens one keyspace, made if it is new. The observer, if there is one,
// hears of the engine's work.
func (d *Datastore) Keyspace(ctx context.Context, name string, observer mvcc.Observer) (*mvcc.Keyspace, error) {
	return d.keyspace(ctx, name, mvcc.Options{Observer: observer})
}

func (d *Datastore) keyspace(ctx context.Context, name string, options mvcc.Options) (*mvcc.Keyspace, error) {
	table, err := d.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open keyspace %q in %s: %w", name, d.url, err)
	}
	keyspace, err := mvcc.Open(ctx, table, d.Backend, options)
	if err != nil {
		return nil, fmt.Errorf("open keyspace %q in %s: %w", name, d.url, err)
	}
	return keyspace, nil
}

// name of a keyspace that is unique among all that this process may open.
func (d *Datastore) name(keyspace string) string { return d.url + "#" + keyspace }

func openSQLite(u *url.URL, toRead bool) (*Datastore, error) {
	if u.Host != "" || u.Path == "" || u.RawQuery != "" {
		return nil, fmt.Errorf("datastore %s does not name a file: write sqlite:///path/to/file.db, with three slashes", u)
	}
	var db kv.Backend
	var err error
	if toRead {
		db, err = sqlite.OpenReadOnly(u.Path)
	} else {
		db, err = sqlite.Open(u.Path)
	}
	if err != nil {
		return nil, err
	}
	return &Datastore{Backend: db, url: u.Redacted()}, nil
}
