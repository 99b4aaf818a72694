package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Intervals at which a meter prints: redrawn on a terminal, a new line elsewhere.
const (
	redrawInterval = 200 * time.Millisecond
	lineInterval   = 10 * time.Second
)

// meter shows the progress of long operations: one line that is redrawn on a terminal,
// and a plain line now and then elsewhere. Short operations print nothing.
type meter struct {
	out    io.Writer
	what   string
	unit   string
	redraw bool
	start  time.Time

	mu                 sync.Mutex
	done, total, bytes int64
	drawn              bool

	stopc   chan struct{}
	stopped chan struct{}
	once    sync.Once
}

func newMeter(out io.Writer, what, unit string) *meter {
	m := &meter{
		out: out, what: what, unit: unit, redraw: onTerminal(out), start: time.Now(),
		stopc: make(chan struct{}), stopped: make(chan struct{}),
	}
	go m.loop()
	return m
}

// add counts completed work.
func (m *meter) add(units, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += units
	m.bytes += bytes
}

// set sets how much is done, and the total: 0 if that is unknown.
func (m *meter) set(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done, m.total = done, total
}

// phase starts another operation, from zero.
func (m *meter) phase(what string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drawn {
		fmt.Fprintln(m.out, m.wipe(m.line()))
	}
	m.what, m.done, m.bytes, m.total, m.start, m.drawn = what, 0, 0, total, time.Now(), false
}

func (m *meter) stop() {
	m.once.Do(func() { close(m.stopc) })
	<-m.stopped
}

func (m *meter) loop() {
	defer close(m.stopped)
	every := lineInterval
	if m.redraw {
		every = redrawInterval
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.mu.Lock()
			end := "\n"
			if m.redraw {
				end = ""
			}
			fmt.Fprint(m.out, m.wipe(m.line())+end)
			m.drawn = true
			m.mu.Unlock()
		case <-m.stopc:
			m.mu.Lock()
			if m.drawn && m.redraw {
				fmt.Fprintln(m.out, m.wipe(m.line()))
			}
			m.mu.Unlock()
			return
		}
	}
}

// wipe makes a line replace the previous one on a terminal.
func (m *meter) wipe(line string) string {
	if m.redraw {
		return "\r\x1b[K" + line
	}
	return line
}

const barWidth = 24

func (m *meter) line() string {
	took := time.Since(m.start)
	rate := float64(m.done) / max(took.Seconds(), 0.001)
	var b strings.Builder
	b.WriteString(m.what + " ")
	if m.total > 0 {
		share := min(float64(m.done)/float64(m.total), 1)
		if m.redraw {
			full := int(share * barWidth)
			b.WriteString("[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "] ")
		}
		fmt.Fprintf(&b, "%3.0f %%, %d of %d %s", 100*share, m.done, m.total, m.unit)
	} else {
		fmt.Fprintf(&b, "%d %s", m.done, m.unit)
	}
	if m.bytes > 0 {
		b.WriteString(", " + bytesText(m.bytes))
	}
	fmt.Fprintf(&b, ", %.0f %s/s", rate, m.unit)
	if m.total > m.done && rate > 0 {
		left := time.Duration(float64(m.total-m.done) / rate * float64(time.Second))
		fmt.Fprintf(&b, ", %v left", left.Round(time.Second))
	}
	return b.String()
}
