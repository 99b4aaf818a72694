package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// targets are what a provider attacks, from the argument size as JSON.
type targets struct {
	// Report is the file for the outcomes: the error of each attempt, or "" if it succeeded.
	Report                    string
	Read, Write, List, Change []string
	Sockets                   []string
	Run                       []string
	// Processes are those of the server and of others.
	Processes []int
}

// attack tries what a hostile provider would: to read the server's keys and to reach its process.
func attack(text string) error {
	var t targets
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	outcomes := map[string]string{}
	try := func(what string, err error) {
		var number syscall.Errno
		switch {
		case err == nil:
			outcomes[what] = ""
		case errors.As(err, &number):
			outcomes[what] = unix.ErrnoName(number)
		default:
			outcomes[what] = err.Error()
		}
	}
	call := func(what string, number uintptr, arguments ...uintptr) {
		arguments = append(arguments, make([]uintptr, 6)...)
		if _, _, err := syscall.Syscall6(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]); err != 0 {
			try(what, err)
			return
		}
		try(what, nil)
	}
	for _, path := range t.Read {
		_, err := os.ReadFile(path)
		try("read "+path, err)
	}
	for _, path := range t.List {
		_, err := os.ReadDir(path)
		try("list "+path, err)
	}
	for _, path := range t.Write {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			_ = file.Close()
		}
		try("write "+path, err)
		try("link "+path, os.Link(path, t.Report+".link"))
		try("truncate "+path, os.Truncate(path, 0))
		try("remove "+path, os.Remove(path))
	}
	for _, path := range t.Change {
		try("chmod "+path, os.Chmod(path, 0o777))
		try("chown "+path, os.Chown(path, os.Getuid(), os.Getgid()))
	}
	for _, path := range t.Run {
		try("run "+path, exec.Command(path).Run())
	}
	for _, address := range t.Sockets {
		conn, err := net.Dial("unix", address)
		if err == nil {
			_ = conn.Close()
		}
		try("connect "+address, err)
	}
	for _, pid := range t.Processes {
		for _, name := range []string{"environ", "mem", "maps", "cmdline", "root/etc/hostname"} {
			_, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			try(fmt.Sprintf("read /proc/%d/%s", pid, name), err)
		}
		try(fmt.Sprintf("signal %d", pid), syscall.Kill(pid, syscall.SIGCONT))
		call(fmt.Sprintf("ptrace %d", pid), unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid))
		var local, remote unix.Iovec
		call(fmt.Sprintf("process_vm_readv %d", pid), unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1)
		call(fmt.Sprintf("prlimit %d", pid), unix.SYS_PRLIMIT64, uintptr(pid), unix.RLIMIT_NOFILE)
	}
	call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	call("mount", unix.SYS_MOUNT)
	call("bpf", unix.SYS_BPF)
	call("keyctl", unix.SYS_KEYCTL)
	call("perf_event_open", unix.SYS_PERF_EVENT_OPEN)
	call("userfaultfd", unix.SYS_USERFAULTFD)
	call("io_uring_setup", unix.SYS_IO_URING_SETUP)
	call("setuid", unix.SYS_SETUID, 0)
	outcomes["environment"] = fmt.Sprint(os.Environ())
	outcomes["user"] = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	encoded, err := json.Marshal(outcomes)
	if err != nil {
		return err
	}
	return os.WriteFile(t.Report, encoded, 0o644)
}
