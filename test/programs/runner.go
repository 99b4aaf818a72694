package programs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/atoll-dev/atoll/cli"
)

// runnerVariable, in addition to programVariable, has the test binary run one command after another.
const runnerVariable = "ATOLL_TEST_RUNNER"

// Call is a command that ends by itself.
type Call struct {
	Program    string // kubectl or atoll
	Args       []string
	Home       string // contains the program's files, such as kubectl's discovery cache
	Kubeconfig string
	Dir        string            // working directory; empty means that of this process
	Env        map[string]string // in addition to this process's environment
	Stdin      string
}

// Answer has the output of a command and its exit code.
type Answer struct {
	Out, Errs string
	Code      int
}

// Run runs the command in a process that runs nothing else at the same time. A non-zero exit code is no
// error. The process runs later commands too: to start it takes longer than most commands, because
// it initializes all of Kubernetes.
func (c Call) Run(ctx context.Context) (Answer, error) {
	failed := func(err error) (Answer, error) { return Answer{}, fmt.Errorf("%s %v: %w", c.Program, c.Args, err) }
	if c.Dir == "" {
		here, err := os.Getwd()
		if err != nil {
			return failed(err)
		}
		c.Dir = here
	}
	if c.exits() {
		answer, err := c.runAlone(ctx)
		if err != nil {
			return failed(err)
		}
		return answer, nil
	}
	r, err := takeRunner(c)
	if err != nil {
		return failed(err)
	}
	stop := context.AfterFunc(ctx, r.kill)
	var answer Answer
	err = r.requests.Encode(c)
	if err == nil {
		err = r.answers.Decode(&answer)
	}
	if !stop() || err != nil {
		r.kill()
		_ = r.cmd.Wait()
		return failed(fmt.Errorf("its process has ended: %w", errors.Join(context.Cause(ctx), err)))
	}
	r.release(c.Program)
	return answer, nil
}

// exits reports whether the command ends its process itself, not through kubectlutil.CheckErr.
func (c Call) exits() bool { return c.Program == "kubectl" && len(c.Args) > 0 && c.Args[0] == "auth" }

// runAlone runs the command in a process of its own.
func (c Call) runAlone(ctx context.Context) (Answer, error) {
	cmd := Command(ctx, c.Home, c.Program, c.Kubeconfig, c.Args...)
	cmd.Dir = c.Dir
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin = strings.NewReader(c.Stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		return Answer{}, err
	}
	return Answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}, nil
}

// runner is a process that runs one command after another. It exits at the end of its standard input, and so
// when this process does.
type runner struct {
	cmd      *exec.Cmd
	stdin    io.Closer
	requests *json.Encoder
	answers  *json.Decoder
}

func (r *runner) kill() { _ = r.cmd.Process.Kill() }

// maxIdle is the number of processes of each program that wait for commands.
const maxIdle = 4

var idle struct {
	mu sync.Mutex
	of map[string][]*runner // by program, the last used at the end
}

// takeRunner returns an idle process, or starts one.
func takeRunner(c Call) (*runner, error) {
	idle.mu.Lock()
	if all := idle.of[c.Program]; len(all) > 0 {
		r := all[len(all)-1]
		idle.of[c.Program] = all[:len(all)-1]
		idle.mu.Unlock()
		return r, nil
	}
	idle.mu.Unlock()
	// It outlives the context of the command.
	cmd := Command(context.Background(), c.Home, c.Program, c.Kubeconfig)
	cmd.Env = append(cmd.Env, runnerVariable+"=yes")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &runner{cmd, stdin, json.NewEncoder(stdin), json.NewDecoder(stdout)}, nil
}

// release keeps the process for the next command, or ends it.
func (r *runner) release(program string) {
	idle.mu.Lock()
	defer idle.mu.Unlock()
	if len(idle.of[program]) < maxIdle {
		if idle.of == nil {
			idle.of = map[string][]*runner{}
		}
		idle.of[program] = append(idle.of[program], r)
		return
	}
	r.stdin.Close()
	go func() { _ = r.cmd.Wait() }()
}

// serve runs the commands of the program that this process is, and does not return.
func serve() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := exitHere(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		var c Call
		if err := in.Decode(&c); err != nil {
			os.Exit(0)
		}
		answer, err := c.perform()
		if err == nil {
			err = out.Encode(answer)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// perform runs the command as if it were the only one in this process.
func (c Call) perform() (Answer, error) {
	if err := os.Chdir(c.Dir); err != nil {
		return Answer{}, err
	}
	environment := maps.Clone(c.Env)
	if environment == nil {
		environment = map[string]string{}
	}
	environment["HOME"], environment["KUBECONFIG"] = c.Home, c.Kubeconfig
	for name, value := range environment {
		was, set := os.LookupEnv(name)
		if err := os.Setenv(name, value); err != nil {
			return Answer{}, err
		}
		if set {
			defer os.Setenv(name, was)
		} else {
			defer os.Unsetenv(name)
		}
	}
	// Files, not pipes: programs that a command starts, such as editors, inherit them.
	var files [3]*os.File
	for i, content := range []string{c.Stdin, "", ""} {
		f, err := os.CreateTemp("", "atoll-program-")
		if err != nil {
			return Answer{}, err
		}
		defer f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return Answer{}, err
		}
		if _, err := f.WriteString(content); err != nil {
			return Answer{}, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return Answer{}, err
		}
		files[i] = f
	}
	stdin, stdout, stderr, args := os.Stdin, os.Stdout, os.Stderr, os.Args
	os.Stdin, os.Stdout, os.Stderr = files[0], files[1], files[2]
	os.Args = append([]string{filepath.Base(c.Program)}, c.Args...)
	code := c.execute()
	os.Stdin, os.Stdout, os.Stderr, os.Args = stdin, stdout, stderr, args
	answer := Answer{Code: code}
	for f, text := range map[*os.File]*string{files[1]: &answer.Out, files[2]: &answer.Errs} {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return Answer{}, err
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(f); err != nil {
			return Answer{}, err
		}
		*text = b.String()
	}
	return answer, nil
}

// execute runs the program with the arguments and files of this process, and returns its exit code.
func (c Call) execute() (code int) {
	if c.Program == "atoll" {
		return cli.Main(slices.Clone(os.Args), os.Stdout, os.Stderr)
	}
	defer func() {
		switch ended := recover().(type) {
		case nil:
		case exit:
			if ended.message != "" {
				fmt.Fprintln(os.Stderr, strings.TrimSuffix(ended.message, "\n")) // as kubectl itself does
			}
			code = ended.code
		default:
			panic(ended)
		}
	}()
	runKubectl()
	return 0
}
