package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-dev/atoll/playground/system"
)

type fakeRunning struct {
	fakeParts
	exits chan system.Exit
}

func (f *fakeRunning) Exits() <-chan system.Exit { return f.exits }

// TestKilledPartsStartAgain: a part that exits does not end the playground.
func TestKilledPartsStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &fakeRunning{exits: make(chan system.Exit)}
		var printed bytes.Buffer
		done := make(chan struct{})
		go func() { defer close(done); attend(ctx, s, newOutput(&printed)) }()
		for range 2 {
			s.runs = false
			s.exits <- system.Exit{Part: "east", Err: errors.New("killed")}
			time.Sleep(3 * time.Second) // of the test's clock
			synctest.Wait()
			if !s.runs {
				t.Fatal("east does not run again")
			}
		}
		s.exits <- system.Exit{Part: "west", Err: errors.New("killed")}
		time.Sleep(3 * time.Second)
		cancel()
		<-done
		for _, want := range []string{"exited: killed; starting it again in 1s", "starting it again in 2s", "runs again", "west        does not run", "`return west` tries again"} {
			if !strings.Contains(printed.String(), want) {
				t.Errorf("it does not say %q:\n%s", want, printed.String())
			}
		}
	})
}
