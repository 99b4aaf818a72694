package plugin

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"unsafe"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/atoll-dev/atoll/infra/containment"
)

// thisMachine returns the facts that decide how providers can be contained.
func thisMachine() *containment.Machine {
	m := &containment.Machine{System: "linux"}
	if version, err := landlock.LandlockGetABIVersion(); err == nil {
		m.Landlock = version
	}
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, err := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	m.Filters = containment.FiltersCalls && err == 0
	return m
}

// confine restricts this thread, and everything that it executes, to a profile. The order matters:
// files are opened with the server's rights, the user changes next, and what denies system calls comes
// last.
func confine(p containment.Profile) error {
	if err := standardFiles(); err != nil {
		return err
	}
	ruleset, err := newRuleset(p)
	if err != nil {
		return err
	}
	if err := limit(p.Limits); err != nil {
		return err
	}
	if err := dropRights(p.User); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := landlock.LandlockRestrictSelf(ruleset, 0); err != nil {
		return fmt.Errorf("restricting its files: %w", err)
	}
	if p.Filter {
		return filterCalls(p)
	}
	return nil
}

// openProgram opens an executable before the user changes: that user may not be able to pass through
// the directories above it.
func openProgram(path string) (fd int, err error) {
	if fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		err = &os.PathError{Op: "exec", Path: path, Err: err}
	}
	return fd, err
}

// standardFiles leaves the provider nothing but an empty standard input and its output.
func standardFiles() error {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(null, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("opening /dev/null: %w", err)
	}
	if err := unix.CloseRange(launcherFailureFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing files: %w", err)
	}
	return nil
}

// fileRights are the rights of Landlock that exist for files; the others are for directories.
const fileRights = landlock.AccessFSExecute | landlock.AccessFSReadFile | landlock.AccessFSWriteFile | landlock.AccessFSTruncate | landlock.AccessFSResolveUnix

const (
	readRights  = landlock.AccessFSExecute | landlock.AccessFSReadFile | landlock.AccessFSReadDir
	writeRights = readRights | landlock.AccessFSWriteFile | landlock.AccessFSRemoveDir | landlock.AccessFSRemoveFile | landlock.AccessFSMakeDir |
		landlock.AccessFSMakeReg | landlock.AccessFSMakeSock | landlock.AccessFSMakeFifo | landlock.AccessFSMakeSym | landlock.AccessFSRefer |
		landlock.AccessFSTruncate | landlock.AccessFSResolveUnix
)

// handledRights returns the rights that a version of Landlock knows. All of them are denied unless a
// rule grants them.
func handledRights(version int) uint64 {
	rights := uint64(landlock.AccessFSRefer) - 1
	for _, added := range []struct{ version, right int }{
		{2, landlock.AccessFSRefer}, {3, landlock.AccessFSTruncate}, {5, landlock.AccessFSIoctlDev}, {9, landlock.AccessFSResolveUnix},
	} {
		if version >= added.version {
			rights |= uint64(added.right)
		}
	}
	return rights
}

// newRuleset creates the ruleset of a profile.
func newRuleset(p containment.Profile) (int, error) {
	attributes := landlock.RulesetAttr{HandledAccessFS: handledRights(p.Landlock)}
	if p.RestrictTCP {
		attributes.HandledAccessNet = landlock.AccessNetConnectTCP
	}
	if p.Scoped {
		attributes.Scoped = landlock.ScopeAbstractUnixSocket | landlock.ScopeSignal
	}
	ruleset, err := landlock.LandlockCreateRuleset(&attributes, 0)
	if err != nil {
		return -1, fmt.Errorf("creating a Landlock ruleset: %w", err)
	}
	for _, rule := range p.Rules {
		if err := addRule(ruleset, attributes.HandledAccessFS, rule, p.Protected); err != nil {
			return -1, err
		}
	}
	if err := addOwnProcess(ruleset); err != nil {
		return -1, err
	}
	for _, port := range p.TCPPorts {
		if err := landlock.LandlockAddNetPortRule(ruleset, &landlock.NetPortAttr{AllowedAccess: landlock.AccessNetConnectTCP, Port: uint64(port)}, 0); err != nil {
			return -1, fmt.Errorf("allowing connections to TCP port %d: %w", port, err)
		}
	}
	return ruleset, nil
}

// addRule grants access to a path. The open file decides, not its path: a link may lead anywhere,
// and a provider that can write to a directory can replace its entries.
func addRule(ruleset int, handled uint64, rule containment.Rule, protected []string) error {
	fd, err := openGranted(rule)
	if err != nil {
		if rule.Optional && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOTDIR)) {
			return nil
		}
		return err
	}
	defer func() { _ = unix.Close(fd) }() // the rule keeps its own reference
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return fmt.Errorf("reading %s: %w", rule.Path, err)
	}
	if !rule.Own {
		if err := checkOpened(fd, rule, protected); err != nil {
			return err
		}
	}
	rights := uint64(readRights)
	if rule.Access == containment.ReadWrite {
		rights = writeRights
	}
	if info.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	if err := landlock.LandlockAddPathBeneathRule(ruleset, &landlock.PathBeneathAttr{AllowedAccess: rights & handled, ParentFd: fd}, 0); err != nil {
		return fmt.Errorf("granting %s: %w", rule.Path, err)
	}
	return nil
}

// openGranted opens the path of a rule. A path of the Provider must not lead through links.
func openGranted(rule containment.Rule) (int, error) {
	if rule.Field == "" {
		fd, err := unix.Open(rule.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			err = fmt.Errorf("opening %s: %w", rule.Path, err)
		}
		return fd, err
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, rule.Path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, fmt.Errorf("%s: %s is or contains a symbolic link: write the path that it leads to", rule.Field, rule.Path)
	case errors.Is(err, unix.ENOENT):
		return -1, fmt.Errorf("%s: %s does not exist on this server: create it, or remove it from spec.files", rule.Field, rule.Path)
	case err != nil:
		return -1, fmt.Errorf("%s: opening %s: %w", rule.Field, rule.Path, err)
	}
	return fd, nil
}

// checkOpened rejects a grant that reaches a protected path.
func checkOpened(fd int, rule containment.Rule, protected []string) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("reading the path of %s: %w", rule.Path, err)
	}
	for _, dir := range protected {
		if !containment.Overlaps(path, dir) {
			continue
		}
		if rule.Field != "" {
			return fmt.Errorf("%s: %s", rule.Field, containment.OverlapProblem(path, dir))
		}
		return fmt.Errorf("files of the server in %s are in %s, which every provider can read: choose another --data-dir", dir, path)
	}
	return nil
}

// addOwnProcess grants the process its own directory in /proc. The descriptor stays open in the
// provider: the kernel may otherwise drop the directory from its cache, and the rule with it.
func addOwnProcess(ruleset int) error {
	fd, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = landlock.LandlockAddPathBeneathRule(ruleset,
			&landlock.PathBeneathAttr{AllowedAccess: landlock.AccessFSReadFile | landlock.AccessFSReadDir, ParentFd: fd}, 0)
	}
	if err != nil {
		return fmt.Errorf("granting /proc/self: %w", err)
	}
	return nil
}

// limit lowers resource limits. A core dump would have the provider's secrets.
func limit(l containment.Limits) error {
	for _, one := range []struct {
		resource int
		max      uint64
		name     string
	}{
		{unix.RLIMIT_NOFILE, l.OpenFiles, "open files"}, {unix.RLIMIT_NPROC, l.Processes, "processes"}, {unix.RLIMIT_FSIZE, l.FileBytes, "file sizes"},
	} {
		if one.max == 0 {
			continue
		}
		var now syscall.Rlimit
		err := syscall.Getrlimit(one.resource, &now)
		if err == nil {
			bound := min(now.Max, one.max)
			err = syscall.Setrlimit(one.resource, &syscall.Rlimit{Cur: bound, Max: bound})
		}
		if err != nil {
			return fmt.Errorf("limiting %s: %w", one.name, err)
		}
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return fmt.Errorf("denying core dumps: %w", err)
	}
	return nil
}

// dropRights changes the user and gives up all capabilities. A change of the user cancels the signal
// at the server's end, so that it is requested again.
func dropRights(user *containment.User) error {
	parent := os.Getppid()
	if user != nil {
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("leaving the server's groups: %w", err)
		}
		if err := syscall.Setresgid(int(user.GID), int(user.GID), int(user.GID)); err != nil {
			return fmt.Errorf("changing to group %d: %w", user.GID, err)
		}
		if err := syscall.Setresuid(int(user.UID), int(user.UID), int(user.UID)); err != nil {
			return fmt.Errorf("changing to user %d: %w", user.UID, err)
		}
	}
	// Kernels without ambient capabilities reject the call.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	var none [2]unix.CapUserData
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("requesting a signal at the server's end: %w", err)
	}
	if os.Getppid() != parent {
		return errors.New("the server is gone")
	}
	return nil
}

// filterCalls denies system calls to this thread and its children.
func filterCalls(p containment.Profile) error {
	assembled, err := bpf.Assemble(containment.Program(containment.ThisArchitecture(), containment.Denied(p)))
	if err != nil {
		return fmt.Errorf("assembling the filter of system calls: %w", err)
	}
	filter := make([]unix.SockFilter, len(assembled))
	for i, one := range assembled {
		filter[i] = unix.SockFilter{Code: one.Op, Jt: one.Jt, Jf: one.Jf, K: one.K}
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, err := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); err != 0 {
		return fmt.Errorf("filtering system calls: %w", err)
	}
	return nil
}

// execute replaces this process by the provider. If its user cannot pass through the directories above
// the program, the descriptor that was opened before is executed.
func execute(request launcherRequest, program int) error {
	err := syscall.Exec(request.Program, request.Args, request.Env)
	if errors.Is(err, unix.EACCES) {
		// If the second attempt fails, too, the first error has the cause.
		_ = executeFD(request, program)
	}
	return &os.PathError{Op: "exec", Path: request.Program, Err: err}
}

func executeFD(request launcherRequest, program int) error {
	args, err := syscall.SlicePtrFromStrings(request.Args)
	if err != nil {
		return err
	}
	env, err := syscall.SlicePtrFromStrings(request.Env)
	if err != nil {
		return err
	}
	empty := [1]byte{}
	_, _, failed := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(program), uintptr(unsafe.Pointer(&empty)), uintptr(unsafe.Pointer(&args[0])),
		uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0)
	return failed
}
