package postgres

import (
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestFirstCommitLost: the answer to the first commit of a keyspace gets lost, and
// another server has made the first one, larger. So there is no row of a commit as
// old as the lost one would be, and yet it is certain that it did not happen.
func TestFirstCommitLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		table := openTable(t, d.open(t), "default")
		write(t, table, "a", "1", "b", "2", "c", "3")
		lost := sought{commitID: commitID{rev: 2, token: [tokenSize]byte{1}}}
		_, err := table.resolve(t.Context(), lost, errors.New("connection reset"))
		if _, again := errors.AsType[*lostError](err); !again {
			t.Errorf("got %v, want that it is tried again", err)
		}
		if errors.Is(err, kv.ErrUnknownOutcome) {
			t.Error("its outcome is called unknown")
		}
	})
}
