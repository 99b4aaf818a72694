//go:build unix

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A spawner starts processes from one dedicated thread. On Linux a child gets a signal when the
// thread that started it ends, so that thread must live as long as the server. Privileges that the
// thread drops for good are never available to its children.
type spawner struct {
	work chan func()
	quit chan struct{}
	once sync.Once
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func()), quit: make(chan struct{})}
	go s.run()
	return s
}

func (s *spawner) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	confineThread()
	for {
		select {
		case f := <-s.work:
			f()
		case <-s.quit:
			return
		}
	}
}

func (s *spawner) start(cmd *exec.Cmd) error {
	err := make(chan error, 1)
	select {
	case s.work <- func() { err <- cmd.Start() }:
		return <-err
	case <-s.quit:
		return errStopping
	}
}

func (s *spawner) close() { s.once.Do(func() { close(s.quit) }) }

// A runner runs one child for go-plugin. The child leads a process group, which is killed when the
// child ends.
type runner struct {
	cmd     *exec.Cmd
	spawner *spawner

	stdout, stderr *os.File      // our ends
	done           chan struct{} // closed when the child and its group are gone
	started        func(pid int) // if not nil, called after the start
	// request, if not nil, makes the child a launcher, which becomes a provider.
	request *launcherRequest

	mu     sync.Mutex
	pid    int // 0 before the start
	killed bool
	reaped bool // the PID may have been reused
	state  string
}

// outputDrainTimeout bounds the wait for output of a child that has ended: a descendant that left
// the process group can hold the pipes open forever.
const outputDrainTimeout = time.Second

func newRunner(s *spawner, cmd *exec.Cmd) *runner {
	return &runner{cmd: cmd, spawner: s, done: make(chan struct{})}
}

// Start starts the child. A launcher has become the provider when Start returns, or has failed.
func (r *runner) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.request == nil {
		return r.start()
	}
	hand, err := newHandoff(r.cmd, *r.request)
	if err != nil {
		return err
	}
	if err := r.start(); err != nil {
		hand.close()
		return err
	}
	hand.started()
	return hand.await()
}

func (r *runner) start() error {
	out, outWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outWriter.Close()
	errs, errsWriter, err := os.Pipe()
	if err != nil {
		out.Close()
		return err
	}
	defer errsWriter.Close()
	r.cmd.Stdout, r.cmd.Stderr = outWriter, errsWriter

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed {
		out.Close()
		errs.Close()
		return errors.New("the start was cancelled")
	}
	if err := r.spawner.start(r.cmd); err != nil {
		out.Close()
		errs.Close()
		return err
	}
	r.pid, r.stdout, r.stderr = r.cmd.Process.Pid, out, errs
	if r.started != nil {
		r.started(r.pid)
	}
	go r.reap()
	return nil
}

// reap waits for the child. It kills the process group while the child is still a zombie, so that
// the group's ID cannot have been reused.
func (r *runner) reap() {
	zombie := awaitExit(r.pid)
	if !zombie {
		_ = r.cmd.Wait()
	}
	r.mu.Lock()
	_ = syscall.Kill(-r.pid, syscall.SIGKILL)
	if zombie {
		_ = r.cmd.Wait()
	}
	r.reaped = true
	r.state = r.cmd.ProcessState.String()
	r.mu.Unlock()
	deadline := time.Now().Add(outputDrainTimeout)
	_ = r.stdout.SetReadDeadline(deadline)
	_ = r.stderr.SetReadDeadline(deadline)
	close(r.done)
}

// Kill kills the child and its process group.
func (r *runner) Kill(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	if r.pid != 0 && !r.reaped {
		_ = syscall.Kill(-r.pid, syscall.SIGKILL)
	}
	return nil
}

// Wait waits until the child is gone.
func (r *runner) Wait(context.Context) error {
	<-r.done
	return nil
}

// exit describes how the child ended, once it has.
func (r *runner) exit() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Stdout returns the child's standard output.
func (r *runner) Stdout() io.ReadCloser { return r.stdout }

// Stderr returns the child's standard error.
func (r *runner) Stderr() io.ReadCloser { return r.stderr }

// Name returns the path of the executable.
func (r *runner) Name() string { return r.cmd.Path }

// ID returns the process ID, or "" before the start.
func (r *runner) ID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid == 0 {
		return ""
	}
	return strconv.Itoa(r.pid)
}

// Diagnose returns nothing: errors include the child's output anyway.
func (r *runner) Diagnose(context.Context) string { return "" }

// PluginToHost checks the address that the child reports. Only a socket in the child's own
// directory is accepted, because the server may be able to reach addresses that the child may not.
func (r *runner) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" || filepath.Dir(address) != r.cmd.Dir {
		return "", "", fmt.Errorf("it reported the address %s %q instead of a socket in its own directory", network, address)
	}
	return network, address, nil
}

// HostToPlugin translates addresses of the host. Atoll gives providers none.
func (r *runner) HostToPlugin(string, string) (string, string, error) {
	return "", "", errors.New("the host has no addresses for providers")
}
