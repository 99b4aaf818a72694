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

// placeStatus is what `atoll kv status` tells. Its JSON names are for scripts.
type placeStatus struct {
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
	// History and Unswept are left out where nobody can tell them: rows of the log
	// beside those of live keys, and changes that a compaction has forgotten and
	// whose space is not given back yet.
	History *int64 `json:"history,omitempty"`
	Unswept *int64 `json:"unswept,omitempty"`
}

func newKVStatusCommand() *cobra.Command {
	var (
		where    place
		keyspace string
		format   = "table"
	)
	cmd := &cobra.Command{
		Use:   "status --datastore URL",
		Short: "Show where keyspaces stand and what they take",
		Long: `Show where keyspaces stand: revision, compaction revision, live keys, the rows
of history kept beside them, and how many compacted changes still wait for their
space to be given back (UNSWEPT). It changes nothing, and works while servers
run on the datastore.`,
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

func (p *place) status(ctx context.Context, keyspace string) (_ *placeStatus, err error) {
	if p.endpoint != "" {
		return p.endpointStatus(ctx, keyspace)
	}
	db, err := server.OpenDatastoreToRead(ctx, p.datastore)
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
	out := &placeStatus{Place: db.URL(), Keyspaces: []keyspaceStatus{}}
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

func (p *place) endpointStatus(ctx context.Context, keyspace string) (_ *placeStatus, err error) {
	if keyspace != "" {
		return nil, errors.New("--keyspace is for --datastore: an endpoint serves one keyspace only")
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
	return &placeStatus{
		Place: p.whereIs(), Size: st.Size, SizeInUse: st.SizeInUse,
		Keyspaces: []keyspaceStatus{{Revision: st.Revision, Compacted: st.Compacted, Keys: count.Count}},
	}, nil
}

func (s *placeStatus) print(out io.Writer) error {
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
