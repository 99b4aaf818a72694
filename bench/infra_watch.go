package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// lookAgain is how long to wait before something is looked at again that has taken so long: a fiftieth, so that what is
// measured is hardly longer than it was, and what measures it hardly has a part in it. Looking every 25 ms took a tenth of
// two cores.
func lookAgain(after time.Duration) time.Duration {
	return min(max(after/50, 25*time.Millisecond), 250*time.Millisecond)
}

// watched measures what a process and all below it use while something is done. Pid gives the process once it runs; what
// ends meanwhile is counted if it was waited for.
func watched(ctx context.Context, run infraRun, pid func() int, do func(context.Context) error) (infraRun, error) {
	end, err := observeMachine()
	if err != nil {
		return run, err
	}
	before, err := treeTime(pid())
	if err != nil {
		return run, err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		for {
			run.PeakMiB = max(run.PeakMiB, treeMemory(pid()))
			select {
			case <-stop:
				return
			case <-time.After(lookAgain(time.Since(began))):
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, infraPatience)
	failed := do(ctx)
	cancel()
	run.Seconds = time.Since(began).Seconds()
	close(stop)
	<-done
	after, err := treeTime(pid())
	if err != nil {
		return run, err
	}
	run.CPU = (after - before).Seconds()
	if _, run.disturbance, err = end(); err != nil {
		return run, err
	}
	if failed != nil {
		run.Failed = failed.Error()
	}
	return run, failed
}

// treeMemory is what a process and all below it hold, in MiB. Pages of a program's file are counted once for all processes that
// run it: they share them.
func treeMemory(root int) float64 {
	sum, shared := 0.0, map[string]float64{}
	for _, pid := range append(below(root), root) {
		status := fmt.Sprintf("/proc/%d/status", pid)
		sum += kibOf(status, "RssAnon") + kibOf(status, "RssShmem")
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			continue // it has ended
		}
		shared[program] = max(shared[program], kibOf(status, "RssFile"))
	}
	for _, kib := range shared {
		sum += kib
	}
	return sum / 1024
}

// kibOf is a number of KiB in a file of /proc; 0 if the process has ended.
func kibOf(file, name string) float64 {
	var kib float64
	if _, err := fmt.Sscanf(field(file, name), "%f kB", &kib); err != nil {
		return 0
	}
	return kib
}
