package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestOpenAmidFaults: any statement of opening may fail and is tried again.
func TestOpenAmidFaults(t *testing.T) {
	s := server(t)
	proxy, err := pgproxy.Start(pgproxy.Config{Server: s.Address(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	proxy.Set(pgproxy.Faults{Fail: 0.02, Cut: 0.005})
	url, err := proxy.URL(s.URL(), "open")
	if err != nil {
		t.Fatal(err)
	}
	schema := schemaOf(t)
	for range 20 {
		openURL(t, url, schema).Close()
	}
	if got := proxy.Counts(); got["failed "+pgproxy.Serialization] == 0 {
		t.Error("nothing failed:", got)
	}
}
