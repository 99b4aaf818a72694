package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestProgressLine: on a terminal, one line is redrawn and never wraps; elsewhere, each change is a line.
func TestProgressLine(t *testing.T) {
	var out bytes.Buffer
	live := &progressLine{out: &out, live: true, width: narrowest}
	live.show(0.5, "Deployment shop/web: Growing")
	live.show(-1, "cluster east: 3 objects left")
	live.show(2, strings.Repeat("x", 100))
	live.end()
	live.end()
	want := "\r[==========          ] Deployment shop/web: Growing\x1b[K" + "\rcluster east: 3 objects left\x1b[K" +
		"\r[====================] " + strings.Repeat("x", 52) + "…\x1b[K" + "\r\x1b[K"
	if out.String() != want {
		t.Errorf("on a terminal: %q, want %q", out.String(), want)
	}
	out.Reset()
	lines := &progressLine{out: &out}
	for _, text := range []string{"a", "a", "b"} {
		lines.show(0, text)
	}
	lines.end()
	if out.String() != "a\nb\n" {
		t.Errorf("elsewhere: %q", out.String())
	}
}

// TestStoppedWaiting: the error has the reason, the objects that are not done, the last error of the server, and the next step.
func TestStoppedWaiting(t *testing.T) {
	many := []string{"a", "b", "c", "d", "e", "f", "g"}
	for _, tt := range []struct {
		err     error
		pending []string
		want    string
	}{
		{errors.Join(context.DeadlineExceeded), many[:1], "not done after 1m0s\n  a\nnext"},
		{errors.Join(context.Canceled, nil), many, "stopped waiting\n  a\n  b\n  c\n  d\n  e\n  and 2 more\nnext"},
		{errors.Join(context.DeadlineExceeded, errors.New("connection refused")), nil, "not done after 1m0s\n  connection refused\nnext"},
	} {
		if got := stoppedWaiting(tt.err, time.Minute, tt.pending, "next").Error(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
