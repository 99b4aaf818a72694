package postgres

import (
	"fmt"
	"strings"
	"testing"
)

// TestPurgePlans: Purge finds its keyspaces by indexes, also among ten thousand that it has to remember, with and without statistics.
func TestPurgePlans(t *testing.T) {
	s := server(t)
	db := openURL(t, s.SocketURL(), schemaOf(t))
	schema, stages := db.opts.schema, len(purgeTables())
	sql(t, s, fmt.Sprintf(`INSERT INTO %s.dropped (ks, origin, since, stage, place) SELECT 1000000 + i, '', now(), %d, '' FROM generate_series(1, 10000) i`, schema, stages))
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			sql(t, s, "ANALYZE "+schema+".dropped")
		}
		c, err := db.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		for index, text := range map[string]string{"dropped_stage": selectUnfinished(stages), "dropped_since": selectForgotten(stages, 1000)} {
			var plan []string
			if err := c.simple("EXPLAIN "+text, func(cols [][]byte) { plan = append(plan, string(cols[0])) }); err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(plan, "\n"); !strings.Contains(all, index) || strings.Contains(all, "Sort") {
				t.Errorf("analyzed: %v: not read in the order of %s:\n%s\n%s", analyzed, index, text, all)
			}
		}
	}
}
