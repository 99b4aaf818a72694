package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// account is whom the server runs as.
type account struct {
	name     string
	uid, gid int
}

// unprivileged is the account to run as, nil for our own: PostgreSQL refuses
// to be run by root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{superuser, "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.Atoi(u.Gid)
		return &account{name, uid, gid}, err
	}
	return nil, errors.New("start PostgreSQL: it does not run as root, and there is no user postgres or nobody to run it as: run this as another user")
}

// become has a command run as the account, in a process group of its own (a
// terminal's Ctrl-C is ours to handle), until we end.
func (a *account) become(cmd *exec.Cmd) {
	// SIGQUIT is an immediate shutdown: no process of the server stays behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
}

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, then
}

func startProcess(cmd *exec.Cmd, as *account) (*process, error) {
	as.become(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal of the parent's death is sent when the thread that started
		// the child ends: this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stopPatience is how long a fast shutdown may take.
const stopPatience = 20 * time.Second

// stop asks for a fast shutdown and waits for it.
func (p *process) stop() error {
	if p.ended() {
		return nil
	}
	if err := p.resume(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(stopPatience):
		p.kill()
		return fmt.Errorf("it did not stop within %s and was killed", stopPatience)
	}
}

func (p *process) reload() error { return p.cmd.Process.Signal(syscall.SIGHUP) }

// kill ends all processes. The postmaster is frozen first, so that it neither
// starts others nor tells its children to clean up.
func (p *process) kill() {
	if p.ended() {
		return
	}
	_ = p.pause()
	for _, pid := range p.all() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.done
}

func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

// signal sends a signal to the postmaster and then to its children, which are
// not of its process group: each has a session of its own.
func (p *process) signal(sig syscall.Signal) error {
	if err := syscall.Kill(p.pid(), sig); err != nil {
		return fmt.Errorf("signal PostgreSQL: %w", err)
	}
	for _, pid := range p.all()[1:] {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal PostgreSQL: %w", err)
		}
	}
	return nil
}

// all are the postmaster and its children.
func (p *process) all() []int {
	pids := []int{p.pid()}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// "pid (name) state ppid …"; the name may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(p.pid()) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
