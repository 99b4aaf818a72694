// Package programs runs kubectl and atoll in tests of the whole system. Both are the test binary
// itself and run the same code as the real programs, so nothing has to be built or installed first.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	kubernetescli "k8s.io/component-base/cli"
	"k8s.io/klog/v2"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/playground/child"
)

// programVariable turns the test binary into kubectl or atoll.
const programVariable = "ATOLL_TEST_PROGRAM"

// Main must be the first call in TestMain. In a process that Run started, it runs the program, and in
// a child process of the playground its role; in both cases it does not return.
func Main(roles map[string]child.Role) {
	program := os.Getenv(programVariable)
	if program != "" && os.Getenv(runnerVariable) != "" {
		serve()
	}
	switch program {
	case "kubectl":
		runKubectl()
		os.Exit(0)
	case "atoll":
		os.Exit(cli.Main(append([]string{"atoll"}, os.Args[1:]...), os.Stdout, os.Stderr))
	}
	child.Main(roles)
	klog.SetLogger(klog.Logger{}) // discards: client-go logs each connection that a killed server resets
	if err := exitHere(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runKubectl runs kubectl with the arguments and files of this process. If kubectl fails, it does what
// kubectlutil.BehaviorOnFatal was told, or ends the process.
func runKubectl() {
	if err := kubernetescli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}

// Run runs a program ("kubectl" or "atoll") and returns its output. A brief command of kubectl runs in
// this process, everything else in another. Its files, such as kubectl's discovery cache,
// are in home.
func Run(ctx context.Context, home, program, kubeconfig, stdin string, args ...string) (string, error) {
	if program == "kubectl" && runsHere(args) {
		return kubectlHere(ctx, home, kubeconfig, stdin, args...)
	}
	answer, err := Call{Program: program, Args: args, Home: home, Kubeconfig: kubeconfig, Stdin: stdin}.Run(ctx)
	if err != nil {
		return "", err
	}
	if answer.Code != 0 {
		return "", fmt.Errorf("%s %s: exit status %d\n%s", program, strings.Join(args, " "), answer.Code, answer.Errs)
	}
	return strings.TrimSpace(answer.Out), nil
}

// Command returns the command of a program, not yet started, in a process of its own.
func Command(ctx context.Context, home, program, kubeconfig string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0] // Start fails with the cause
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), programVariable+"="+program, "KUBECONFIG="+kubeconfig,
		"HOME="+home,
		"GOGC=400") // most programs end before a collection pays off
	return cmd
}

// Ask runs a program in another process. A non-zero exit code is no error.
func Ask(ctx context.Context, home, program, kubeconfig string, args ...string) (Answer, error) {
	return Call{Program: program, Args: args, Home: home, Kubeconfig: kubeconfig}.Run(ctx)
}

// Eventually polls until check returns nil, and fails the test with check's last error if that
// takes longer than limit.
func Eventually(t *testing.T, limit time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	var last error
	for {
		polled := time.Now()
		err := check(ctx)
		if err == nil {
			if took := time.Since(began); took >= 10*time.Millisecond {
				t.Logf("%s: after %s", what, took.Round(10*time.Millisecond))
			}
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err // keep the last error before the deadline, which is more specific
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not after %s: %v", what, limit, last)
		case <-time.After(max(100*time.Millisecond, min(time.Since(polled), time.Second))): // the polled server needs the processors too
		}
	}
}
