//go:build linux && (amd64 || arm64)

package containment

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// answerOf runs a filter on a system call. The VM reads words in network order, so they are written in it.
func answerOf(t *testing.T, filter []bpf.Instruction, audit, number uint32, arguments ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(filter)
	if err != nil {
		t.Fatal(err)
	}
	call := make([]byte, 64)
	binary.BigEndian.PutUint32(call[0:], number)
	binary.BigEndian.PutUint32(call[4:], audit)
	for i, argument := range arguments {
		binary.BigEndian.PutUint32(call[16+8*i:], uint32(argument)) // the low half comes first
		binary.BigEndian.PutUint32(call[20+8*i:], uint32(argument>>32))
	}
	out, err := vm.Run(call)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(out)
}

// TestFilter: the filter denies what a provider has no use for, and nothing that it needs.
func TestFilter(t *testing.T) {
	open, err := Decide(Spec{}, process(), machine(7))
	if err != nil {
		t.Fatal(err)
	}
	ports, err := Decide(Spec{TCPPorts: []uint16{443}}, process(), machine(2))
	if err != nil {
		t.Fatal(err)
	}
	ports.RestrictTCP = true
	on := ThisArchitecture()
	const allowed = unix.Errno(0)
	for _, c := range []struct {
		name        string
		number      uint32
		arguments   []uint64
		open, ports unix.Errno
	}{
		{"read", unix.SYS_READ, nil, allowed, allowed},
		{"execve", unix.SYS_EXECVE, nil, allowed, allowed},
		{"fchmodat", unix.SYS_FCHMODAT, nil, allowed, allowed},
		{"a thread", unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, allowed, allowed},
		{"a process", unix.SYS_CLONE, []uint64{unix.CLONE_VFORK | unix.CLONE_VM | unix.CLONE_PIDFD | uint64(unix.SIGCHLD)}, allowed, allowed},
		{"a user namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, unix.EPERM, unix.EPERM},
		{"a network namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWNET}, unix.EPERM, unix.EPERM},
		{"clone3", unix.SYS_CLONE3, nil, unix.ENOSYS, unix.ENOSYS},
		{"unshare", unix.SYS_UNSHARE, nil, unix.EPERM, unix.EPERM},
		{"ptrace", unix.SYS_PTRACE, nil, unix.EPERM, unix.EPERM},
		{"its own limits", unix.SYS_PRLIMIT64, []uint64{0}, allowed, allowed},
		{"limits of another", unix.SYS_PRLIMIT64, []uint64{77}, unix.EPERM, unix.EPERM},
		{"kill", unix.SYS_KILL, []uint64{77}, allowed, allowed},
		{"mount", unix.SYS_MOUNT, nil, unix.EPERM, unix.EPERM},
		{"truncate", unix.SYS_TRUNCATE, nil, allowed, unix.EPERM},
		{"bpf", unix.SYS_BPF, nil, unix.EPERM, unix.EPERM},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, nil, unix.ENOSYS, unix.ENOSYS},
		{"TCP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, allowed, allowed},
		{"UDP of version 6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM, 0}, allowed, allowed},
		{"Unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, allowed, allowed},
		{"routes", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, allowed, allowed},
		{"the host of a virtual machine", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, unix.EAFNOSUPPORT, unix.EAFNOSUPPORT},
		{"packets", unix.SYS_SOCKET, []uint64{unix.AF_PACKET, unix.SOCK_RAW, 0}, unix.EAFNOSUPPORT, unix.EAFNOSUPPORT},
		{"MPTCP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, protocolMPTCP}, allowed, unix.EPROTONOSUPPORT},
		{"send", unix.SYS_SENDTO, []uint64{3, 0, 0, 0}, allowed, allowed},
		{"fast open", unix.SYS_SENDTO, []uint64{3, 0, 0, unix.MSG_FASTOPEN}, allowed, unix.EPERM},
		{"keystrokes", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, unix.EPERM, unix.EPERM},
		{"keystrokes, with high bits", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, unix.EPERM, unix.EPERM},
		{"window size", unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, allowed, allowed},
	} {
		for _, of := range []struct {
			profile Profile
			want    unix.Errno
		}{{open, c.open}, {ports, c.ports}} {
			want := uint32(answerAllow)
			if of.want != allowed {
				want = answerErrno | uint32(of.want)
			}
			filter := Program(on, Denied(of.profile))
			if got := answerOf(t, filter, on.Audit, c.number, c.arguments...); got != want {
				t.Errorf("%s (ports %t): %#x, want %#x", c.name, of.profile.RestrictTCP, got, want)
			}
			if got := answerOf(t, filter, unix.AUDIT_ARCH_I386, c.number, c.arguments...); got != answerErrno|noSuchCall {
				t.Errorf("%s as a call of another processor: %#x", c.name, got)
			}
			if got := answerOf(t, filter, on.Audit, c.number|on.ForeignCalls, c.arguments...); on.ForeignCalls != 0 && got != answerErrno|noSuchCall {
				t.Errorf("%s as a call of another ABI: %#x", c.name, got)
			}
		}
	}
	if _, err := bpf.Assemble(Program(on, Denied(ports))); err != nil {
		t.Error(err)
	}
}
