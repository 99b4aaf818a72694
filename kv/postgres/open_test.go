package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestOpenAmidFaults: any statement of opening may fail and is tried again.
func TestOpenAmidFaults(t *testing.T) {
	for _, which := range append(pgproxy.Databases(), pgproxy.PostgreSQL) {
		t.Run("as "+string(which), func(t *testing.T) {
			d := emulate(t, which, 1)
			d.proxy.Set(pgproxy.Faults{Fail: 0.02, Cut: 0.005})
			schema := d.schema(t)
			for range 15 {
				openURL(t, d.url, schema).Close()
			}
			if got := d.proxy.Counts(); got["failed "+pgproxy.Serialization] == 0 {
				t.Error("nothing failed:", got)
			}
		})
	}
}
