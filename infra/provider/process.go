package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
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

// A process is one running provider, and what its Instance keeps of it.
type process struct {
	access
	name   string
	dir    string // private to it
	child  child
	output *tail
	mask   *mask

	// The rest is its Instance's, under the Instance's lock.
	calls    int
	inFlight int
	retired  bool          // takes no calls any more
	drained  chan struct{} // closed once it is retired and nothing is in flight
	started  time.Time

	named atomic.Int64 // calls in flight that have a name
	left  atomic.Bool  // to its keeper
}

// A child is how a process is run: by this one (direct), or by a keeper (kept).
type child interface {
	// connect starts it, up to where it can be spoken to.
	connect() (access, error)
	// gone is closed when nothing of it runs any more.
	gone() <-chan struct{}
	// exit says how the provider ended, once it has. Empty if it did not start.
	exit() string
	// kill ends it at once, and what it started.
	kill()
	// end asks it to exit, and returns when nothing of it runs.
	end()
	// leave lets it finish the calls that have names, without this process, and tells whether it will.
	leave() bool
	// isCutOff tells whether it cannot be spoken to any more, for good.
	isCutOff() bool
	// farewell is how long its end can take to be seen, once the connection broke.
	farewell() time.Duration
}

// start starts a process, up to where it can be spoken to. One that is only asked what it has needs no keeper.
func (h *Host) start(ctx context.Context, binary Binary, settings Settings, mask *mask, schemaOnly bool) (*process, error) {
	dir, err := h.privateDirectory()
	if err != nil {
		return nil, fmt.Errorf("provider %s: making its private directory: %w", binary.Name, err)
	}
	p := &process{
		name: binary.Name, dir: dir, output: &tail{also: settings.Output}, mask: mask,
		drained: make(chan struct{}), started: h.config.Clock.Now(),
	}
	as := launch{
		Path: binary.Path, Directory: dir, User: h.config.User,
		Env: environment(dir, h.config.Inherit, settings.Env), StartTimeout: h.config.StartTimeout,
	}
	if h.journal != nil && !schemaOnly {
		p.child = newKept(h.spawner, h.config.Keeper, setup{
			Launch: as, Journal: h.journal.dir, JournalKey: h.config.JournalKey, StopGrace: h.config.StopGrace,
			ApplyTimeout: settings.Limits.withDefaults().ApplyTimeout,
		}, p.output)
	} else {
		p.child = newDirect(h.spawner, as, p.output)
	}
	// go-plugin cannot be told to give up, but notices that the child is gone.
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

// startFailure says why there is no connection, with how the process ended unless we
// ended it, and what it had to say.
func (p *process) startFailure(err error) error {
	text := err.Error()
	if exit := p.child.exit(); exit != "" && exit != "signal: killed" {
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

// environment is what a process gets beside what the handshake needs: what every one does,
// what is inherited by name, and what its own settings say.
func environment(dir string, inherit []string, own map[string]string) map[string]string {
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
	maps.Copy(env, own)
	return env
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

// ask makes the call of a question. One with a name goes with it: a keeper makes it once only.
func (p *process) ask(ctx context.Context, q question, request, answer proto.Message) error {
	if q.name == nil || p.once == nil {
		return p.invoke(ctx, q.method, request, answer)
	}
	ctx, err := q.name.attach(ctx)
	if err != nil {
		return err
	}
	p.named.Add(1)
	defer p.named.Add(-1)
	var trailer metadata.MD
	err = p.once.Invoke(ctx, p.method(q.method), request, answer, grpc.Trailer(&trailer))
	return keeperSays(trailer, err)
}

func (p *process) isGone() bool {
	select {
	case <-p.child.gone():
		return true
	default:
		return false
	}
}

// diedWith tells a process that died from a connection that broke: it gives it a moment to be seen dead.
func (p *process) diedWith() bool {
	timer := time.NewTimer(p.child.farewell())
	defer timer.Stop()
	select {
	case <-p.child.gone():
		return true
	case <-timer.C:
		return false
	}
}

func (p *process) died() error {
	return errors.New(p.telling("its process ended: " + p.child.exit()))
}

// explain puts into words why there is no answer.
func (p *process) explain(err error) error {
	text := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unavailable:
		if p.diedWith() {
			return p.died()
		}
	case codes.Canceled:
		// A connection is closed once its process has ended, which the call may not have noticed by then. Callers who
		// cancelled are not kept waiting for an end.
		if p.isGone() {
			return p.died()
		}
	case codes.ResourceExhausted:
		text = "its answer is too large, or it is out of resources: " + text
	}
	text = text[:min(len(text), toldOutput)]
	return errors.New(p.mask.text(strings.ToValidUTF8(text, "?")))
}

// stop asks the process to end, and ends it when the grace is over. When it returns
// nothing of the process is left. Calls that are in flight get the first half of the
// grace to come to an end, once they are told to. Only those that have a name are not broken off then: a
// keeper finishes them.
func (p *process) stop(grace time.Duration) {
	over := time.AfterFunc(grace, p.child.kill)
	defer over.Stop()
	if p.conn != nil && grace > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), grace/2)
		// What it says to this does not matter: it is about to end.
		_ = p.invoke(ctx, "StopProvider", &tfplugin6.StopProvider_Request{}, &tfplugin6.StopProvider_Response{})
		select {
		case <-p.drained:
		case <-p.child.gone():
		case <-ctx.Done():
		}
		cancel()
		if p.named.Load() > 0 && !p.isGone() { // with its keeper: who asked has only not been told yet
			p.left.Store(true)
			if p.child.leave() {
				return
			}
			p.left.Store(false)
		}
	}
	p.child.end()
	// What cannot be removed now is by the next Host.
	_ = os.RemoveAll(filepath.Clean(p.dir))
}

// isCutOff tells whether a process that lives cannot be spoken to any more.
func (p *process) isCutOff() bool { return p.child.isCutOff() }
