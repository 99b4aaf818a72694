// Package faults_test lets things go wrong: three servers share one keyspace in
// one PostgreSQL, clients and watchers use all three, and meanwhile servers are
// killed, frozen and cut off, connections end at the worst moment, transactions
// fail, and the database itself crashes and pauses. Afterwards test/history
// decides whether a single keyspace could have told everybody what they were
// told.
//
// What goes wrong, and when, follows from a seed:
//
//	go test ./test/faults -v -runs 200      # many runs
//	go test ./test/faults -v -seed 4711     # this one again
//
//	go test ./test/faults -v -database yugabyte   # or cockroach, emulated
//
// With -postgres.url postgres://… (or ATOLL_TEST_DATASTORE) the same runs against
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
	stageFlag = flag.Int("stages", 1, "how many databases to make runs on at once")
	dataFlag  = flag.String("database", "postgres", "what PostgreSQL is passed off as: postgres, yugabyte, yugabyte-snapshot or cockroach")
	givenFlag = flag.String("postgres.url", "", "a database to use instead of one of our own, as "+datastoreVariable)
)

// defaultRuns take about half a minute.
const defaultRuns = 6

// datastoreVariable names a database to use instead of one of our own.
const datastoreVariable = "ATOLL_TEST_DATASTORE"

func TestMain(m *testing.M) {
	enterNetwork()
	child.Main(map[string]child.Role{serverRole: serve, dialRole: dial})
	os.Exit(m.Run())
}
