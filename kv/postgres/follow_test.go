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

// follow starts a Follow and returns the last reported revision.
func follow(t *testing.T, table kv.SharedTable) *atomic.Int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	followed := &atomic.Int64{}
	done := make(chan error, 1)
	go func() {
		done <- table.Follow(ctx, func(rev kv.Revision) {
			for old := followed.Load(); rev > old && !followed.CompareAndSwap(old, rev); old = followed.Load() {
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, kv.ErrClosed) {
			t.Error(err)
		}
	})
	return followed
}

// TestFollow checks that a server is notified of another's commits within milliseconds; the
// poll is far too slow for that here.
func TestFollow(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	ours := openTable(t, openURL(t, s.URL(), option), "default")
	other := openTable(t, openURL(t, s.URL(), option, WithPoll(time.Hour)), "default")
	write(t, ours, "a", "1")
	followed := follow(t, other)
	eventually(t, "the current revision", func() bool { return followed.Load() == 2 })
	eventually(t, "LISTEN", func() bool {
		return sql(t, s, `SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN "`+ours.db.opts.schema+`"'`) == "1"
	})
	var took []time.Duration
	for rev := kv.Revision(3); rev < 200; rev++ {
		write(t, ours, "a", "2")
		begin := time.Now()
		for followed.Load() < rev {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("revision %d was not reported", rev)
			}
			time.Sleep(50 * time.Microsecond)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("delay after the acknowledgement: p50 %v, p99 %v", took[len(took)/2], took[len(took)*99/100])
}

// TestFollowReconnects checks that commits during a disconnection are reported after it.
func TestFollowReconnects(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	p := proxy(t, s, 1)
	ours := openTable(t, openURL(t, s.URL(), option), "default")
	other := openTable(t, openURL(t, through(t, p, s, "follower"), option, WithPoll(time.Hour)), "default")
	followed := follow(t, other)
	eventually(t, "the current revision", func() bool { return followed.Load() == 1 })
	for rev := kv.Revision(2); rev < 6; rev++ {
		p.Cut()
		write(t, ours, "a", "1")
		eventually(t, "the notification", func() bool { return followed.Load() == rev })
	}
}

// TestFollowPolling checks that polling works without notifications.
func TestFollowPolling(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	p := proxy(t, s, 1)
	ours := openTable(t, openURL(t, s.URL(), option), "default")
	other := openTable(t, openURL(t, through(t, p, s, "follower"), option, WithPoll(10*time.Millisecond)), "default")
	p.Set(pgproxy.Faults{Refuse: pgproxy.Listen})
	followed := follow(t, other)
	for rev := kv.Revision(2); rev < 20; rev++ {
		write(t, ours, "a", "1")
		eventually(t, "the notification", func() bool { return followed.Load() == rev })
	}
}
