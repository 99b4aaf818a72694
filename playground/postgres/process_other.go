//go:build !linux

package postgres

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// account is the account that the server runs as: on systems other than Linux always our own.
type account struct {
	name     string
	uid, gid int
}

func unprivileged() (*account, error) { return nil, nil }

func (a *account) become(*exec.Cmd) {}

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

func startProcess(cmd *exec.Cmd, _ *account) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) stop() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(20 * time.Second):
		p.kill()
		return errors.New("PostgreSQL did not stop and was killed")
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) reload() error { return errors.ErrUnsupported }
func (p *process) pause() error  { return errors.ErrUnsupported }
func (p *process) resume() error { return errors.ErrUnsupported }
