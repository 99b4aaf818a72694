package cli

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/server"
)

// dumpPage is how many keys are read at a time: values may be large.
const dumpPage = 500

type dumpOptions struct {
	prefix   string
	revision int64
	values   string
	history  bool
	format   string
}

func newKVDumpCommand() *cobra.Command {
	var where location
	keyspace := server.Workspace
	opts := dumpOptions{values: "size", format: "table"}
	cmd := &cobra.Command{
		Use:   "dump --datastore URL",
		Short: "Print the keys of a keyspace, or its history",
		Long: `Print the keys of a keyspace at one revision, or with --history every change since the
last compaction. The command changes nothing and can run while servers use the datastore.

Values are only printed with --values, because they include Secrets.`,
		Example: `  # The keys with a prefix
  atoll kv dump --datastore sqlite:///var/lib/atoll/atoll.db --prefix /registry/configmaps/

  # At an earlier revision, one JSON object per line
  atoll kv dump --datastore sqlite:///var/lib/atoll/atoll.db --revision 1200 --values base64 -o json

  # All changes since the last compaction
  atoll kv dump --endpoint http://127.0.0.1:2379 --history`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(); err != nil {
				return err
			}
			ks, closer, err := where.toReadUnder(cmd.Context(), keyspace, opts.prefix)
			if err != nil {
				return err
			}
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			err = opts.dump(cmd.Context(), ks, out)
			return errors.Join(err, out.Flush(), closer.Close())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	where.addFlags(flags)
	flags.StringVar(&keyspace, "keyspace", keyspace, "Name of the keyspace in the datastore.")
	flags.StringVar(&opts.prefix, "prefix", "", "Only keys with this prefix.")
	flags.Int64Var(&opts.revision, "revision", 0, "Revision to read; with --history the last one to print. The default is the current one.")
	flags.StringVar(&opts.values, "values", opts.values, "How to print values: none, size, raw or base64. The last two may print Secrets.")
	flags.BoolVar(&opts.history, "history", false, "Print every change instead of the state.")
	flags.StringVarP(&opts.format, "output", "o", opts.format, "Output format: table, or json with one object per line.")
	return cmd
}

func (o *dumpOptions) check() error {
	if err := checkFormat(o.format, "table", "json"); err != nil {
		return err
	}
	switch o.values {
	case "none", "size", "raw", "base64":
	default:
		return fmt.Errorf("invalid --values %q: must be none, size, raw or base64", o.values)
	}
	if o.revision < 0 {
		return fmt.Errorf("--revision %d: revisions begin at 1", o.revision)
	}
	return nil
}

func (o *dumpOptions) dump(ctx context.Context, ks reader, out io.Writer) error {
	print, err := o.printer(out)
	if err != nil {
		return err
	}
	if o.history {
		st, err := ks.Status(ctx)
		if err != nil {
			return err
		}
		upTo := st.Revision
		if o.revision > 0 {
			if o.revision > st.Revision {
				return fmt.Errorf("--revision %d: %w: the keyspace is at %d", o.revision, kv.ErrFutureRevision, st.Revision)
			}
			upTo = o.revision
		}
		req := kv.WatchRequest{Span: kv.Prefix([]byte(o.prefix))}
		return inspect.History(ctx, ks, req, st.Compacted, upTo, func(e kv.Event) error {
			return print(&e.KV, e.Type == kv.EventDelete)
		})
	}
	req := kv.RangeRequest{
		Span: kv.Prefix([]byte(o.prefix)), Revision: o.revision, Limit: dumpPage,
		KeysOnly: o.values == "none",
	}
	for {
		res, err := ks.Range(ctx, req)
		if err != nil {
			return err
		}
		if req.Revision == 0 {
			req.Revision = res.Revision
		}
		for i := range res.KVs {
			if err := print(&res.KVs[i], false); err != nil {
				return err
			}
		}
		if !res.More || len(res.KVs) == 0 {
			return nil
		}
		last := res.KVs[len(res.KVs)-1].Key
		req.Start = append(append(make([]byte, 0, len(last)+1), last...), 0)
	}
}

// dumpLine is a key in JSON. Non-text bytes are in base64, in another field.
type dumpLine struct {
	Type        string  `json:"type,omitempty"`
	Key         *string `json:"key,omitempty"`
	KeyBase64   *string `json:"keyBase64,omitempty"`
	Mod         int64   `json:"modRevision"`
	Create      int64   `json:"createRevision,omitempty"`
	Version     int64   `json:"version,omitempty"`
	Lease       string  `json:"lease,omitempty"`
	Size        *int    `json:"size,omitempty"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 *string `json:"valueBase64,omitempty"`
}

type printKV func(e *kv.KeyValue, deleted bool) error

func (o *dumpOptions) printer(out io.Writer) (printKV, error) {
	if o.format == "json" {
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		return func(e *kv.KeyValue, deleted bool) error { return enc.Encode(o.line(e, deleted)) }, nil
	}
	// Plain tabs, not a tabwriter: that would buffer everything until the end.
	header := "MOD\tCREATE\tVERSION\tLEASE\t"
	if o.history {
		header = "TYPE\t" + header
	}
	if o.values != "none" {
		header += map[string]string{"size": "SIZE", "raw": "VALUE", "base64": "VALUE"}[o.values] + "\t"
	}
	if _, err := fmt.Fprintln(out, header+"KEY"); err != nil {
		return nil, err
	}
	return func(e *kv.KeyValue, deleted bool) error {
		l := o.line(e, deleted)
		row := fmt.Sprintf("%d\t%d\t%d\t%s\t", l.Mod, l.Create, l.Version, l.Lease)
		if o.history {
			row = l.Type + "\t" + row
		}
		switch o.values {
		case "size":
			row += strconv.Itoa(len(e.Value)) + "\t"
		case "raw":
			row += strconv.Quote(string(e.Value)) + "\t"
		case "base64":
			row += base64.StdEncoding.EncodeToString(e.Value) + "\t"
		}
		_, err := fmt.Fprintln(out, row+printable(e.Key))
		return err
	}, nil
}

func (o *dumpOptions) line(e *kv.KeyValue, deleted bool) dumpLine {
	l := dumpLine{Mod: e.ModRevision, Create: e.CreateRevision, Version: e.Version}
	l.Key, l.KeyBase64 = textOrBase64(e.Key)
	if e.Lease != 0 {
		l.Lease = fmt.Sprintf("%016x", e.Lease)
	}
	if o.history {
		l.Type = "PUT"
		if deleted {
			l.Type = "DELETE"
			return l
		}
	}
	switch o.values {
	case "size":
		n := len(e.Value)
		l.Size = &n
	case "raw":
		l.Value, l.ValueBase64 = textOrBase64(e.Value)
	case "base64":
		s := base64.StdEncoding.EncodeToString(e.Value)
		l.ValueBase64 = &s
	}
	return l
}

func textOrBase64(b []byte) (text, encoded *string) {
	s := string(b)
	if utf8.ValidString(s) {
		return &s, nil
	}
	s = base64.StdEncoding.EncodeToString(b)
	return nil, &s
}

// printable returns the key as it is, unless it would break the line.
func printable(key []byte) string {
	s := string(key)
	if q := strconv.Quote(s); q[1:len(q)-1] != s {
		return q
	}
	return s
}
