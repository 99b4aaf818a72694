package kv

import (
	"context"
	"time"
)

// Checker is a Backend that can hold what it stores against itself: its own
// structures, and the log against the current state.
type Checker interface {
	// Check reads everything, from one snapshot, while others go on writing. It
	// returns all that it finds wrong, joined (errors.Join): one error for each finding.
	Check(ctx context.Context) error
}

// Inspector is a Table that can describe what it stores without reading it
// all.
type Inspector interface {
	Inspect(ctx context.Context) (*Inspection, error)
}

// Inspection is what a table holds.
type Inspection struct {
	// Keys that exist now.
	Keys int64
	// History counts the rows of the log that are kept beside them: earlier
	// states, and deletions.
	History int64
	// LastCommit is when anything was last written to the database; zero if
	// that is not known.
	LastCommit time.Time
}
