package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// pollInterval returns the interval for polling something that has taken so long already: a fiftieth of it. So polling hardly
// prolongs the measured time and hardly uses CPU. Polling every 25 ms used a tenth of two cores.
func pollInterval(after time.Duration) time.Duration {
	return min(max(after/50, 25*time.Millisecond), 250*time.Millisecond)
}

// measureProcess measures the resources that a process and its descendants use while do runs. pid returns the process once it
// runs. Processes that end meanwhile are counted if their parent waited for them.
func measureProcess(ctx context.Context, run infraRun, pid func() int, do func(context.Context) error) (infraRun, error) {
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
			case <-time.After(pollInterval(time.Since(began))):
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, infraTimeout)
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

// treeMemory returns the resident memory of a process and its descendants in MiB. Pages of a program's file are counted once for
// all processes that run it, because they share them.
func treeMemory(root int) float64 {
	sum, shared := 0.0, map[string]float64{}
	for _, pid := range append(descendants(root), root) {
		status := fmt.Sprintf("/proc/%d/status", pid)
		sum += kibOf(status, "RssAnon") + kibOf(status, "RssShmem")
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			continue // the process has ended
		}
		shared[program] = max(shared[program], kibOf(status, "RssFile"))
	}
	for _, kib := range shared {
		sum += kib
	}
	return sum / 1024
}

// kibOf returns a number of KiB from a file in /proc, 0 if the process has ended.
func kibOf(file, name string) float64 {
	var kib float64
	if _, err := fmt.Sscanf(field(file, name), "%f kB", &kib); err != nil {
		return 0
	}
	return kib
}
