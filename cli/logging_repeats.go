package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// repeatAfter is how long a line is not logged again.
	repeatAfter = 10 * time.Second
	// maxRepeats bounds the lines that are remembered.
	maxRepeats = 1000
)

// repeats drops records that say the same as an earlier one, except for the time. Kubernetes'
// libraries log some errors each time that they retry, which can be thousands of times a second.
// The next record after the pause has the number of dropped ones.
type repeats struct {
	slog.Handler
	with string // the attributes of the handler
	seen *seenLines
}

func newRepeats(h slog.Handler) repeats {
	return repeats{h, "", &seenLines{lines: map[string]*seenLine{}}}
}

// Handle implements slog.Handler.
func (r repeats) Handle(ctx context.Context, record slog.Record) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s", r.with, record.Level, record.Message)
	record.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&text, " %s", a)
		return true
	})
	dropped, pass := r.seen.add(text.String(), record.Time)
	if !pass {
		return nil
	}
	if dropped > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("repeated", dropped))
	}
	return r.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (r repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return repeats{r.Handler.WithAttrs(attrs), fmt.Sprint(r.with, attrs), r.seen}
}

// WithGroup implements slog.Handler.
func (r repeats) WithGroup(name string) slog.Handler {
	return repeats{r.Handler.WithGroup(name), r.with + name, r.seen}
}

type seenLines struct {
	mu    sync.Mutex
	lines map[string]*seenLine
}

type seenLine struct {
	logged  time.Time
	dropped int
}

// add reports whether to log a line, and how often it was dropped before.
func (s *seenLines) add(text string, now time.Time) (dropped int, pass bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.lines[text]; old != nil {
		if now.Sub(old.logged) < repeatAfter {
			old.dropped++
			return 0, false
		}
		dropped = old.dropped
	} else if len(s.lines) >= maxRepeats {
		for key, line := range s.lines {
			if now.Sub(line.logged) >= repeatAfter {
				delete(s.lines, key)
			}
		}
		if len(s.lines) >= maxRepeats {
			return 0, true
		}
	}
	s.lines[text] = &seenLine{logged: now}
	return dropped, true
}
