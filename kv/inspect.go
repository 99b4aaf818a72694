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

// Historian is a Table that can tell cheaply how much history it keeps.
type Historian interface {
	Table
	// History costs no more than a look at the list of commits.
	History(ctx context.Context) (History, error)
}

// History is what a keyspace keeps of its past, counted in changes of keys: rows of
// the log, those that are the current state of a key among them.
type History struct {
	Head
	// Changes above the compaction revision, which can be read and watched.
	Changes int64
	// Unswept changes up to the compaction revision have not been looked at by Sweep
	// since: of each of them it gives back one row, and of deletions two.
	Unswept int64
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
