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

// defaultBump is the number that etcd's documentation recommends for a restore: more
// revisions than were created since the backup, however busy the clients.
const defaultBump = 1_000_000_000

// side is one end of a copy: an etcd server, or a keyspace in a datastore.
type side struct {
	flag     string // name of the flag, for messages
	url      string
	keyspace string
	tls      etcd.ClientTLS
}

func (s *side) addTLSFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.tls.CAFile, s.flag+"-cacert", "", "Certificate authority of the etcd server of --"+s.flag+". The default is the system's trust store.")
	flags.StringVar(&s.tls.CertFile, s.flag+"-cert", "", "Client certificate for it.")
	flags.StringVar(&s.tls.KeyFile, s.flag+"-key", "", "Key of the client certificate.")
}

// remote reports whether the side is an etcd server.
func (s *side) remote() bool {
	scheme, _, _ := strings.Cut(s.url, "://")
	return slices.Contains([]string{"etcd", "etcds", "http", "https", "unix"}, scheme)
}

func (s *side) check() error {
	if s.url == "" && s.flag == "to" {
		s.url = orEnvironment("")
	}
	if s.url == "" {
		variable := ""
		if s.flag == "to" {
			variable = ", or $" + DatastoreVariable
		}
		return fmt.Errorf("--%s is not set: use an etcd server, etcd://host:port, or a datastore, sqlite:///path/to/file.db%s", s.flag, variable)
	}
	if s.tls != (etcd.ClientTLS{}) && !s.remote() {
		return fmt.Errorf("--%s-cacert, --%s-cert and --%s-key require an etcd server; for a datastore, set the certificates in its URL", s.flag, s.flag, s.flag)
	}
	return nil
}

// source is a keyspace that can be copied and backed up.
type source interface {
	reader
	LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error)
}

// openSource opens the side for reading; servers may have the datastore open too.
func (s *side) openSource(ctx context.Context) (source, io.Closer, error) {
	if s.remote() {
		client, err := etcd.Dial(ctx, s.url, s.tls)
		if err != nil {
			return nil, nil, fmt.Errorf("--%s: %w", s.flag, err)
		}
		return etcd.Remote(client), client, nil
	}
	db, err := server.OpenDatastoreReadOnly(ctx, s.url)
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
	// datastore is nil for an etcd.
	datastore *server.Datastore
	name      string
	filling   bool // the keyspace is recorded as incomplete
}

// begin records that the keyspace is incomplete from now on. A target with keys is not
// touched if they would be refused.
func (t *targetSide) begin(ctx context.Context, existing transfer.Existing, what server.Incomplete) error {
	if t.datastore == nil {
		return nil
	}
	if existing == transfer.Refuse {
		res, err := t.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), Limit: 1, KeysOnly: true})
		if err != nil || len(res.KVs) > 0 {
			return err
		}
	}
	t.filling = true
	return t.datastore.BeginFilling(ctx, t.name, what)
}

// end records that the keyspace is complete.
func (t *targetSide) end(ctx context.Context) error {
	if !t.filling {
		return nil
	}
	return t.datastore.EndFilling(ctx, t.name)
}

// place returns the URL of the target without secrets.
func (t *targetSide) place() string {
	if t.datastore == nil {
		return ""
	}
	return t.datastore.URL()
}

func (t *targetSide) Close() (err error) {
	for _, c := range slices.Backward(t.closers) {
		err = errors.Join(err, c.Close())
	}
	return err
}

// openTarget opens the side for writing. It first raises the revision of an empty
// keyspace in a datastore, so that no revision known to clients of the original is
// ahead of it.
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
		return nil, explainInUse(err, "use it as the target: --"+s.flag+" etcd://host:port")
	}
	t.closers = append(t.closers, db)
	t.datastore, t.name = db, s.keyspace
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

// existingFlags determine what happens to a target's existing keys.
type existingFlags struct{ merge, mirror bool }

func (e *existingFlags) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&e.mirror, "mirror", false, "Make a target with existing keys equal to the source: keys that the source lacks are DELETED. Also finishes an interrupted copy.")
	flags.BoolVar(&e.merge, "merge", false, "Write to a target with existing keys: keys with the same name are replaced, others are kept.")
}

func (e *existingFlags) mode() (transfer.Existing, error) {
	switch {
	case e.merge && e.mirror:
		return 0, errors.New("--merge and --mirror are mutually exclusive")
	case e.merge:
		return transfer.Merge, nil
	case e.mirror:
		return transfer.Mirror, nil
	}
	return transfer.Refuse, nil
}

// explainNotEmpty adds the next step to the error about a target with existing keys.
func explainNotEmpty(err error) error {
	var notEmpty *transfer.NotEmptyError
	if errors.As(err, &notEmpty) {
		return fmt.Errorf("%w\nTo finish an interrupted copy, or to make the target equal to the source and delete its other keys, use --mirror; "+
			"to keep its other keys, use --merge. --dry-run shows what either would do", err)
	}
	return err
}

// meterProgress shows a transfer's progress.
func meterProgress(m *meter) transfer.ProgressHooks {
	return transfer.ProgressHooks{Phase: m.phase, Step: m.add}
}

// reportVerified prints the comparison. It returns an error if anything differs.
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
		"make sure that no other client writes to the target, and run it again with --mirror", c.Different, c.Source, c.Target)
}
