//go:build !linux

package postgres

import "time"

// limitUnacknowledged does nothing on platforms where it is not known to be supported: lost
// packets are then detected by the statement's timeout.
func limitUnacknowledged(uintptr, time.Duration) error { return nil }
