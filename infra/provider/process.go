package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	pluginrunner "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

const (
	// largestAnswer is what an answer may take. An object with its state is smaller by far;
	// data sources can have files in them.
	largestAnswer = 16 << 20
	// largestSchema is the same of a schema. That of the largest known provider takes 60 MiB.
	largestSchema = 256 << 20
)

// A process is one running child, and what its Instance keeps of it.
type process struct {
	name     string
	runner   *runner
	client   *plugin.Client
	conn     *grpc.ClientConn
	protocol int
	output   *tail
	mask     *mask

	// The rest is its Instance's, under the Instance's lock.
	calls    int
	inFlight int
	retired  bool          // takes no calls any more
	drained  chan struct{} // closed once it is retired and nothing is in flight
	started  time.Time
}

// handshake is the same for all providers.
func handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  4,
		MagicCookieKey:   "TF_PLUGIN_MAGIC_COOKIE",
		MagicCookieValue: "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2",
	}
}

// A connection is the plug-in as go-plugin wants it: it hands the connection out.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("Atoll is no provider")
}

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// start starts a process, up to where it can be spoken to.
func (h *Host) start(ctx context.Context, binary Binary, settings Settings, mask *mask) (*process, error) {
	dir, err := h.privateDirectory()
	if err != nil {
		return nil, fmt.Errorf("provider %s: making its private directory: %w", binary.Name, err)
	}
	p := &process{name: binary.Name, output: &tail{also: settings.Output}, mask: mask, drained: make(chan struct{}), started: h.config.Clock.Now()}
	set := plugin.PluginSet{"provider": connection{}}
	p.runner = newRunner(h.spawner, binary.Path, dir, h.config.User)
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{5: set, 6: set},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     h.config.StartTimeout,
		Logger:           hclog.NewNullLogger(),
		Stderr:           p.output,
		SyncStdout:       p.output,
		SyncStderr:       p.output,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir},
		GRPCDialOptions:  []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer))},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (pluginrunner.Runner, error) {
			p.runner.cmd.Env = environment(dir, h.config.Inherit, settings.Env, cmd.Env)
			return p.runner, nil
		},
	})
	// go-plugin cannot be told to give up, but notices that the child is gone.
	connected := context.AfterFunc(ctx, func() { _ = p.runner.Kill(ctx) })
	defer connected()
	if err := p.connect(); err != nil {
		p.stop(0)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, p.startFailure(err)
	}
	return p, nil
}

// startFailure says why there is no connection, with how the process ended unless we
// ended it, and what it had to say.
func (p *process) startFailure(err error) error {
	text := err.Error()
	if exit := p.runner.exit(); exit != "" && exit != "signal: killed" {
		text += "; its process ended: " + exit
	}
	return fmt.Errorf("provider %s could not be started: %w: %s", p.name, contract.ErrNotAsked, p.telling(text))
}

// telling is a text with what the process wrote last, without secrets and not
// too long.
func (p *process) telling(text string) string {
	text = text[:min(len(text), toldOutput)]
	if last := p.output.last(); last != "" {
		text += "; it last wrote: " + last
	}
	return p.mask.text(strings.ToValidUTF8(text, "?"))
}

func (p *process) connect() error {
	protocol, err := p.client.Client()
	if err != nil {
		return err
	}
	conn, err := protocol.Dispense("provider")
	if err != nil {
		return err
	}
	p.conn = conn.(*grpc.ClientConn)
	p.protocol = p.client.NegotiatedVersion()
	return nil
}

func (h *Host) privateDirectory() (string, error) {
	dir, err := os.MkdirTemp(h.config.Directory, privatePrefix)
	if err != nil || h.config.User == nil {
		return dir, err
	}
	if err := os.Chown(dir, int(h.config.User.UID), int(h.config.User.GID)); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// environment is all that a process gets: what every one does, what is inherited
// by name, what its own settings say, and what the handshake needs.
func environment(dir string, inherit []string, own map[string]string, handshake []string) []string {
	env := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin",
		"HOME": dir, "TMPDIR": dir,
		// Providers would write each call to their standard error, at the cost of most of their speed.
		"TF_LOG": "off", "TF_LOG_PROVIDER": "off", "TF_LOG_SDK": "off", "TF_LOG_SDK_PROTO": "off", "TF_LOG_SDK_FRAMEWORK": "off",
		// They live on little memory and spend a third of their time on collecting it.
		"GOGC": "400",
	}
	for _, name := range inherit {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	for name, value := range own {
		env[name] = value
	}
	for _, line := range handshake {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	// go-plugin would put sockets into a directory that only the server can enter.
	env["PLUGIN_UNIX_SOCKET_DIR"] = dir
	lines := make([]string, 0, len(env))
	for name, value := range env {
		lines = append(lines, name+"="+value)
	}
	slices.Sort(lines)
	return lines
}

// method is the full name of a call, by its name in version 6 of the protocol.
func (p *process) method(name string) string {
	if p.protocol != 5 {
		return "/tfplugin6.Provider/" + name
	}
	switch name {
	case "GetProviderSchema":
		name = "GetSchema"
	case "ValidateProviderConfig":
		name = "PrepareProviderConfig"
	case "ValidateResourceConfig":
		name = "ValidateResourceTypeConfig"
	case "ValidateDataResourceConfig":
		name = "ValidateDataSourceConfig"
	case "ConfigureProvider":
		name = "Configure"
	case "StopProvider":
		name = "Stop"
	}
	return "/tfplugin5.Provider/" + name
}

// invoke makes a call. Messages are those of version 6 of the protocol whatever the
// provider speaks: on the wire, those that are used have the same form in version 5.
func (p *process) invoke(ctx context.Context, name string, request, answer proto.Message) error {
	return p.conn.Invoke(ctx, p.method(name), request, answer)
}

func (p *process) isGone() bool {
	select {
	case <-p.runner.done:
		return true
	default:
		return false
	}
}

// diedWith tells a process that died from a connection that broke: it gives it a moment to be seen dead.
func (p *process) diedWith() bool {
	timer := time.NewTimer(afterlife)
	defer timer.Stop()
	select {
	case <-p.runner.done:
		return true
	case <-timer.C:
		return false
	}
}

// explain puts into words why there is no answer.
func (p *process) explain(err error) error {
	text := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unavailable:
		if p.diedWith() {
			return errors.New(p.telling("its process ended: " + p.runner.exit()))
		}
	case codes.ResourceExhausted:
		text = "its answer is too large, or it is out of resources: " + text
	}
	text = text[:min(len(text), toldOutput)]
	return errors.New(p.mask.text(strings.ToValidUTF8(text, "?")))
}

// stop asks the process to end, and ends it when the grace is over. When it returns
// nothing of the process is left. Calls that are in flight get the first half of the
// grace to come to an end, once they are told to.
func (p *process) stop(grace time.Duration) {
	over := time.AfterFunc(grace, func() { _ = p.runner.Kill(context.Background()) })
	defer over.Stop()
	if p.conn != nil && grace > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), grace/2)
		// What it says to this does not matter: it is about to end.
		_ = p.invoke(ctx, "StopProvider", &tfplugin6.StopProvider_Request{}, &tfplugin6.StopProvider_Response{})
		select {
		case <-p.drained:
		case <-p.runner.done:
		case <-ctx.Done():
		}
		cancel()
	}
	p.client.Kill()
	_ = p.runner.Kill(context.Background())
	if p.runner.ID() != "" {
		<-p.runner.done
	}
	// What cannot be removed now is by the next Host.
	_ = os.RemoveAll(filepath.Clean(p.runner.cmd.Dir))
}
