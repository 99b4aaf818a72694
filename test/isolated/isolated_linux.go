// Package isolated runs a test binary in network and mount namespaces of its own, which end with the process. So tests that
// change networks never touch the machine's, and nothing remains of them, even after a crash.
package isolated

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// variable is set in the isolated process. Its value is isolated, or the reason why namespaces cannot be created.
const (
	variable = "ATOLL_TEST_APART"
	isolated = "isolated"
)

// registry is the directory in which iproute2 keeps the names of namespaces.
const registry = "/run/netns"

// Run runs the tests in an isolated child process, and exits with its exit code. It returns in that child process, and in a
// process that may not create namespaces.
func Run() {
	if os.Getenv(variable) == isolated {
		return
	}
	if os.Geteuid() != 0 {
		os.Setenv(variable, "that needs root")
		return
	}
	// The child ends when the thread that started it ends.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), variable+"="+isolated)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	switch err := cmd.Start(); {
	case errors.Is(err, syscall.EPERM):
		// Typically root in a container.
		os.Setenv(variable, "that needs CAP_SYS_ADMIN")
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
		os.Exit(1)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
	}
	os.Exit(max(cmd.ProcessState.ExitCode(), 0))
}

// Why returns why this process is not isolated, or "".
func Why() string {
	if why := os.Getenv(variable); why != isolated {
		return "creates network namespaces: " + why
	}
	return ""
}

// Prepare lets this process be a router, and name namespaces that only it and its children see.
func Prepare() error {
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("create a network: install iproute2: %w", err)
	}
	if err := os.MkdirAll(registry, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("atoll-test", registry, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("create a network: mount a private directory for names: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("create a network: enable IP forwarding: %w", err)
	}
	return IP("link", "set", "lo", "up")
}

// IP runs the command ip.
func IP(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
