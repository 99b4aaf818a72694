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

// place says where keyspaces are that a command works on: in a datastore, or
// behind a server that speaks etcd's protocol.
type place struct {
	datastore, endpoint string
	tls                 etcd.ClientTLS
}

func (p *place) addFlags(flags *pflag.FlagSet) {
	addDatastoreFlag(flags, &p.datastore)
	flags.StringVar(&p.endpoint, "endpoint", "", "Instead of a datastore, an etcd server or `atoll kv serve` to ask: http://host:port or https://host:port.")
	flags.StringVar(&p.tls.CAFile, "cacert", "", "Certificate authority of the endpoint. The default is the system's.")
	flags.StringVar(&p.tls.CertFile, "cert", "", "Client certificate for the endpoint.")
	flags.StringVar(&p.tls.KeyFile, "key", "", "Key of the client certificate.")
}

func (p *place) check() error {
	if p.endpoint == "" {
		url, err := datastoreURL(p.datastore)
		if err != nil {
			return fmt.Errorf("%w, or a server with --endpoint http://host:port", err)
		}
		p.datastore = url
	}
	switch {
	case p.datastore != "" && p.endpoint != "":
		return errors.New("both --datastore and --endpoint given: name one place")
	case p.datastore != "" && p.tls != (etcd.ClientTLS{}):
		return errors.New("--cacert, --cert and --key are for --endpoint; a datastore takes its certificates in its URL")
	}
	return nil
}

// reader is what inspecting commands need of a keyspace.
type reader interface {
	Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error)
	Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error)
	Status(ctx context.Context) (*kv.Status, error)
	TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error)
}

// openEndpoint connects to an etcd server and makes sure that it answers: a
// client would otherwise wait for it in silence.
func (p *place) openEndpoint(ctx context.Context) (*clientv3.Client, error) {
	return etcd.Dial(ctx, p.endpoint, p.tls)
}

// toRead opens one keyspace for reading, without changing anything: beside a
// running server, too.
func (p *place) toRead(ctx context.Context, keyspace string) (reader, io.Closer, error) {
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
	db, err := server.OpenDatastoreToRead(ctx, p.datastore)
	if err != nil {
		return nil, nil, err
	}
	table, err := openTable(ctx, db, keyspace)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return inspect.NewReader(table, db, clock.RealClock{}), db, nil
}

// openTable opens a keyspace that is there, and otherwise says which are.
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

// noKeyspaceError: a keyspace is not there.
type noKeyspaceError struct {
	where, name string
	there       []string
}

func (e *noKeyspaceError) Error() string {
	return fmt.Sprintf("datastore %s has no keyspace %q: it has %s", e.where, e.name, quoted(e.there))
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

// toWrite opens the database of one keyspace that is there, as the only one.
func (p *place) toWrite(ctx context.Context, keyspace string) (kv.Table, *server.Datastore, error) {
	// Opening for writing makes what is not there.
	_, probe, err := p.toRead(ctx, keyspace)
	if err != nil {
		return nil, nil, err
	}
	if err := probe.Close(); err != nil {
		return nil, nil, err
	}
	db, err := server.OpenDatastore(ctx, p.datastore)
	if err != nil {
		return nil, nil, heldElsewhere(err, "give its address with --endpoint instead of --datastore")
	}
	table, err := db.Open(ctx, keyspace)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return table, db, nil
}

// heldElsewhere adds what to do about a database that a server has open.
func heldElsewhere(err error, remedy string) error {
	if errors.Is(err, kv.ErrInUse) {
		return fmt.Errorf("%w\nWhile `atoll kv serve` has it open, %s", err, remedy)
	}
	return err
}

// whereIs names the place for people.
func (p *place) whereIs() string {
	raw := p.datastore
	if raw == "" {
		raw = p.endpoint
	}
	if u, err := url.Parse(raw); err == nil {
		return u.Redacted()
	}
	return "the place given"
}
