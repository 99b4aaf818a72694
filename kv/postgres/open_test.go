package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestURL checks that our own parameters in a URL are not passed to the database.
func TestURL(t *testing.T) {
	for _, tc := range []struct {
		query string
		conns int
		poll  time.Duration
		err   error
	}{
		{"", 16, 0, nil},
		{"?pool_max_conns=5&poll_interval=50ms", 5, 50 * time.Millisecond, nil},
		{"?pool_max_conns=many", 0, 0, kv.ErrInvalidRequest},
		{"?pool_max_conns=1", 0, 0, kv.ErrInvalidRequest},
		{"?poll_interval=50", 0, 0, kv.ErrInvalidRequest},
		{"?poll_interval=-1s", 0, 0, kv.ErrInvalidRequest},
	} {
		o := options{schema: "atoll", maxConns: 16}
		config, err := parse("postgres://user@127.0.0.1:5433/db"+tc.query, &o)
		if !errors.Is(err, tc.err) {
			t.Errorf("%s: %v", tc.query, err)
		}
		if err != nil {
			continue
		}
		if o.maxConns != tc.conns || o.poll != tc.poll || config.RuntimeParams["pool_max_conns"] != "" || config.RuntimeParams["poll_interval"] != "" {
			t.Errorf("%s: %+v, %v", tc.query, o, config.RuntimeParams)
		}
	}
}

// TestOpenWithFaults checks that any statement of Open may fail and is retried.
func TestOpenWithFaults(t *testing.T) {
	for _, which := range append(pgproxy.Databases(), pgproxy.PostgreSQL) {
		t.Run("as "+string(which), func(t *testing.T) {
			t.Parallel()
			d := emulate(t, which, 1)
			var codes []string
			if which != pgproxy.PostgreSQL {
				codes = documented(which)
			}
			d.proxy.Set(pgproxy.Faults{Fail: 0.02, Cut: 0.005, Codes: codes})
			schema := d.schema(t)
			for range 8 {
				// A slow machine may take longer than the default ten seconds.
				openURL(t, d.url, schema, WithTimeout(time.Minute)).Close()
			}
			failed := 0
			for kind := range d.proxy.Counts() {
				if strings.HasPrefix(kind, "failed ") {
					failed++
				}
			}
			if got := d.proxy.Counts(); failed == 0 {
				t.Error("no failures were injected:", got)
			}
		})
	}
}
