//go:build linux && (amd64 || arm64)

package containment

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// FiltersCalls is set if this package knows the system calls of this program's processor.
const FiltersCalls = true

// namespaceFlags are the flags of clone(2) that create namespaces. In a user namespace of its own a
// process has all capabilities, and with them most of the kernel's attack surface.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Protocols that carry streams past Landlock's rules for TCP ports.
const protocolMPTCP = 262

// Denied returns the calls that a profile denies. Most need a capability that no provider has, and are
// denied again for kernels with bugs. Others reach into processes and files of the same user.
func Denied(p Profile) []DeniedCall {
	var out []DeniedCall
	deny := func(number int, name string, when ...Condition) {
		out = append(out, DeniedCall{name, uint32(number), when, uint32(unix.EPERM)})
	}
	answer := func(errno unix.Errno, number int, name string, when ...Condition) {
		out = append(out, DeniedCall{name, uint32(number), when, uint32(errno)})
	}
	notZero := func(argument uint32) Condition { return Condition{argument, bpf.JumpNotEqual, 0} }

	// Other processes: their memory, descriptors, limits and scheduling.
	deny(unix.SYS_PTRACE, "ptrace")
	deny(unix.SYS_PROCESS_VM_READV, "process_vm_readv")
	deny(unix.SYS_PROCESS_VM_WRITEV, "process_vm_writev")
	deny(unix.SYS_PROCESS_MADVISE, "process_madvise")
	deny(unix.SYS_PROCESS_MRELEASE, "process_mrelease")
	deny(unix.SYS_PIDFD_GETFD, "pidfd_getfd")
	deny(unix.SYS_KCMP, "kcmp")
	deny(unix.SYS_PRLIMIT64, "prlimit64", notZero(0))
	deny(unix.SYS_SETPRIORITY, "setpriority", notZero(1))
	deny(unix.SYS_IOPRIO_SET, "ioprio_set", notZero(1))
	deny(unix.SYS_SCHED_SETAFFINITY, "sched_setaffinity", notZero(0))
	deny(unix.SYS_SCHED_SETATTR, "sched_setattr", notZero(0))
	deny(unix.SYS_SCHED_SETPARAM, "sched_setparam", notZero(0))
	deny(unix.SYS_SCHED_SETSCHEDULER, "sched_setscheduler", notZero(0))
	deny(unix.SYS_MIGRATE_PAGES, "migrate_pages")
	deny(unix.SYS_MOVE_PAGES, "move_pages")

	// Mounts, namespaces, and files without their paths.
	deny(unix.SYS_MOUNT, "mount")
	deny(unix.SYS_UMOUNT2, "umount2")
	deny(unix.SYS_PIVOT_ROOT, "pivot_root")
	deny(unix.SYS_CHROOT, "chroot")
	deny(unix.SYS_MOVE_MOUNT, "move_mount")
	deny(unix.SYS_OPEN_TREE, "open_tree")
	deny(unix.SYS_FSOPEN, "fsopen")
	deny(unix.SYS_FSCONFIG, "fsconfig")
	deny(unix.SYS_FSMOUNT, "fsmount")
	deny(unix.SYS_FSPICK, "fspick")
	deny(unix.SYS_MOUNT_SETATTR, "mount_setattr")
	deny(unix.SYS_UNSHARE, "unshare")
	deny(unix.SYS_SETNS, "setns")
	deny(unix.SYS_CLONE, "clone", Condition{0, bpf.JumpBitsSet, namespaceFlags})
	// The flags of clone3 are in memory, where a filter cannot look. Without it, programs use clone.
	answer(unix.ENOSYS, unix.SYS_CLONE3, "clone3")
	deny(unix.SYS_NAME_TO_HANDLE_AT, "name_to_handle_at")
	deny(unix.SYS_OPEN_BY_HANDLE_AT, "open_by_handle_at")
	deny(unix.SYS_FANOTIFY_INIT, "fanotify_init")
	if p.DenyTruncate {
		deny(unix.SYS_TRUNCATE, "truncate")
	}

	// The kernel and the machine.
	deny(unix.SYS_KEYCTL, "keyctl")
	deny(unix.SYS_ADD_KEY, "add_key")
	deny(unix.SYS_REQUEST_KEY, "request_key")
	deny(unix.SYS_BPF, "bpf")
	deny(unix.SYS_PERF_EVENT_OPEN, "perf_event_open")
	deny(unix.SYS_USERFAULTFD, "userfaultfd")
	answer(unix.ENOSYS, unix.SYS_IO_URING_SETUP, "io_uring_setup")
	answer(unix.ENOSYS, unix.SYS_IO_URING_ENTER, "io_uring_enter")
	answer(unix.ENOSYS, unix.SYS_IO_URING_REGISTER, "io_uring_register")
	deny(unix.SYS_KEXEC_LOAD, "kexec_load")
	deny(unix.SYS_KEXEC_FILE_LOAD, "kexec_file_load")
	deny(unix.SYS_INIT_MODULE, "init_module")
	deny(unix.SYS_FINIT_MODULE, "finit_module")
	deny(unix.SYS_DELETE_MODULE, "delete_module")
	deny(unix.SYS_REBOOT, "reboot")
	deny(unix.SYS_SWAPON, "swapon")
	deny(unix.SYS_SWAPOFF, "swapoff")
	deny(unix.SYS_ACCT, "acct")
	deny(unix.SYS_QUOTACTL, "quotactl")
	deny(unix.SYS_QUOTACTL_FD, "quotactl_fd")
	deny(unix.SYS_SYSLOG, "syslog")
	deny(unix.SYS_SETHOSTNAME, "sethostname")
	deny(unix.SYS_SETDOMAINNAME, "setdomainname")
	deny(unix.SYS_SETTIMEOFDAY, "settimeofday")
	deny(unix.SYS_CLOCK_SETTIME, "clock_settime")
	deny(unix.SYS_VHANGUP, "vhangup")
	deny(unix.SYS_PERSONALITY, "personality", Condition{0, bpf.JumpNotEqual, 0xffffffff}, notZero(0))
	// Input to the terminal that the server was started from.
	deny(unix.SYS_IOCTL, "ioctl", Condition{1, bpf.JumpEqual, unix.TIOCSTI})
	deny(unix.SYS_IOCTL, "ioctl", Condition{1, bpf.JumpEqual, unix.TIOCLINUX})

	// Sockets of the Internet and of this machine only: others reach the kernel, the hypervisor and its host.
	answer(unix.EAFNOSUPPORT, unix.SYS_SOCKET, "socket", Condition{0, bpf.JumpNotEqual, unix.AF_UNIX}, Condition{0, bpf.JumpNotEqual, unix.AF_INET},
		Condition{0, bpf.JumpNotEqual, unix.AF_INET6}, Condition{0, bpf.JumpNotEqual, unix.AF_NETLINK})
	if p.RestrictTCP {
		answer(unix.EPROTONOSUPPORT, unix.SYS_SOCKET, "socket", Condition{2, bpf.JumpEqual, protocolMPTCP})
		answer(unix.EPROTONOSUPPORT, unix.SYS_SOCKET, "socket", Condition{2, bpf.JumpEqual, unix.IPPROTO_SCTP})
		answer(unix.EPROTONOSUPPORT, unix.SYS_SOCKET, "socket", Condition{2, bpf.JumpEqual, unix.IPPROTO_DCCP})
		// A connection that data opens is not checked by older kernels.
		deny(unix.SYS_SENDTO, "sendto", Condition{3, bpf.JumpBitsSet, unix.MSG_FASTOPEN})
		deny(unix.SYS_SENDMSG, "sendmsg", Condition{2, bpf.JumpBitsSet, unix.MSG_FASTOPEN})
		deny(unix.SYS_SENDMMSG, "sendmmsg", Condition{3, bpf.JumpBitsSet, unix.MSG_FASTOPEN})
	}
	for _, call := range callsOfProcessor() {
		deny(call.number, call.name)
	}
	return out
}

// processorCall is a call that not every processor has.
type processorCall struct {
	number int
	name   string
}
