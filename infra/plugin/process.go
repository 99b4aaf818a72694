package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

const (
	// maxAnswerSize is the maximum size of an answer. An object with its state is far smaller; data
	// sources can contain files.
	maxAnswerSize = 16 << 20
	// maxSchemaSize is the maximum size of a schema. The largest known provider's has 60 MiB.
	maxSchemaSize = 256 << 20
)

// A process is one running provider, and its Instance's bookkeeping.
type process struct {
	access
	name   string
	dir    string // its private directory
	child  child
	output *tail
	mask   *mask

	// The fields below belong to the Instance and are guarded by its lock.
	calls    int
	inFlight int
	retired  bool          // receives no new calls
	drained  chan struct{} // closed once it is retired and nothing is in flight
	started  time.Time

	named      atomic.Int64 // named calls in flight
	handedOver atomic.Bool  // to its keeper
}

// A child runs a provider process: as a child of this process (direct) or of a keeper (supervised).
type child interface {
	// connect starts the provider and connects to it.
	connect() (access, error)
	// gone is closed when no process of it is left.
	gone() <-chan struct{}
	// exit describes how the provider ended. It is empty until then, or if the provider did not
	// start.
	exit() string
	// kill kills the provider and the processes that it started.
	kill()
	// end asks the provider to exit, and returns when no process of it is left.
	end()
	// handOver leaves named calls to the keeper to finish, without this process. It reports whether
	// the keeper does so.
	handOver() bool
	// isDisconnected reports whether the connection is broken for good.
	isDisconnected() bool
	// exitDelay bounds the time between the end of a connection and the moment when the end of the
	// process is known.
	exitDelay() time.Duration
}

// start starts a process and connects to it. A process that is only asked for its schemas needs no
// keeper.
func (h *Host) start(ctx context.Context, binary Binary, settings Settings, mask *mask, schemaOnly bool) (*process, error) {
	user, own, err := h.userOf(binary)
	if err != nil {
		return nil, fmt.Errorf("provider %s could not be started: %w: %w", binary.Name, providerapi.ErrNotCalled, err)
	}
	dir, err := h.privateDirectory(user)
	if err != nil {
		return nil, fmt.Errorf("provider %s: creating its private directory: %w", binary.Name, err)
	}
	profile, err := h.contained(binary, dir, user, own)
	if err != nil {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("provider %s could not be started: %w: %w", binary.Name, providerapi.ErrNotCalled, err)
	}
	p := &process{
		name: binary.Name, dir: dir, output: &tail{tee: settings.Output}, mask: mask,
		drained: make(chan struct{}), started: h.config.Clock.Now(),
	}
	as := launch{
		Path: binary.Path, Directory: dir, User: user, Profile: profile, Launcher: h.config.Launcher,
		Env: environment(dir, h.config.Inherit, settings.Env), StartTimeout: h.config.StartTimeout,
	}
	if _, set := as.Env["GOMAXPROCS"]; !set && profile != nil {
		// A contained provider cannot read the limits of its control group.
		as.Env["GOMAXPROCS"] = strconv.Itoa(runtime.GOMAXPROCS(0))
	}
	if h.journal != nil && !schemaOnly {
		p.child = newSupervised(h.spawner, h.config.Keeper, setup{
			Launch: as, Journal: h.journal.dir, JournalKey: h.config.JournalKey, StopGrace: h.config.StopGrace,
			ApplyTimeout: settings.Limits.withDefaults().ApplyTimeout,
		}, p.output)
	} else {
		p.child = newDirect(h.spawner, as, p.output)
	}
	// go-plugin's start cannot be cancelled, but it fails when the child is gone.
	connected := context.AfterFunc(ctx, p.child.kill)
	defer connected()
	if p.access, err = p.child.connect(); err != nil {
		p.stop(0)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, p.startFailure(err)
	}
	return p, nil
}

// startFailure returns the error of a failed start, with the provider's last output and, unless
// Atoll killed it, the exit status.
func (p *process) startFailure(err error) error {
	if errors.Is(err, ErrNotContained) {
		return fmt.Errorf("provider %s could not be started: %w: %w", p.name, providerapi.ErrNotCalled, err)
	}
	text := err.Error()
	if exit := p.child.exit(); exit != "" && exit != "signal: killed" {
		text += "; its process exited: " + exit
	}
	return fmt.Errorf("provider %s could not be started: %w: %s", p.name, providerapi.ErrNotCalled, p.withOutput(text))
}

// withOutput appends the last output of the process to a text. Secrets are masked and both are
// truncated.
func (p *process) withOutput(text string) string {
	text = text[:min(len(text), shownOutput)]
	if last := p.output.last(); last != "" {
		text += "; its last output: " + last
	}
	return p.mask.text(strings.ToValidUTF8(text, "?"))
}

func (h *Host) privateDirectory(user *User) (string, error) {
	dir, err := os.MkdirTemp(h.config.Directory, privatePrefix)
	if err != nil || user == nil {
		return dir, err
	}
	if err := os.Chown(dir, int(user.UID), int(user.GID)); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// environment returns the environment of a process without the handshake's variables: the defaults,
// the inherited variables, and its own settings.
func environment(dir string, inherit []string, own map[string]string) map[string]string {
	env := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin",
		"HOME": dir, "TMPDIR": dir,
		// Providers would log each call to their standard error, which costs most of their speed.
		"TF_LOG": "off", "TF_LOG_PROVIDER": "off", "TF_LOG_SDK": "off", "TF_LOG_SDK_PROTO": "off", "TF_LOG_SDK_FRAMEWORK": "off",
		// Providers use little memory and would spend a third of their time on garbage collection.
		"GOGC": "400",
	}
	for _, name := range inherit {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	maps.Copy(env, own)
	return env
}

// method returns the full method name of a call, given its name in protocol version 6.
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

// invoke makes a call. Messages are always those of protocol version 6: the messages in use have
// the same wire format in version 5.
func (p *process) invoke(ctx context.Context, name string, request, answer proto.Message) error {
	return p.conn.Invoke(ctx, p.method(name), request, answer)
}

// call makes the call of a spec. A named call goes through the keeper, which makes it at most once.
func (p *process) call(ctx context.Context, spec callSpec, request, answer proto.Message) error {
	if spec.name == nil || p.once == nil {
		return p.invoke(ctx, spec.method, request, answer)
	}
	ctx, err := spec.name.attach(ctx)
	if err != nil {
		return err
	}
	p.named.Add(1)
	defer p.named.Add(-1)
	var trailer metadata.MD
	err = p.once.Invoke(ctx, p.method(spec.method), request, answer, grpc.Trailer(&trailer))
	return keeperError(trailer, err)
}

func (p *process) isGone() bool {
	select {
	case <-p.child.gone():
		return true
	default:
		return false
	}
}

// confirmExit distinguishes a process that exited from a broken connection. It waits a moment for
// the exit to be noticed.
func (p *process) confirmExit() bool {
	timer := time.NewTimer(p.child.exitDelay())
	defer timer.Stop()
	select {
	case <-p.child.gone():
		return true
	case <-timer.C:
		return false
	}
}

func (p *process) exitError() error {
	return errors.New(p.withOutput("its process exited: " + p.child.exit()))
}

// explain returns the reason why there is no answer.
func (p *process) explain(err error) error {
	text := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unavailable:
		if p.confirmExit() {
			return p.exitError()
		}
	case codes.Canceled:
		// A connection is closed once its process has ended, which the call may not have noticed by
		// then. Callers that cancelled do not wait for the process to end.
		if p.isGone() {
			return p.exitError()
		}
	case codes.ResourceExhausted:
		text = "the answer is too large, or the provider is out of resources: " + text
	}
	text = text[:min(len(text), shownOutput)]
	return errors.New(p.mask.text(strings.ToValidUTF8(text, "?")))
}

// stop asks the process to stop, and kills it when the grace period is over. When it returns, no
// process is left. Calls in flight get the first half of the grace period to finish, once they are
// told to. After that, all but named calls are interrupted; a keeper finishes the named ones.
func (p *process) stop(grace time.Duration) {
	over := time.AfterFunc(grace, p.child.kill)
	defer over.Stop()
	if p.conn != nil && grace > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), grace/2)
		// The answer does not matter: the process is about to end.
		_ = p.invoke(ctx, "StopProvider", &tfplugin6.StopProvider_Request{}, &tfplugin6.StopProvider_Response{})
		select {
		case <-p.drained:
		case <-p.child.gone():
		case <-ctx.Done():
		}
		cancel()
		if p.named.Load() > 0 && !p.isGone() { // they run in the keeper; only their callers have no answer yet
			p.handedOver.Store(true)
			if p.child.handOver() {
				return
			}
			p.handedOver.Store(false)
		}
	}
	p.child.end()
	// The next Host removes what is left.
	_ = os.RemoveAll(filepath.Clean(p.dir))
}

// isDisconnected reports whether the connection to a running process is broken for good.
func (p *process) isDisconnected() bool { return p.child.isDisconnected() }
