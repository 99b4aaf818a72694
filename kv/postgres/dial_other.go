//go:build !linux

package postgres

import "time"

// limitUnacknowledged does nothing where this is not known to be possible: what was
// sent and got lost is then missed when the statement's own time is over.
func limitUnacknowledged(uintptr, time.Duration) error { return nil }
