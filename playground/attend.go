package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-dev/atoll/playground/system"
)

// running are the parts of a playground that runs.
type running interface {
	parts
	Exits() <-chan system.Exit
}

// attend starts parts again that exit without being told to, as an operating system or a cluster would,
// until ctx ends. A part that keeps exiting is started less and less often. Parts that were pulled stay
// away.
func attend(ctx context.Context, s running, out *output) {
	var starting sync.WaitGroup
	defer starting.Wait()
	pauses := map[string]*wait.Backoff{}
	for {
		select {
		case <-ctx.Done():
			out.newline()
			return
		case exit := <-s.Exits():
			pause := pauses[exit.Part]
			if pause == nil {
				pause = &wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}
				pauses[exit.Part] = pause
			}
			after := pause.Step()
			out.step(exit.Part, fmt.Sprintf("exited: %v; starting it again in %s", exit.Err, after))
			starting.Go(func() { startAgain(ctx, s, out, exit.Part, after) })
		}
	}
}

func startAgain(ctx context.Context, s parts, out *output, part string, after time.Duration) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(after):
	}
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	switch err := s.Return(startCtx, part); {
	case ctx.Err() != nil:
	case err != nil:
		out.step(part, fmt.Sprintf("does not run: %v; `%s %s` tries again", err, restore, part))
	default:
		out.step(part, "runs again")
	}
}
