package postgres

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// follow starts a Follow and returns what it has told last.
func follow(t *testing.T, table kv.SharedTable) *atomic.Int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	heard := &atomic.Int64{}
	done := make(chan error, 1)
	go func() {
		done <- table.Follow(ctx, func(rev kv.Revision) {
			for old := heard.Load(); rev > old && !heard.CompareAndSwap(old, rev); old = heard.Load() {
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, kv.ErrClosed) {
			t.Error(err)
		}
	})
	return heard
}

// TestFollow: one server hears of another's commits by notification, within
// milliseconds; the poll is far too slow for that here.
func TestFollow(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	ours := openTable(t, openURL(t, s.URL(), option), "default")
	other := openTable(t, openURL(t, s.URL(), option, WithPoll(time.Hour)), "default")
	write(t, ours, "a", "1")
	heard := follow(t, other)
	eventually(t, "where it stands", func() bool { return heard.Load() == 2 })
	eventually(t, "it listens", func() bool {
		return sql(t, s, `SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN "`+ours.db.opts.schema+`"'`) == "1"
	})
	var took []time.Duration
	for rev := kv.Revision(3); rev < 200; rev++ {
		write(t, ours, "a", "2")
		begin := time.Now()
		for heard.Load() < rev {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("revision %d was not heard of", rev)
			}
			time.Sleep(50 * time.Microsecond)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("heard after the acknowledgement: p50 %v, p99 %v", took[len(took)/2], took[len(took)*99/100])
}

// TestFollowReconnects: what was committed while the connection was gone is
// told when it is back.
func TestFollowReconnects(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	p := proxy(t, s, 1)
	ours := openTable(t, openURL(t, s.URL(), option), "default")
	other := openTable(t, openURL(t, through(t, p, s, "follower"), option, WithPoll(time.Hour)), "default")
	heard := follow(t, other)
	eventually(t, "where it stands", func() bool { return heard.Load() == 1 })
	for rev := kv.Revision(2); rev < 6; rev++ {
		p.Cut()
		write(t, ours, "a", "1")
		eventually(t, "it is heard", func() bool { return heard.Load() == rev })
	}
}

// TestFollowPolling: where notifications do not work the poll does.
func TestFollowPolling(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	p := proxy(t, s, 1)
	ours := openTable(t, openURL(t, s.URL(), option), "default")
	other := openTable(t, openURL(t, through(t, p, s, "follower"), option, WithPoll(10*time.Millisecond)), "default")
	p.Set(pgproxy.Faults{Refuse: pgproxy.Listen})
	heard := follow(t, other)
	for rev := kv.Revision(2); rev < 20; rev++ {
		write(t, ours, "a", "1")
		eventually(t, "it is heard", func() bool { return heard.Load() == rev })
	}
}
