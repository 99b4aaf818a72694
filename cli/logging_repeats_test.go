package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRepeatsAreDropped(t *testing.T) {
	var out bytes.Buffer
	handler := newRepeats(slog.NewTextHandler(&out, nil))
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	log := func(h slog.Handler, after time.Duration, message string, attrs ...slog.Attr) {
		t.Helper()
		record := slog.NewRecord(begin.Add(after), slog.LevelError, message, 0)
		record.AddAttrs(attrs...)
		if err := h.Handle(context.Background(), record); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		log(handler, time.Duration(i)*time.Millisecond, "cannot decrypt")
	}
	log(handler, time.Second, "cannot decrypt", slog.String("resource", "secrets"))
	log(handler.WithAttrs([]slog.Attr{slog.String("logger", "x")}), time.Second, "cannot decrypt")
	log(handler, repeatAfter, "cannot decrypt")
	log(handler, repeatAfter+time.Second, "cannot decrypt")
	var got []string
	for line := range strings.Lines(out.String()) {
		_, text, _ := strings.Cut(line, "level=ERROR ")
		got = append(got, strings.TrimSpace(text))
	}
	want := []string{`msg="cannot decrypt"`, `msg="cannot decrypt" resource=secrets`, `msg="cannot decrypt" logger=x`, `msg="cannot decrypt" repeated=999`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}

	// What is remembered is bounded, and lines beyond that are logged.
	out.Reset()
	for i := range 2 * maxRepeats {
		log(handler, time.Hour, fmt.Sprint(i))
	}
	if n := strings.Count(out.String(), "\n"); n != 2*maxRepeats || len(handler.seen.lines) > maxRepeats {
		t.Errorf("%d lines, %d remembered", n, len(handler.seen.lines))
	}
}
