// Package faults_test injects faults. Three servers share one keyspace in one PostgreSQL, and clients and
// watchers use all three. Meanwhile servers are killed, frozen and partitioned, connections end at the
// worst moment, transactions fail, and the database itself crashes and pauses. Afterwards test/history
// decides whether a single keyspace could have given all answers and events.
//
// A seed determines the faults and their times:
//
//	go test ./test/faults -v -runs 200      # many runs
//	go test ./test/faults -v -seed 4711     # repeat one run
//
//	go test ./test/faults -v -database yugabyte   # or cockroach, emulated
//
// With -postgres.url postgres://… (or ATOLL_TEST_DATASTORE) the runs use
// another database, such as a YugabyteDB or CockroachDB; see docs/faults.md.
package faults_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/child"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "the seed of the first run; 0 chooses one")
	runsFlag  = flag.Int("runs", defaultRuns, "how many runs")
	timeFlag  = flag.Duration("time", 2*time.Second, "how long each run lasts")
	stageFlag = flag.Int("stages", 1, "how many databases to use in parallel")
	dataFlag  = flag.String("database", "postgres", "the database that the proxy emulates: postgres, yugabyte, yugabyte-snapshot or cockroach")
	givenFlag = flag.String("postgres.url", "", "a database to use instead of a PostgreSQL started by the test; same as "+datastoreVariable)
)

// defaultRuns take about half a minute.
const defaultRuns = 6

// datastoreVariable names a database to use instead of a PostgreSQL started by the test.
const datastoreVariable = "ATOLL_TEST_DATASTORE"

func TestMain(m *testing.M) {
	enterNetwork()
	child.Main(map[string]child.Role{serverRole: serve, dialRole: dial})
	os.Exit(m.Run())
}
