package cliview

import (
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// meter shows progress: on a terminal as a redrawn bar, otherwise as an occasional line.
type meter struct {
	out   io.Writer
	live  bool
	clock clock.PassiveClock
	began time.Time
	lined time.Time
	text  string
	drawn bool
}

// lineInterval is the least time between two lines.
const lineInterval = 10 * time.Second

func (s *Session) meter() *meter {
	now := s.Clock.Now()
	return &meter{out: s.Err, live: s.ErrIsTerminal, clock: s.Clock, began: now, lined: now}
}

// show updates the progress.
func (m *meter) show(what string, p v1alpha1.Progress) {
	if m.live {
		if text := barText(what, p); text != m.text || !m.drawn {
			fmt.Fprintf(m.out, "\r%s\x1b[K", text)
			m.text, m.drawn = text, true
		}
		return
	}
	text := lineText(what, p)
	if now := m.clock.Now(); text != m.text && now.Sub(m.lined) >= lineInterval {
		fmt.Fprintln(m.out, text)
		m.text, m.lined = text, now
	}
}

// say prints a message.
func (m *meter) say(format string, args ...any) {
	m.end()
	fmt.Fprintf(m.out, format+"\n", args...)
}

// end removes the bar.
func (m *meter) end() {
	if m.drawn {
		fmt.Fprint(m.out, "\r\x1b[K")
		m.drawn = false
	}
}

// took returns the time since the start.
func (m *meter) took() time.Duration { return m.clock.Since(m.began).Round(100 * time.Millisecond) }

const barWidth = 24

func barText(what string, p v1alpha1.Progress) string {
	if p.Total <= 0 {
		return what + " …"
	}
	filled := int(min(max(p.Done, 0), p.Total) * barWidth / p.Total)
	bar := strings.Repeat("=", filled)
	if filled < barWidth {
		bar += ">" + strings.Repeat(" ", barWidth-filled-1)
	}
	return fmt.Sprintf("%s [%s] %s", what, bar, rateText(p, "/"))
}

func lineText(what string, p v1alpha1.Progress) string {
	if p.Total <= 0 {
		return what
	}
	return what + ": " + rateText(p, " of ")
}

func rateText(p v1alpha1.Progress, of string) string {
	text := fmt.Sprintf("%d%s%d", p.Done, of, p.Total)
	if p.PerMinute > 0 {
		text += fmt.Sprintf(", %d a minute", p.PerMinute)
	}
	if p.Remaining != nil && p.Remaining.Duration > 0 && p.Done < p.Total {
		text += fmt.Sprintf(", %s left", p.Remaining.Round(time.Second))
	}
	return text
}
