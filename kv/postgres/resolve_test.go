package postgres

import (
	"errors"
	"testing"
	"time"
)

// TestFirstCommitLost: the answer to the first commit of a keyspace is lost, and another
// server has made a larger first one. So there is no row of a commit as old as the lost one
// would be, and yet it is certain that it did not happen.
func TestFirstCommitLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		table := openTable(t, d.open(t), "default")
		write(t, table, "a", "1", "b", "2", "c", "3")
		lost := sought{commitID: commitID{rev: 2, token: [tokenSize]byte{1}}}
		reached, err := table.resolve(t.Context(), time.Minute, lost, errors.New("connection reset"))
		if reached != 0 || err != nil {
			t.Errorf("reached %d, %v; want a definite result that it did not happen", reached, err)
		}
	})
}
