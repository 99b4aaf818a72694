package plugin

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownProcessGroup also makes the child die with the server, however the server ends.
func ownProcessGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// confineThread sets no_new_privs for everything that the thread starts, so that no set-user-ID
// program makes a provider root. Kernels too old for it ignore the call.
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
