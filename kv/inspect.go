package kv

import (
	"context"
	"time"
)

// Checker is a Backend that can verify its data: its own structures, and the log against
// the current state.
type Checker interface {
	// Check reads everything from one snapshot while writers continue. It returns one error
	// for each finding, joined with errors.Join.
	Check(ctx context.Context) error
}

// Inspector is a Table that can describe its contents without reading all of them.
type Inspector interface {
	Inspect(ctx context.Context) (*Inspection, error)
}

// HistoryReporter is a Table that can cheaply report how much history it keeps.
type HistoryReporter interface {
	Table
	// History costs no more than reading the list of commits.
	History(ctx context.Context) (History, error)
}

// History is the size of a keyspace's retained history, counted in changes of keys. These
// are rows of the log, including those that are the current state of a key.
type History struct {
	Head
	// Changes above the compaction revision can be read and watched.
	Changes int64
	// Unswept changes are at or below the compaction revision, and Sweep has not visited
	// them yet. For each of them it frees one row, and two for a deletion.
	Unswept int64
}

// Inspection describes the contents of a table.
type Inspection struct {
	// Keys that exist now.
	Keys int64
	// History counts the other rows of the log: earlier states, and deletions.
	History int64
	// LastCommit is the time of the last write to the database; zero if unknown.
	LastCommit time.Time
}

// Alarms is a Table or a Keyspace that keeps etcd's NOSPACE alarm. The alarm is durable, and
// all servers of the keyspace see it. It has no effect of its own: the adapter for etcd
// clients refuses their writes while it is raised.
type Alarms interface {
	// NoSpaceAlarm reports whether the alarm is raised.
	NoSpaceAlarm(ctx context.Context) (bool, error)
	// SetNoSpaceAlarm raises or disarms it. Repeating it is harmless.
	SetNoSpaceAlarm(ctx context.Context, raised bool) error
}

// Defragmenter is a Backend or a Keyspace that can return free space to the system.
type Defragmenter interface {
	// Defragment returns when as little space as possible is free. Other calls go on
	// meanwhile.
	Defragment(ctx context.Context) error
}
