package provider

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupOfItsOwn also has the child die with the server, however that ends.
func groupOfItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// confineThread gives up new privileges for all that the thread starts: no set-user-ID
// program makes a provider root. A kernel too old for it has no say in who may run.
func confineThread() { _ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }

// awaitExit waits until the child has ended, and leaves it as a zombie.
func awaitExit(pid int) (zombie bool) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
