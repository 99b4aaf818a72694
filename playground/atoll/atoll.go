// Package atoll runs commands of the atoll binary as child processes. They run the same code as the
// binary's main, so nothing has to be built or installed.
package atoll

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/playground/child"
)

// RoleName is the name under which Role must be given to child.Main.
const RoleName = "atoll"

// KeeperName is the name under which Keeper must be given to child.Main as well: a server starts its
// own program under that name.
const KeeperName = cli.KeeperCommand

// Keeper completes the calls to providers of a server that was killed.
func Keeper(context.Context, *child.Link) error { return plugin.Keep() }

// LauncherName is the name under which Launcher must be given to child.Main, for the same reason.
const LauncherName = cli.LauncherCommand

// Launcher becomes a provider.
func Launcher(context.Context, *child.Link) error { return plugin.Launch() }

// command is the configuration of the role: the arguments after "atoll".
type command struct {
	Args []string
	// Environment contains variables whose values are secret.
	Environment map[string]string
}

// Role runs a command inside a child process. It reports ready at once, because only the command's
// own API shows when it is ready.
func Role(ctx context.Context, link *child.Link) error {
	var c command
	if err := link.Config(&c); err != nil {
		return err
	}
	if err := link.Ready(struct{}{}); err != nil {
		return err
	}
	for name, value := range c.Environment {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	atoll := cli.New("atoll")
	atoll.SetArgs(c.Args)
	atoll.SetOut(os.Stderr)
	atoll.SetErr(os.Stderr)
	return atoll.ExecuteContext(ctx)
}

// Run starts a command and returns without waiting for it.
func Run(logFile string, args ...string) (*child.Process, error) {
	return RunWrapped(nil, logFile, args...)
}

// RunWrapped is Run under a wrapper command (see child.Spec.Wrapper).
func RunWrapped(wrapper []string, logFile string, args ...string) (*child.Process, error) {
	return start(wrapper, logFile, command{Args: args})
}

func start(wrapper []string, logFile string, c command) (*child.Process, error) {
	return child.Start(child.Spec{Role: RoleName, Name: "atoll " + c.Args[0], Config: c, LogFile: logFile, Wrapper: wrapper})
}

// Config describes an `atoll server`.
type Config struct {
	// Dir is its data directory.
	Dir string
	// LogFile is the file that the server's log is appended to.
	LogFile string
	// Port to serve on; 0 means any free port, a different one at each start.
	Port int
	// Datastore is the URL of its datastore; empty means SQLite in Dir. It is passed in the environment,
	// because every user of the machine can read command lines.
	Datastore string
	// Flags are additional flags.
	Flags []string
	// Wrapper is a command that runs it (see child.Spec.Wrapper).
	Wrapper []string
}

// Server is a running `atoll server`.
type Server struct {
	*child.Process
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string
}

// Start starts a server and returns when it is ready. The server lives until Stop or Kill, or until
// this process ends; ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	kubeconfig := filepath.Join(cfg.Dir, "admin.kubeconfig")
	if cfg.Port == 0 {
		// A kubeconfig of an earlier start has the wrong port.
		if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("start atoll: %w", err)
		}
	}
	c := command{Args: append([]string{"server", "--data-dir", cfg.Dir, "--secure-port", strconv.Itoa(cfg.Port)}, cfg.Flags...)}
	if cfg.Datastore != "" {
		c.Environment = map[string]string{cli.DatastoreVariable: cfg.Datastore}
	}
	process, err := start(cfg.Wrapper, cfg.LogFile, c)
	if err != nil {
		return nil, err
	}
	s := &Server{Process: process, Kubeconfig: kubeconfig}
	if err := s.waitReady(ctx); err != nil {
		process.Kill()
		return nil, fmt.Errorf("start atoll: %w; its log is %s", err, cfg.LogFile)
	}
	return s, nil
}

// REST returns the administrator's client configuration.
func (s *Server) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of atoll: %w", err)
	}
	config.QPS = -1 // the server's own flow control is enough
	return config, nil
}

// waitReady polls until the server is ready, the server exits or ctx ends.
func (s *Server) waitReady(ctx context.Context) error {
	try := func() error {
		if _, err := os.Stat(s.Kubeconfig); err != nil {
			return errors.New("its kubeconfig does not exist yet")
		}
		config, err := s.REST()
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
