package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/server"
)

// locationStatus is the output of `atoll kv status`. Scripts use its JSON names.
type locationStatus struct {
	Place      string           `json:"place"`
	Size       int64            `json:"size"`
	SizeInUse  int64            `json:"sizeInUse"`
	LastCommit *time.Time       `json:"lastCommit,omitempty"`
	Keyspaces  []keyspaceStatus `json:"keyspaces"`
}

type keyspaceStatus struct {
	Name      string `json:"name,omitempty"`
	Revision  int64  `json:"revision"`
	Compacted int64  `json:"compacted"`
	Keys      int64  `json:"keys"`
	// History and Unswept are omitted if they are unknown. History counts the rows of
	// the log besides those of live keys. Unswept counts compacted changes whose space
	// has not been freed yet.
	History *int64 `json:"history,omitempty"`
	Unswept *int64 `json:"unswept,omitempty"`
}

func newKVStatusCommand() *cobra.Command {
	var (
		where    location
		keyspace string
		format   = "table"
	)
	cmd := &cobra.Command{
		Use:   "status --datastore URL",
		Short: "Show the status and size of keyspaces",
		Long: `Show the status of keyspaces: revision, compaction revision, live keys, additional rows of
history, and compacted changes whose space has not been freed yet (UNSWEPT). The command
changes nothing and can run while servers use the datastore.`,
		Example: `  atoll kv status --datastore sqlite:///var/lib/atoll/atoll.db
  atoll kv status --endpoint http://127.0.0.1:2379 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "table", "json", "yaml"); err != nil {
				return err
			}
			if err := where.check(); err != nil {
				return err
			}
			status, err := where.status(cmd.Context(), keyspace)
			if err != nil {
				return err
			}
			if format != "table" {
				return printStructured(cmd.OutOrStdout(), format, status)
			}
			return status.print(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	where.addFlags(flags)
	flags.StringVar(&keyspace, "keyspace", "", "Only this keyspace of the datastore. The default is all.")
	flags.StringVarP(&format, "output", "o", format, outputFlag("table", "json", "yaml"))
	return cmd
}

func (p *location) status(ctx context.Context, keyspace string) (_ *locationStatus, err error) {
	if p.endpoint != "" {
		return p.endpointStatus(ctx, keyspace)
	}
	db, err := server.OpenDatastoreReadOnly(ctx, p.datastore)
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, db.Close()) }()
	names, err := db.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	if keyspace != "" {
		if names, err = withPartitions(ctx, db, keyspace); err != nil {
			return nil, err
		}
	}
	names = byParent(names)
	out := &locationStatus{Place: db.URL(), Keyspaces: []keyspaceStatus{}}
	if out.Size, out.SizeInUse, err = db.Size(ctx); err != nil {
		return nil, err
	}
	for _, name := range names {
		table, err := openTable(ctx, db, name)
		if err != nil {
			return nil, err
		}
		head, err := table.Head(ctx)
		if err != nil {
			return nil, err
		}
		found, err := inspect.NewReader(table, db, clock.RealClock{}).Inspect(ctx)
		if err != nil {
			return nil, err
		}
		one := keyspaceStatus{Name: name, Revision: head.Revision, Compacted: head.Compacted, Keys: found.Keys}
		if found.History >= 0 {
			one.History = &found.History
		}
		if h, ok := table.(kv.HistoryReporter); ok {
			kept, err := h.History(ctx)
			if err != nil {
				return nil, err
			}
			one.Unswept = &kept.Unswept
		}
		if t := found.LastCommit; !t.IsZero() && (out.LastCommit == nil || t.After(*out.LastCommit)) {
			utc := t.UTC()
			out.LastCommit = &utc
		}
		out.Keyspaces = append(out.Keyspaces, one)
	}
	return out, nil
}

func (p *location) endpointStatus(ctx context.Context, keyspace string) (_ *locationStatus, err error) {
	if keyspace != "" {
		return nil, errors.New("--keyspace requires --datastore: an endpoint serves only one keyspace")
	}
	client, err := p.openEndpoint(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, client.Close()) }()
	ks := etcd.Remote(client)
	st, err := ks.Status(ctx)
	if err != nil {
		return nil, err
	}
	count, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true})
	if err != nil {
		return nil, err
	}
	return &locationStatus{
		Place: p.describe(), Size: st.Size, SizeInUse: st.SizeInUse,
		Keyspaces: []keyspaceStatus{{Revision: st.Revision, Compacted: st.Compacted, Keys: count.Count}},
	}, nil
}

func (s *locationStatus) print(out io.Writer) error {
	fmt.Fprintf(out, "%s: %s on disk, %s in use", s.Place, bytesText(s.Size), bytesText(s.SizeInUse))
	if s.LastCommit != nil {
		fmt.Fprintf(out, ", last commit %s", s.LastCommit.Format(time.RFC3339))
	}
	fmt.Fprintln(out)
	w := newTable(out)
	fmt.Fprintln(w, "KEYSPACE\tREVISION\tCOMPACTED\tKEYS\tHISTORY\tUNSWEPT")
	for _, k := range s.Keyspaces {
		name := k.Name
		if name == "" {
			name = "<served>"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n", name, k.Revision, k.Compacted, k.Keys, known(k.History), known(k.Unswept))
	}
	return w.Flush()
}

func known(n *int64) string {
	if n == nil {
		return "<unknown>"
	}
	return fmt.Sprint(*n)
}
