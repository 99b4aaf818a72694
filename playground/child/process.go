package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Spec describes a child process.
type Spec struct {
	// Role is a name in the map given to Main.
	Role string
	// Name is the child's name in errors.
	Name string
	// Config is passed to the role as JSON.
	Config any
	// LogFile is the file that the child's standard error is appended to.
	LogFile string
	// Env is added to the parent's environment.
	Env []string
	// Wrapper is a command that runs the child, such as ip netns exec east. It must exec the child, not
	// start it, because signals go to the process started here.
	Wrapper []string
	// Progress, if set, is called with each step that the role reports, in order.
	Progress func(step string)
}

// Process is a running child.
type Process struct {
	spec  Spec
	cmd   *exec.Cmd
	stdin io.WriteCloser

	ready chan struct{} // closed when details are set
	done  chan struct{} // closed when the process has exited

	mu      sync.Mutex
	details json.RawMessage
	reason  string // the error that the child reported before it exited
	stopped bool   // Stop was called
	err     error  // set before done is closed
}

// Start starts a child. The process lives until Stop or Kill, or until the
// parent ends.
func Start(spec Spec) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: find this program's file: %w", spec.Name, err)
	}
	config, err := json.Marshal(spec.Config)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := os.MkdirAll(filepath.Dir(spec.LogFile), 0o700); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	log, err := os.OpenFile(spec.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", spec.Name, err)
	}
	defer log.Close() // the child has its own handle

	line := append(slices.Clone(spec.Wrapper), self)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(append(os.Environ(), spec.Env...), roleVariable+"="+spec.Role)
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, cmd: cmd, stdin: stdin, ready: make(chan struct{}), done: make(chan struct{})}
	go p.follow(stdout)
	if _, err := stdin.Write(append(config, '\n')); err != nil {
		p.Kill()
		return nil, p.failure()
	}
	return p, nil
}

// follow reads messages until the child exits, then records how it exited.
func (p *Process) follow(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue
		}
		switch {
		case m.Error != "":
			p.mu.Lock()
			p.reason = m.Error
			p.mu.Unlock()
		case m.Ready != nil:
			p.mu.Lock()
			first := p.details == nil
			p.details = m.Ready
			p.mu.Unlock()
			if first {
				close(p.ready)
			}
		case p.spec.Progress != nil:
			p.spec.Progress(m.Progress)
		}
	}
	_, _ = io.Copy(io.Discard, stdout) // a line too long for the scanner must not block the child
	err := p.cmd.Wait()
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	close(p.done)
}

// WaitReady waits until the role has reported ready and decodes its details.
func (p *Process) WaitReady(ctx context.Context, details any) error {
	select {
	case <-p.ready:
		p.mu.Lock()
		defer p.mu.Unlock()
		if err := json.Unmarshal(p.details, details); err != nil {
			return fmt.Errorf("decode the details that %s reported with ready: %w", p.spec.Name, err)
		}
		return nil
	case <-p.done:
		return p.failure()
	case <-ctx.Done():
		return fmt.Errorf("%s was not ready in time: %w; see %s", p.spec.Name, context.Cause(ctx), p.spec.LogFile)
	}
}

// Done returns a channel that is closed when the process has exited. Err returns how.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil while the process runs and after a Stop that it obeyed.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.failure()
	default:
		return nil
	}
}

// PID returns the process id, for measurements.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop tells the role to stop and waits until it has. It kills a role that exceeds its limit.
func (p *Process) Stop() error {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	_, _ = io.WriteString(p.stdin, stopOrder) // fails if the process has exited, which is fine
	p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(stopGrace + 5*time.Second):
		p.Kill()
	}
	return p.failure()
}

// Kill ends the process with SIGKILL, like a crash, and waits for its exit.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *Process) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.reason != "":
		return fmt.Errorf("%s stopped: %s; see %s", p.spec.Name, p.reason, p.spec.LogFile)
	case p.err != nil:
		return fmt.Errorf("%s stopped: %w; see %s", p.spec.Name, p.err, p.spec.LogFile)
	case p.stopped:
		return nil
	default:
		return errors.New(p.spec.Name + " exited without being told to; see " + p.spec.LogFile)
	}
}
