// Command load keeps every core busy and syncs a file to disk while another command runs. It shows
// whether tests pass on a busy machine:
//
//	go run ./test/load -- make test
//
// It runs the command as often as -runs says and prints how each run ended. It exits with status 1
// if one failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

func main() {
	cores := flag.Int("cores", runtime.NumCPU(), "how many cores to keep busy")
	disk := flag.Bool("disk", true, "write a file and sync it to disk, over and over")
	runs := flag.Int("runs", 1, "how often to run the command")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: load [flags] -- COMMAND [ARGUMENT...]\nflags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	failed, err := run(ctx, *cores, *disk, *runs, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	if failed > 0 {
		fmt.Fprintf(os.Stderr, "load: %d of %d runs failed\n", failed, *runs)
		os.Exit(1)
	}
}

// run returns how many runs of the command failed.
func run(ctx context.Context, cores int, disk bool, runs int, command []string) (failed int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	for range cores {
		workers.Go(func() { compute(ctx) })
	}
	if disk {
		dir, err := os.MkdirTemp("", "load-")
		if err != nil {
			return 0, err
		}
		defer os.RemoveAll(dir)
		workers.Go(func() { write(ctx, filepath.Join(dir, "file")) })
	}
	for n := range runs {
		if ctx.Err() != nil {
			return failed, context.Cause(ctx)
		}
		started := time.Now()
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		outcome := "passed"
		if err := cmd.Run(); err != nil {
			failed++
			outcome = err.Error()
		}
		fmt.Fprintf(os.Stderr, "load: run %d of %d: %s after %s\n", n+1, runs, outcome, time.Since(started).Round(time.Second))
	}
	return failed, nil
}

// compute keeps one core busy.
func compute(ctx context.Context) {
	x := uint64(88172645463325252)
	for ctx.Err() == nil {
		for range 1 << 20 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
	}
	runtime.KeepAlive(x)
}

// write keeps the disk busy. An error ends it: a disk that is full must not fail the command.
func write(ctx context.Context, name string) {
	f, err := os.Create(name)
	if err != nil {
		return
	}
	defer f.Close()
	page := make([]byte, 1<<16)
	for n := int64(0); ctx.Err() == nil; n++ {
		if _, err := f.WriteAt(page, n%64*int64(len(page))); err != nil {
			return
		}
		if err := f.Sync(); err != nil {
			return
		}
	}
}
