//go:build unix

package plugin

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	pluginrunner "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/atoll-dev/atoll/infra/containment"
)

// handshake returns go-plugin's handshake, which is the same for all providers.
func handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  4,
		MagicCookieKey:   "TF_PLUGIN_MAGIC_COOKIE",
		MagicCookieValue: "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2",
	}
}

// A connection is the go-plugin plug-in: it dispenses the bare gRPC connection.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("Atoll does not serve plug-ins")
}

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// A launch describes how to start a provider.
type launch struct {
	Path string
	// Directory is private to the provider.
	Directory string
	User      *User
	// Profile contains the provider; nil runs it with the rights of User. Launcher is the command that
	// applies it.
	Profile  *containment.Profile
	Launcher []string
	// Env is its environment without the handshake's variables.
	Env          map[string]string
	StartTimeout time.Duration
}

// A direct is a provider that runs as a child of this process and ends with it.
type direct struct {
	runner *runner
	client *plugin.Client
	config *plugin.ClientConfig
}

var _ child = (*direct)(nil)

// newDirect prepares a provider without starting it. Its output goes to output.
func newDirect(s *spawner, as launch, output io.Writer) *direct {
	d := &direct{runner: newRunner(s, as.command())}
	set := plugin.PluginSet{"provider": connection{}}
	d.config = &plugin.ClientConfig{
		HandshakeConfig:  handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{5: set, 6: set},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     as.StartTimeout,
		Logger:           hclog.NewNullLogger(),
		Stderr:           output,
		SyncStdout:       output,
		SyncStderr:       output,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: as.Directory},
		GRPCDialOptions:  []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerSize))},
		RunnerFunc: func(_ hclog.Logger, asked *exec.Cmd, _ string) (pluginrunner.Runner, error) {
			env := as.environment(asked.Env)
			if as.Profile == nil {
				d.runner.cmd.Env = env
			} else {
				d.runner.request = &launcherRequest{Profile: *as.Profile, Program: as.Path, Args: []string{filepath.Base(as.Path)}, Env: env}
			}
			return d.runner, nil
		},
	}
	d.client = plugin.NewClient(d.config)
	return d
}

// command returns the command that starts the provider, or the launcher that becomes it.
func (as launch) command() *exec.Cmd {
	cmd := exec.Command(as.Path)
	cmd.Args[0] = filepath.Base(as.Path)
	if as.Profile != nil {
		cmd = exec.Command(as.Launcher[0], as.Launcher[1:]...)
		cmd.Env = []string{} // its input tells it everything
	}
	cmd.Dir = as.Directory
	cmd.SysProcAttr = ownProcessGroup()
	if as.User != nil && as.Profile == nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.User.UID, Gid: as.User.GID}
	}
	return cmd
}

// environment returns the process's whole environment.
func (as launch) environment(handshake []string) []string {
	env := as.Env
	for _, line := range handshake {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	// go-plugin would create sockets in a directory that only the server can enter.
	env["PLUGIN_UNIX_SOCKET_DIR"] = as.Directory
	lines := make([]string, 0, len(env))
	for name, value := range env {
		lines = append(lines, name+"="+value)
	}
	slices.Sort(lines)
	return lines
}

func (d *direct) connect() (access, error) {
	protocol, err := d.client.Client()
	if err != nil {
		return access{}, err
	}
	conn, err := protocol.Dispense("provider")
	if err != nil {
		return access{}, err
	}
	return access{protocol: d.client.NegotiatedVersion(), conn: conn.(*grpc.ClientConn)}, nil
}

func (d *direct) gone() <-chan struct{} { return d.runner.done }

func (d *direct) exit() string { return d.runner.exit() }

func (d *direct) kill() { _ = d.runner.Kill(context.Background()) }

func (d *direct) end() {
	d.client.Kill()
	d.kill()
	if d.runner.ID() != "" {
		<-d.runner.done
	}
}

// handOver is not possible: the provider would end with this process.
func (d *direct) handOver() bool { return false }

// isDisconnected is always false: go-plugin reconnects.
func (d *direct) isDisconnected() bool { return false }

func (d *direct) exitDelay() time.Duration { return outputDrainTimeout }
