package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/server"
)

// defaultBump is what etcd's own documentation advises for a restore: more
// revisions than were made since the backup, however busy the clients.
const defaultBump = 1_000_000_000

// side is one end of a copy: an etcd server, or a keyspace in a datastore.
type side struct {
	flag     string // the flag that names it, for messages
	url      string
	keyspace string
	tls      etcd.ClientTLS
}

func (s *side) addTLSFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.tls.CAFile, s.flag+"-cacert", "", "Certificate authority of the etcd server of --"+s.flag+". The default is the system's.")
	flags.StringVar(&s.tls.CertFile, s.flag+"-cert", "", "Client certificate for it.")
	flags.StringVar(&s.tls.KeyFile, s.flag+"-key", "", "Key of the client certificate.")
}

// remote tells an etcd server from a datastore.
func (s *side) remote() bool {
	scheme, _, _ := strings.Cut(s.url, "://")
	return slices.Contains([]string{"etcd", "etcds", "http", "https", "unix"}, scheme)
}

func (s *side) check() error {
	if s.url == "" {
		return fmt.Errorf("no --%s given: name an etcd server, etcd://host:port, or a datastore, sqlite:///path/to/file.db", s.flag)
	}
	if s.tls != (etcd.ClientTLS{}) && !s.remote() {
		return fmt.Errorf("--%s-cacert, --%s-cert and --%s-key are for an etcd server; a datastore takes its certificates in its URL", s.flag, s.flag, s.flag)
	}
	return nil
}

// source is what can be copied and backed up.
type source interface {
	reader
	LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error)
}

// openSource opens the side for reading; a datastore that servers have open,
// too.
func (s *side) openSource(ctx context.Context) (source, io.Closer, error) {
	if s.remote() {
		client, err := etcd.Dial(ctx, s.url, s.tls)
		if err != nil {
			return nil, nil, fmt.Errorf("--%s: %w", s.flag, err)
		}
		return etcd.Remote(client), client, nil
	}
	db, err := server.OpenDatastoreToRead(ctx, s.url)
	if err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", s.flag, err)
	}
	ks, err := openWhole(ctx, db, s.keyspace)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--%s: %w", s.flag, err), db.Close())
	}
	return ks, db, nil
}

// targetSide is a keyspace to write to.
type targetSide struct {
	kv.Keyspace
	closers []io.Closer
}

func (t *targetSide) Close() (err error) {
	for _, c := range slices.Backward(t.closers) {
		err = errors.Join(err, c.Close())
	}
	return err
}

// openTarget opens the side for writing. A keyspace without keys in a datastore
// is first raised to a revision, so that what clients remember of the original
// never lies ahead of it.
func (s *side) openTarget(ctx context.Context, raise kv.Revision) (_ *targetSide, err error) {
	t := &targetSide{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("--%s: %w", s.flag, err), t.Close())
		}
	}()
	if s.remote() {
		client, err := etcd.Dial(ctx, s.url, s.tls)
		if err != nil {
			return nil, err
		}
		t.closers = append(t.closers, client)
		t.Keyspace = etcd.Remote(client)
		return t, nil
	}
	db, err := server.OpenDatastore(ctx, s.url)
	if err != nil {
		return nil, heldElsewhere(err, "go through it: --"+s.flag+" etcd://host:port")
	}
	t.closers = append(t.closers, db)
	if err := refusePartitioned(ctx, db, s.keyspace); err != nil {
		return nil, err
	}
	if raise > 0 {
		table, err := db.Open(ctx, s.keyspace)
		if err != nil {
			return nil, err
		}
		res, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), Limit: 1}, false)
		if err != nil {
			return nil, err
		}
		if len(res.KVs) == 0 {
			if err := transfer.Raise(ctx, table, raise); err != nil {
				return nil, err
			}
		}
	}
	keyspace, err := db.Keyspace(ctx, s.keyspace, mvcc.Options{})
	if err != nil {
		return nil, err
	}
	t.closers = append(t.closers, keyspace)
	t.Keyspace = keyspace
	return t, nil
}

// existingFlags choose what becomes of a target's own keys.
type existingFlags struct{ merge, mirror bool }

func (e *existingFlags) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&e.mirror, "mirror", false, "Make a target that has keys equal to the source: keys that the source lacks are DELETED. Also finishes what was interrupted.")
	flags.BoolVar(&e.merge, "merge", false, "Write into a target that has keys: those of the same name are replaced, others stay.")
}

func (e *existingFlags) mode() (transfer.Existing, error) {
	switch {
	case e.merge && e.mirror:
		return 0, errors.New("both --merge and --mirror given: choose one")
	case e.merge:
		return transfer.Merge, nil
	case e.mirror:
		return transfer.Mirror, nil
	}
	return transfer.Refuse, nil
}

// explain adds the remedy to a refused target.
func explain(err error) error {
	var notEmpty *transfer.NotEmptyError
	if errors.As(err, &notEmpty) {
		return fmt.Errorf("%w\nTo finish an interrupted copy, or make the target equal to the source and delete its other keys, give --mirror; "+
			"to keep its other keys, --merge. --dry-run shows what either would do", err)
	}
	return err
}

// meterProgress shows a transfer's progress.
func meterProgress(m *meter) transfer.ProgressHooks {
	return transfer.ProgressHooks{Phase: m.phase, Step: m.add}
}

// reportVerified prints what was compared, and is an error if anything differs.
func reportVerified(out io.Writer, c *transfer.Comparison) error {
	if c.Different == 0 {
		fmt.Fprintf(out, "verified: %d keys are equal at revision %d of the source and %d of the target", c.Equal, c.Source, c.Target)
		if c.Expired > 0 {
			fmt.Fprintf(out, "; %d have expired with their leases", c.Expired)
		}
		if c.Changed > 0 {
			fmt.Fprintf(out, "; %d have changed at the source since, and were not compared", c.Changed)
		}
		fmt.Fprintln(out)
		return nil
	}
	for _, d := range c.Differences {
		fmt.Fprintln(out, d)
	}
	if more := c.Different - int64(len(c.Differences)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return fmt.Errorf("verify: %d keys differ between revision %d of the source and %d of the target: "+
		"make sure that nobody else writes to the target, and run it again with --mirror", c.Different, c.Source, c.Target)
}
