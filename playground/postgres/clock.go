package postgres

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrNoFaketime is returned if this machine has no libfaketime.
var ErrNoFaketime = errors.New("libfaketime is not installed (Debian: apt-get install libfaketime)")

// findFaketime returns the library that moves a process's clock.
func findFaketime() (string, error) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", ErrNoFaketime
}

// clockFile has the distance of the server's clock from the machine's.
func (s *Server) clockFile() string { return filepath.Join(s.dir, "clock") }

// clockEnvironment returns the variables that make the clock of a process movable.
func (s *Server) clockEnvironment() []string {
	if s.clock == "" {
		return nil
	}
	// Monotonic clocks do not jump, on no machine.
	return []string{"LD_PRELOAD=" + s.clock, "FAKETIME_TIMESTAMP_FILE=" + s.clockFile(), "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
}

// MoveClock sets the clock of a server with a MovableClock this far ahead of the machine's; a
// negative distance sets it back.
func (s *Server) MoveClock(ahead time.Duration) error {
	temporary := s.clockFile() + ".new"
	if err := os.WriteFile(temporary, fmt.Appendf(nil, "%+d\n", int(ahead.Seconds())), 0o644); err != nil {
		return fmt.Errorf("move the clock: %w", err)
	}
	if err := os.Rename(temporary, s.clockFile()); err != nil {
		return fmt.Errorf("move the clock: %w", err)
	}
	return nil
}
