package postgres

import (
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestNoNotificationOfFailedCommit: a failing commit has already sent its notification. No
// server may receive its revision: it would treat it as read, and miss the commit that
// makes it next.
func TestNoNotificationOfFailedCommit(t *testing.T) {
	s := server(t)
	proxy, err := pgproxy.Start(pgproxy.Config{Server: s.Address(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	url, err := proxy.URL(s.URL(), "writer")
	if err != nil {
		t.Fatal(err)
	}
	option := schemaOf(t)
	writer := openTable(t, openURL(t, url, option, WithTimeout(5*time.Second)), "default")
	other := openTable(t, openURL(t, s.URL(), option, WithPoll(time.Hour)), "default")
	followed := follow(t, other)
	eventually(t, "LISTEN", func() bool {
		return sql(t, s, `SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN "`+other.db.opts.schema+`"'`) == "1"
	})

	proxy.Set(pgproxy.Faults{FailCommit: 1})
	err = writer.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "a", "1", "b", "2", "c", "3") })
	if err == nil {
		t.Fatal("the commit did not fail")
	}
	proxy.Set(pgproxy.Faults{})
	write(t, writer, "a", "1")
	// Notifications arrive in order, so earlier ones have arrived, too.
	eventually(t, "the notification of the successful commit", func() bool { return followed.Load() >= 2 })
	if got := followed.Load(); got != 2 {
		t.Errorf("revision %d was reported, but only 2 exists", got)
	}
}
