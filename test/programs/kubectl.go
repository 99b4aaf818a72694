package programs

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
)

// brief lists the commands of kubectl that end by themselves, run no other program, and leave no
// state in their process. They run inside this process: starting another one takes several times as
// long as the command, and tests poll.
var brief = []string{"get", "apply", "create", "delete", "patch", "label", "annotate", "scale"}

// runsHere reports whether a command is brief. Commands that watch do not end by themselves.
func runsHere(args []string) bool {
	return len(args) > 0 && slices.Contains(brief, args[0]) &&
		!slices.ContainsFunc(args, func(a string) bool { return a == "-w" || strings.HasPrefix(a, "--watch") })
}

// exit is the value that kubectl panics with instead of ending the process (see Main).
type exit struct {
	message string
	code    int
}

// kubectlHere runs a brief command of kubectl in this process.
func kubectlHere(ctx context.Context, home, kubeconfig, stdin string, args ...string) (string, error) {
	args = slices.Clone(args)
	if at := slices.Index(args, "-"); at >= 0 {
		// Without a file it would read the standard input of this process.
		file := filepath.Join(home, "stdin-"+rand.Text()+".yaml")
		if err := os.WriteFile(file, []byte(stdin), 0o600); err != nil {
			return "", err
		}
		defer os.Remove(file)
		args[at] = file
	}
	out, errs := &output{}, &output{}
	flags := []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + filepath.Join(home, ".kube", "cache")}
	if deadline, ok := ctx.Deadline(); ok && args[0] == "get" {
		// Run would kill a process. Here the request itself must end with the context.
		flags = append(flags, "--request-timeout="+max(time.Until(deadline), time.Millisecond).String())
	}
	cmd := kubectlcmd.NewKubectlCommand(kubectlcmd.KubectlOptions{
		Arguments: append([]string{"kubectl"}, args...),
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: errs},
	})
	cmd.SetArgs(append(flags, args...))
	cmd.SetOut(out)
	cmd.SetErr(errs)
	if err := execute(func() error { return cmd.ExecuteContext(ctx) }); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, errs)
	}
	return strings.TrimSpace(out.String()), nil
}

// execute runs a command and returns an error if it would have exited with one.
func execute(command func() error) (err error) {
	defer func() {
		switch ended := recover().(type) {
		case nil:
		case exit:
			err = fmt.Errorf("exit status %d\n%s", ended.code, ended.message)
		default:
			panic(ended)
		}
	}()
	return command()
}

// exitHere makes kubectl's commands panic instead of ending the process, and ignore the user's
// kubectl preferences.
func exitHere() error {
	kubectlutil.BehaviorOnFatal(func(message string, code int) { panic(exit{message, code}) })
	return os.Setenv("KUBERC", "off")
}

// output collects the output of a command. Warnings go to the streams of the command that began last
// in this process, so several goroutines may write at once.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
