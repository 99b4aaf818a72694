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

// account is the operating system's account that the server runs as.
type account struct {
	name     string
	uid, gid int
}

// unprivileged returns the account to run as, or nil for our own: PostgreSQL refuses to run as root.
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
	return nil, errors.New("start PostgreSQL: PostgreSQL does not run as root, and neither user postgres nor user nobody exists: run this as another user")
}

// become sets the account that a command runs as. The command gets a process group of its own, because
// this process handles the terminal's Ctrl-C, and ends with this process.
func (a *account) become(cmd *exec.Cmd) {
	// SIGQUIT is an immediate shutdown, which leaves no process of the server behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
}

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has exited
	err  error         // set before done is closed
}

func startProcess(cmd *exec.Cmd, as *account) (*process, error) {
	as.become(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the child ends, so this goroutine keeps its
		// thread.
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

// stopTimeout is how long a fast shutdown may take.
const stopTimeout = 20 * time.Second

// stop requests a fast shutdown and waits for it.
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
	case <-time.After(stopTimeout):
		p.kill()
		return fmt.Errorf("PostgreSQL did not stop within %s and was killed", stopTimeout)
	}
}

func (p *process) reload() error { return p.cmd.Process.Signal(syscall.SIGHUP) }

// kill kills all processes. It freezes the postmaster first, so that the postmaster neither starts
// children nor tells them to clean up.
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

// signal sends a signal to the postmaster and then to its children. They are not in its process group:
// each has a session of its own.
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

// all returns the process ids of the postmaster and its children.
func (p *process) all() []int {
	pids := []int{p.pid()}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has exited
		}
		// The format is "pid (name) state ppid …"; the name may contain anything.
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
