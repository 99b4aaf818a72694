package postgres

import (
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestNoNoticeOfWhatFailed: a commit that fails has sent its notification along
// already, and nobody may hear of its revision: a server that did would believe
// that it had seen it, and miss the one who makes it next.
func TestNoNoticeOfWhatFailed(t *testing.T) {
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
	heard := follow(t, other)
	eventually(t, "it listens", func() bool {
		return sql(t, s, `SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN "`+other.db.opts.schema+`"'`) == "1"
	})

	proxy.Set(pgproxy.Faults{FailCommit: 1})
	err = writer.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "a", "1", "b", "2", "c", "3") })
	if err == nil {
		t.Fatal("the commit did not fail")
	}
	proxy.Set(pgproxy.Faults{})
	write(t, writer, "a", "1")
	// Notifications arrive in order, so those of before have come, too.
	eventually(t, "it heard of what happened", func() bool { return heard.Load() >= 2 })
	if got := heard.Load(); got != 2 {
		t.Errorf("it heard of revision %d, but only 2 is there", got)
	}
}
