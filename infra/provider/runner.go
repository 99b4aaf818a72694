//go:build unix

package provider

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

// A spawner starts processes on one thread of its own. On Linux a child is told to die
// when the thread that started it ends, which must not happen while the server runs; and
// what the thread gives up for good (new privileges), its children never have.
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
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
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

// A runner is one child, as go-plugin wants it run: the first of a process group, which is
// killed with it, whoever of the group ends first.
type runner struct {
	cmd     *exec.Cmd
	spawner *spawner

	stdout, stderr *os.File      // our ends
	done           chan struct{} // closed when the child and its group are gone
	started        func(pid int) // is told once it is, if not nil

	mu     sync.Mutex
	pid    int // 0 before the start
	killed bool
	reaped bool // the pid may be somebody else's by now
	state  string
}

// afterlife is for how long output of a child that has ended is waited for: a descendant that
// left the group can hold the pipes open for ever.
const afterlife = time.Second

func newRunner(s *spawner, cmd *exec.Cmd) *runner {
	return &runner{cmd: cmd, spawner: s, done: make(chan struct{})}
}

// Start starts the child.
func (r *runner) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
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
		return errors.New("it was to be killed before it started")
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

// reap waits for the child. Its group is killed while the child is still a zombie, so that
// the group's number cannot be another's.
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
	deadline := time.Now().Add(afterlife)
	_ = r.stdout.SetReadDeadline(deadline)
	_ = r.stderr.SetReadDeadline(deadline)
	close(r.done)
}

// Kill ends the child and its group at once.
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

// exit says how the child ended, once it has.
func (r *runner) exit() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Stdout and Stderr are what the child writes.
func (r *runner) Stdout() io.ReadCloser { return r.stdout }

// Stderr is what the child writes there.
func (r *runner) Stderr() io.ReadCloser { return r.stderr }

// Name is the executable.
func (r *runner) Name() string { return r.cmd.Path }

// ID is the process's.
func (r *runner) ID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid == 0 {
		return ""
	}
	return strconv.Itoa(r.pid)
}

// Diagnose has nothing to add: what the child wrote is told anyway.
func (r *runner) Diagnose(context.Context) string { return "" }

// PluginToHost judges the address that the child gives. Only a socket in its own directory
// is connected to: the server may reach what the child may not.
func (r *runner) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" || filepath.Dir(address) != r.cmd.Dir {
		return "", "", fmt.Errorf("it wants to be spoken to at %s %q, and not through a socket in its own directory", network, address)
	}
	return network, address, nil
}

// HostToPlugin would be for addresses of ours. There are none.
func (r *runner) HostToPlugin(string, string) (string, string, error) {
	return "", "", errors.New("providers are not given addresses")
}
