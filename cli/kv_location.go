package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/server"
)

// location is a datastore, or a server with etcd's protocol, that holds the keyspaces on
// which a command works.
type location struct {
	datastore, endpoint string
	tls                 etcd.ClientTLS
}

func (p *location) addFlags(flags *pflag.FlagSet) {
	addDatastoreFlag(flags, &p.datastore)
	flags.StringVar(&p.endpoint, "endpoint", "", "URL of an etcd server or `atoll kv serve`, instead of a datastore: http://host:port or https://host:port.")
	flags.StringVar(&p.tls.CAFile, "cacert", "", "Certificate authority of the endpoint. The default is the system's trust store.")
	flags.StringVar(&p.tls.CertFile, "cert", "", "Client certificate for the endpoint.")
	flags.StringVar(&p.tls.KeyFile, "key", "", "Key of the client certificate.")
}

func (p *location) check() error {
	if p.endpoint == "" {
		url, err := datastoreURL(p.datastore)
		if err != nil {
			return fmt.Errorf("%w, or --endpoint http://host:port", err)
		}
		p.datastore = url
	}
	switch {
	case p.datastore != "" && p.endpoint != "":
		return errors.New("--datastore and --endpoint are mutually exclusive")
	case p.datastore != "" && p.tls != (etcd.ClientTLS{}):
		return errors.New("--cacert, --cert and --key require --endpoint; for a datastore, set the certificates in its URL")
	}
	return nil
}

// reader is the part of a keyspace that inspecting commands use.
type reader interface {
	Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error)
	Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error)
	Status(ctx context.Context) (*kv.Status, error)
	TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error)
}

// openEndpoint connects to an etcd server and checks that it responds: the client would
// otherwise wait silently.
func (p *location) openEndpoint(ctx context.Context) (*clientv3.Client, error) {
	return etcd.Dial(ctx, p.endpoint, p.tls)
}

// toRead opens one keyspace read-only; a server may be running on it.
func (p *location) toRead(ctx context.Context, keyspace string) (reader, io.Closer, error) {
	if err := p.check(); err != nil {
		return nil, nil, err
	}
	if p.endpoint != "" {
		client, err := p.openEndpoint(ctx)
		if err != nil {
			return nil, nil, err
		}
		return etcd.Remote(client), client, nil
	}
	db, err := server.OpenDatastoreReadOnly(ctx, p.datastore)
	if err != nil {
		return nil, nil, err
	}
	table, err := openTable(ctx, db, keyspace)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return inspect.NewReader(table, db, clock.RealClock{}), db, nil
}

// openTable opens an existing keyspace; the error for a missing one lists those that
// exist.
func openTable(ctx context.Context, db *server.Datastore, keyspace string) (kv.Table, error) {
	names, err := db.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(names, keyspace) {
		return nil, &noKeyspaceError{db.URL(), keyspace, names}
	}
	return db.Open(ctx, keyspace)
}

// noKeyspaceError is the error for a missing keyspace.
type noKeyspaceError struct {
	where, name string
	existing    []string
}

func (e *noKeyspaceError) Error() string {
	return fmt.Sprintf("datastore %s has no keyspace %q: it has %s", e.where, e.name, quoted(e.existing))
}

func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

// toWrite opens the database of an existing keyspace with exclusive access.
func (p *location) toWrite(ctx context.Context, keyspace string) (kv.Table, *server.Datastore, error) {
	// Opening for writing would create a missing keyspace.
	_, probe, err := p.toRead(ctx, keyspace)
	if err != nil {
		return nil, nil, err
	}
	if err := probe.Close(); err != nil {
		return nil, nil, err
	}
	db, err := server.OpenDatastore(ctx, p.datastore)
	if err != nil {
		return nil, nil, explainInUse(err, "pass its address with --endpoint instead of --datastore")
	}
	table, err := db.Open(ctx, keyspace)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return table, db, nil
}

// explainInUse adds the next step to the error for a database that a server has open.
func explainInUse(err error, remedy string) error {
	if errors.Is(err, kv.ErrInUse) {
		return fmt.Errorf("%w\nWhile `atoll kv serve` has it open, %s", err, remedy)
	}
	return err
}

// describe returns the location for messages.
func (p *location) describe() string {
	raw := p.datastore
	if raw == "" {
		raw = p.endpoint
	}
	if u, err := url.Parse(raw); err == nil {
		return u.Redacted()
	}
	return "the given location"
}
