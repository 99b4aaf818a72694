package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-dev/atoll/infra/containment"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// launcherArgument makes this test binary a launcher.
const launcherArgument = "provider-launcher"

// probeEnv makes this test binary try what a hostile provider would, and print the outcomes.
const probeEnv = "ATOLL_PROBE"

// A probe says what to try.
type probe struct {
	Read, Write, List, Stat []string
	Abstract                string
	TCP                     []string
	Exec                    []string
}

// runProbe prints a line with the outcome of each attempt: its error number, or ok.
func runProbe(text string) {
	var p probe
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(err)
	}
	out := map[string]string{}
	try := func(name string, err error) {
		var number syscall.Errno
		switch {
		case err == nil:
			out[name] = "ok"
		case errors.As(err, &number):
			out[name] = unix.ErrnoName(number)
		default:
			out[name] = err.Error()
		}
	}
	call := func(name string, number uintptr, args ...uintptr) {
		args = append(args, 0, 0, 0, 0, 0, 0)
		_, _, err := syscall.Syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		if err == 0 {
			try(name, nil)
		} else {
			try(name, err)
		}
	}
	for _, path := range p.Read {
		_, err := os.ReadFile(path)
		try("read "+path, err)
	}
	for _, path := range p.Write {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			f.Close()
		}
		try("write "+path, err)
	}
	for _, path := range p.List {
		_, err := os.ReadDir(path)
		try("list "+path, err)
	}
	for _, path := range p.Exec {
		try("exec "+path, exec.Command(path).Run())
	}
	parent := os.Getppid()
	for _, name := range []string{"environ", "mem", "maps", "cmdline"} {
		_, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", parent, name))
		try("parent's "+name, err)
	}
	_, err := os.ReadFile("/proc/self/status")
	try("own status", err)
	try("signal", syscall.Kill(parent, syscall.SIGCONT))
	_, err = net.Dial("unix", p.Abstract)
	try("abstract", err)
	for _, address := range p.TCP {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		try("tcp "+address, err)
	}
	call("ptrace", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(parent))
	var local, remote unix.Iovec
	call("process_vm_readv", unix.SYS_PROCESS_VM_READV, uintptr(parent), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1)
	call("prlimit", unix.SYS_PRLIMIT64, uintptr(parent), unix.RLIMIT_NOFILE)
	call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	call("mount", unix.SYS_MOUNT)
	call("bpf", unix.SYS_BPF)
	call("keyctl", unix.SYS_KEYCTL)
	call("io_uring", unix.SYS_IO_URING_SETUP)
	call("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)
	call("mptcp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 262)
	var core, files syscall.Rlimit
	_ = syscall.Getrlimit(unix.RLIMIT_CORE, &core)
	_ = syscall.Getrlimit(unix.RLIMIT_NOFILE, &files)
	privileges, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	dies, _ := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	out["limits"] = fmt.Sprintf("core %d, files at most %t, no_new_privs %d, seccomp %d", core.Max, files.Max <= 8192, privileges, dies)
	groups, _ := os.Getgroups()
	out["user"] = fmt.Sprint(os.Getuid(), os.Getgid(), os.Geteuid(), groups)
	names, _ := os.ReadDir("/proc/self/fd")
	out["descriptors"] = fmt.Sprint(len(names) <= 7) // its standard files, /proc/self, those of Go's runtime, and this one
	_ = json.NewEncoder(os.Stdout).Encode(out)
}

// probed runs a probe in a profile, and returns the outcomes.
func probed(t *testing.T, spec containment.Spec, process containment.Process, machine containment.Machine, p probe) map[string]string {
	t.Helper()
	binary := fakeBinary(t)
	process.Program = binary.Path
	profile, err := containment.Decide(spec, process, machine)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	s := newSpawner()
	defer s.close()
	cmd := exec.Command(binary.Path, launcherArgument)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = process.Directory, []string{}, ownProcessGroup()
	r := newRunner(s, cmd)
	r.request = &launcherRequest{Profile: profile, Program: binary.Path, Args: []string{"probe"}, Env: []string{probeEnv + "=" + string(text), raceVariable + "=" + raceOptions}}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	go func() { _, _ = io.Copy(&errs, r.stderr) }()
	answer, err := io.ReadAll(r.stdout)
	<-r.done
	out := map[string]string{}
	if err := errors.Join(err, json.Unmarshal(answer, &out)); err != nil {
		t.Fatalf("%v: %s %s %s", err, r.exit(), answer, errs.String())
	}
	return out
}

// open returns a directory that every user can pass through and that has a file.
func open(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-"+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "file"), nil, 0o666), os.Chmod(filepath.Join(dir, "file"), 0o666)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testedUsers returns the users to test with: the server's own, and, for root, another.
func testedUsers() map[string]*containment.User {
	users := map[string]*containment.User{"server's own user": nil}
	if os.Geteuid() == 0 {
		users["user of its own"] = &containment.User{UID: 60601, GID: 60601}
	}
	return users
}

// TestContained: a contained process reaches its grants and nothing else.
func TestContained(t *testing.T) {
	t.Parallel()
	machine := *thisMachine()
	if machine.Landlock < 6 {
		t.Skipf("this kernel has version %d of Landlock; the test needs 6", machine.Landlock)
	}
	listen := func(network, address string) net.Listener {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	abstract := fmt.Sprintf("@atoll-test-%d", os.Getpid())
	listen("unix", abstract)
	allowed, denied := listen("tcp", "127.0.0.1:0"), listen("tcp", "127.0.0.1:0")
	for name, user := range testedUsers() {
		t.Run(name, func(t *testing.T) {
			readable, writable, secret := open(t, "readable"), open(t, "writable"), open(t, "secret")
			work := open(t, "work")
			p := probe{
				Read:  []string{"/etc/hosts", readable + "/file", writable + "/file", secret + "/file", work + "/file", "/etc/passwd", "/proc/1/cmdline"},
				Write: []string{work + "/new", readable + "/file", readable + "/new", writable + "/new", secret + "/file", secret + "/new", "/dev/null", "/dev/shm/x"},
				List:  []string{work, readable, secret, "/", "/proc", "/root", "/home", "/etc", "/tmp"},
				Exec:  []string{"/bin/true"}, Abstract: abstract, TCP: []string{allowed.Addr().String(), denied.Addr().String()},
			}
			got := probed(t, containment.Spec{
				Files:    []containment.File{{Path: readable, Access: containment.ReadOnly}, {Path: writable, Access: containment.ReadWrite}},
				TCPPorts: []uint16{uint16(allowed.Addr().(*net.TCPAddr).Port)}, Protected: []string{secret},
			}, containment.Process{Directory: work, User: user, OwnUser: user != nil}, machine, p)
			want := map[string]string{
				"read /etc/hosts": "ok", "read " + readable + "/file": "ok", "read " + writable + "/file": "ok", "read " + secret + "/file": "EACCES",
				"read " + work + "/file": "ok", "read /etc/passwd": "EACCES", "read /proc/1/cmdline": "EACCES",
				"write " + work + "/new": "ok", "write " + readable + "/file": "EACCES", "write " + readable + "/new": "EACCES", "write " + writable + "/new": "ok",
				"write " + secret + "/file": "EACCES", "write " + secret + "/new": "EACCES", "write /dev/null": "ok", "write /dev/shm/x": "EACCES",
				"list " + work: "ok", "list " + readable: "ok", "list " + secret: "EACCES", "list /": "EACCES", "list /proc": "EACCES", "list /root": "EACCES",
				"list /home": "EACCES", "list /etc": "EACCES", "list /tmp": "EACCES", "exec /bin/true": "EACCES",
				"parent's environ": "EACCES", "parent's mem": "EACCES", "parent's maps": "EACCES", "parent's cmdline": "EACCES", "own status": "ok",
				"signal": "EPERM", "abstract": "EPERM", "tcp " + allowed.Addr().String(): "ok", "tcp " + denied.Addr().String(): "EACCES",
				"ptrace": "EPERM", "process_vm_readv": "EPERM", "prlimit": "EPERM", "unshare": "EPERM", "mount": "EPERM", "bpf": "EPERM", "keyctl": "EPERM",
				"io_uring": "ENOSYS", "vsock": "EAFNOSUPPORT", "mptcp": "EPROTONOSUPPORT",
				"limits":      "core 0, files at most true, no_new_privs 1, seccomp 2",
				"user":        fmt.Sprint(os.Getuid(), os.Getgid(), os.Geteuid(), groupsOf(t)),
				"descriptors": "true",
			}
			if user != nil {
				want["user"] = fmt.Sprint(user.UID, user.GID, user.UID, []int{})
			}
			for name, outcome := range want {
				if got[name] != outcome {
					t.Errorf("%s: %s, want %s", name, got[name], outcome)
				}
			}
			for name := range got {
				if _, ok := want[name]; !ok {
					t.Errorf("%s: no expectation", name)
				}
			}
		})
	}
}

func groupsOf(t *testing.T) []int {
	t.Helper()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// TestContainedOnOldKernels: with what an older version of Landlock can restrict, files are contained
// as well, and the profile lists the other parts.
func TestContainedOnOldKernels(t *testing.T) {
	t.Parallel()
	machine := *thisMachine()
	if machine.Landlock < 1 {
		t.Skip("this kernel has no Landlock")
	}
	secret := open(t, "secret")
	for version := 1; version <= machine.Landlock; version++ {
		old := machine
		old.Landlock = version
		got := probed(t, containment.Spec{Protected: []string{secret}}, containment.Process{Directory: open(t, "work")}, old,
			probe{Read: []string{secret + "/file", "/etc/hosts"}, Write: []string{secret + "/file"}})
		for name, want := range map[string]string{"read " + secret + "/file": "EACCES", "write " + secret + "/file": "EACCES", "read /etc/hosts": "ok"} {
			if got[name] != want {
				t.Errorf("version %d: %s: %s, want %s", version, name, got[name], want)
			}
		}
	}
}

// containedFake returns the fake provider, contained.
func containedFake(t *testing.T, spec containment.Spec) Binary {
	t.Helper()
	b := fakeBinary(t)
	b.Containment = &spec
	return b
}

func withLauncher(t *testing.T, c Config) Config {
	t.Helper()
	c.Launcher = []string{fakeBinary(t).Path, launcherArgument}
	if os.Geteuid() == 0 {
		c.Users = NewUserPool(containment.Users{First: 60600, Count: 100})
	}
	return c
}

// TestContainedProvider: a contained provider answers, with and without a keeper, and ends with its
// host.
func TestContainedProvider(t *testing.T) {
	t.Parallel()
	if thisMachine().Landlock < 1 {
		t.Skip("this kernel has no Landlock")
	}
	directAndSupervised(t, func(t *testing.T, way way) {
		h := way.host(t, withLauncher(t, Config{}))
		binary := containedFake(t, containment.Spec{})
		c, err := h.CheckContainment(t.Context(), binary)
		if err != nil || !slices.Contains(c.Enforced, containment.PartFiles) || (os.Geteuid() == 0) != strings.HasPrefix(c.User, "606") {
			t.Fatalf("%+v, %v", c, err)
		}
		if _, err := h.Catalog(t.Context(), binary, fakeVariables("6")); err != nil {
			t.Fatal(err)
		}
		i, diagnostics, err := h.Open(t.Context(), binary, fakeSettings("6"))
		if err != nil || diagnostics.Failed() {
			t.Fatal(diagnostics, err)
		}
		if _, err := read(t.Context(), i, ""); err != nil {
			t.Error(err)
		}
	})
}

// TestNotContained: a provider that cannot be contained is not started, and the error says why.
func TestNotContained(t *testing.T) {
	t.Parallel()
	dir := open(t, "granted")
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	none := &containment.Machine{System: "linux"}
	for _, one := range []struct {
		name   string
		config Config
		spec   containment.Spec
		says   string
	}{
		{"no Landlock", withLauncher(t, Config{Machine: none}), containment.Spec{}, "this kernel has no Landlock: run the server on"},
		{"another system", withLauncher(t, Config{Machine: &containment.Machine{System: "darwin"}}), containment.Spec{}, "darwin has no Landlock"},
		{"no launcher", Config{}, containment.Spec{}, "no launcher"},
		{"a file that does not exist", withLauncher(t, Config{}), files(dir + "/nowhere"), "spec.files[0].path: " + dir + "/nowhere does not exist on this server"},
		{"a link", withLauncher(t, Config{}), files(dir+"/file", dir+"/link"), "spec.files[1].path: " + dir + "/link is or contains a symbolic link"},
		{"below a link", withLauncher(t, Config{}), files(dir + "/link/file"), "symbolic link"},
		{"a protected file", withLauncher(t, Config{}), containment.Spec{Files: files(dir + "/file").Files, Protected: []string{dir}}, "which has files of the server"},
		{"a launcher that is none", Config{Launcher: []string{"/bin/false"}}, containment.Spec{}, "exit status 1"},
	} {
		t.Run(one.name, func(t *testing.T) {
			if thisMachine().Landlock < 1 && one.config.Machine == nil {
				t.Skip("this kernel has no Landlock")
			}
			directAndSupervised(t, func(t *testing.T, way way) {
				h := way.host(t, one.config)
				binary := containedFake(t, one.spec)
				if _, err := h.CheckContainment(t.Context(), binary); !errors.Is(err, ErrNotContained) || !strings.Contains(err.Error(), one.says) {
					t.Errorf("checked: %v", err)
				}
				if strings.Contains(one.name, "launcher that is none") {
					return // its exit cannot be told from that of a provider
				}
				_, _, err := h.Open(t.Context(), binary, fakeSettings("6"))
				if !errors.Is(err, ErrNotContained) || !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), one.says) {
					t.Errorf("opened: %v", err)
				}
			})
		})
	}
}

func files(paths ...string) (s containment.Spec) {
	for _, path := range paths {
		s.Files = append(s.Files, containment.File{Path: path, Access: containment.ReadOnly})
	}
	return s
}
