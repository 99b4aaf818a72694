// Package atoll runs commands of the atoll binary as child processes: the real
// thing, through the same code as the binary's main, with nothing to build or
// install.
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
	"github.com/atoll-dev/atoll/infra/provider"
	"github.com/atoll-dev/atoll/playground/child"
)

// RoleName is the name under which Role must be given to child.Main.
const RoleName = "atoll"

// KeeperName is the name under which Keeper must be given to child.Main beside it: a server starts its own
// program under that name.
const KeeperName = cli.KeeperCommand

// Keeper finishes what providers were asked for by a server that is killed.
func Keeper(context.Context, *child.Link) error { return provider.Keep() }

// command is what the role is given: the arguments after "atoll".
type command struct {
	Args []string
	// Environment that is secret.
	Environment map[string]string
}

// Role runs a command inside a child process. It reports ready at once; only
// the command's own face can tell when it is.
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

// Run starts a command and does not wait for anything.
func Run(logFile string, args ...string) (*child.Process, error) {
	return RunWithin(nil, logFile, args...)
}

// RunWithin is Run by way of another command (see child.Spec).
func RunWithin(within []string, logFile string, args ...string) (*child.Process, error) {
	return start(within, logFile, command{Args: args})
}

func start(within []string, logFile string, c command) (*child.Process, error) {
	return child.Start(child.Spec{Role: RoleName, Name: "atoll " + c.Args[0], Config: c, LogFile: logFile, Within: within})
}

// Config describes an `atoll server`.
type Config struct {
	// Dir is its data directory.
	Dir string
	// LogFile takes what it logs.
	LogFile string
	// Port to serve on; 0 means any free one, another at each start.
	Port int
	// Datastore is the URL of its datastore; empty means SQLite in Dir. It is not
	// put on a command line, which everybody on the machine can read.
	Datastore string
	// Flags beyond those.
	Flags []string
	// Within is a command that it is started by (see child.Spec).
	Within []string
}

// Server is a running `atoll server`.
type Server struct {
	*child.Process
	// Kubeconfig of its administrator.
	Kubeconfig string
}

// Start starts a server and returns when it is ready. It lives until Stop or
// Kill, or until this process ends; ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	kubeconfig := filepath.Join(cfg.Dir, "admin.kubeconfig")
	if cfg.Port == 0 {
		// What an earlier start has left tells the wrong port.
		if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("start atoll: %w", err)
		}
	}
	c := command{Args: append([]string{"server", "--data-dir", cfg.Dir, "--secure-port", strconv.Itoa(cfg.Port)}, cfg.Flags...)}
	if cfg.Datastore != "" {
		c.Environment = map[string]string{cli.DatastoreVariable: cfg.Datastore}
	}
	process, err := start(cfg.Within, cfg.LogFile, c)
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

// REST is a client configuration for the server's administrator.
func (s *Server) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of atoll: %w", err)
	}
	config.QPS = -1 // the server's own flow control is enough
	return config, nil
}

// waitReady polls until the server is ready, has ended or ctx ends.
func (s *Server) waitReady(ctx context.Context) error {
	try := func() error {
		if _, err := os.Stat(s.Kubeconfig); err != nil {
			return errors.New("it has not written its kubeconfig")
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
