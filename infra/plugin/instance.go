package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// An Instance is one provider version with one configuration. It has one process, none while there
// are no calls, or for a while two, when a new process takes over from an old one.
type Instance struct {
	host     *Host
	clock    clock.WithDelayedExecution
	binary   Binary
	settings Settings
	limiter  *callLimiter
	// schemaOnly marks an Instance that is never configured and only loads the schemas.
	schemaOnly bool

	closing chan struct{}  // closed to cancel all waiting
	work    sync.WaitGroup // goroutines that start, watch and stop processes

	mu       sync.Mutex
	closed   bool
	catalog  *Catalog // set once
	mask     *mask    // with the configuration's secrets, once the Catalog is known
	current  *process // receives new calls; nil if there is no process
	starting *pendingStart
	running  map[*process]struct{}   // current, and retired ones with calls in flight
	warnings providerapi.Diagnostics // of the last configuration

	retry            wait.Backoff // the pause after the next failure
	notBefore        time.Time
	lastUsed         time.Time
	idleCheckPending bool // an idle check is scheduled
}

// A pendingStart is the start of a process, shared by all calls that wait for it.
type pendingStart struct {
	done chan struct{}
	err  error // valid once done is closed
}

var _ providerapi.Provider = (*Instance)(nil)

const (
	// minBackoff doubles with each failure in a row, up to maxBackoff.
	minBackoff = 200 * time.Millisecond
	maxBackoff = 30 * time.Second
	// stableAfter is the lifetime after which the end of a process counts as the first failure.
	stableAfter = time.Minute
)

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: minBackoff, Factor: 2, Steps: 20, Cap: maxBackoff}
}

func newInstance(h *Host, binary Binary, settings Settings) *Instance {
	settings.Limits = settings.Limits.withDefaults()
	settings.Idle = cmp.Or(settings.Idle, h.config.Idle)
	settings.RecycleAfter = cmp.Or(settings.RecycleAfter, h.config.RecycleAfter)
	i := &Instance{
		host: h, clock: h.config.Clock, binary: binary, settings: settings,
		limiter: newCallLimiter(settings.Limits, h.config.Clock),
		closing: make(chan struct{}), retry: newBackoff(),
		running: map[*process]struct{}{},
	}
	i.setCatalog(settings.Catalog)
	return i
}

// setCatalog sets the Catalog and derives from it which strings are secrets.
func (i *Instance) setCatalog(catalog *Catalog) {
	var secrets []string
	for _, value := range i.settings.Env {
		secrets = append(secrets, value)
	}
	if catalog != nil {
		secrets = append(secrets, secretsOf(&catalog.Config().Block, i.settings.Config)...)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.catalog, i.mask = catalog, newMask(secrets)
}

// Catalog returns the provider's schemas.
func (i *Instance) Catalog() providerapi.Catalog { return i.catalog }

// open starts the first process and returns the provider's diagnostics about its configuration.
func (i *Instance) open(ctx context.Context) (providerapi.Diagnostics, error) {
	p, err := i.acquire(ctx)
	var refused *rejectedConfigError
	if errors.As(err, &refused) {
		return refused.diagnostics, nil
	}
	if err != nil {
		return nil, err
	}
	i.release(p, false)
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.warnings, nil
}

// acquire returns a process for one call, starting one if necessary. The caller must release it.
func (i *Instance) acquire(ctx context.Context) (*process, error) {
	for {
		i.mu.Lock()
		if i.closed {
			i.mu.Unlock()
			return nil, i.notCalled(errStopping)
		}
		if i.current != nil && i.current.isGone() {
			i.lost(i.current)
		}
		if p := i.current; p != nil {
			p.calls++
			p.inFlight++
			if p.calls >= i.settings.RecycleAfter && i.starting == nil && !i.clock.Now().Before(i.notBefore) {
				i.beginStart()
			}
			i.mu.Unlock()
			return p, nil
		}
		if i.starting == nil {
			i.beginStart()
		}
		a := i.starting
		i.mu.Unlock()

		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			return nil, i.notCalled(ctx.Err())
		}
	}
}

func (i *Instance) notCalled(why error) error {
	return fmt.Errorf("provider %s: %w: %w", i.binary.Name, providerapi.ErrNotCalled, why)
}

// beginStart starts a process in the background, which becomes the current one. The lock is held.
func (i *Instance) beginStart() {
	a := &pendingStart{done: make(chan struct{})}
	i.starting = a
	wait := i.notBefore.Sub(i.clock.Now())
	i.work.Go(func() {
		p, warnings, err := i.startAfter(wait)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.starting = nil
		a.err = err
		if err != nil {
			i.backOff()
		} else {
			i.warnings = warnings
			i.replace(p)
		}
		close(a.done)
	})
}

// startAfter waits for the back-off, then starts and configures a process.
func (i *Instance) startAfter(wait time.Duration) (*process, providerapi.Diagnostics, error) {
	if wait > 0 {
		timer := i.clock.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-i.closing:
			return nil, nil, i.notCalled(errStopping)
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), i.host.config.StartTimeout,
		fmt.Errorf("it was not ready within %s", i.host.config.StartTimeout))
	defer cancel()
	go func() {
		select {
		case <-i.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	p, err := i.host.start(ctx, i.binary, i.settings, i.mask, i.schemaOnly)
	if err != nil {
		return nil, nil, err
	}
	warnings, err := i.prepare(ctx, p)
	if err != nil {
		close(p.drained) // it received no call
		p.stop(i.host.config.StopGrace)
		return nil, nil, err
	}
	return p, warnings, nil
}

// backOff delays the next start. The lock is held.
func (i *Instance) backOff() {
	i.notBefore = i.clock.Now().Add(i.retry.Step())
}

// replace makes a process the current one and retires its predecessor. The lock is held.
func (i *Instance) replace(p *process) {
	i.running[p] = struct{}{}
	if old := i.current; old != nil {
		i.retire(old)
	}
	i.current = p
	i.work.Go(func() {
		<-p.child.gone()
		i.forget(p)
	})
	if i.closed {
		i.retire(p)
		return
	}
	i.lastUsed = i.clock.Now()
	i.scheduleIdleCheck(i.settings.Idle)
}

// forget removes a process that has ended, for whatever reason.
func (i *Instance) forget(p *process) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.running, p)
	if i.current == p {
		i.lost(p)
	}
}

// lost handles the end of a process that should have lived. The lock is held.
func (i *Instance) lost(p *process) {
	if i.clock.Since(p.started) >= stableAfter {
		i.retry = newBackoff()
	}
	i.backOff()
	i.retire(p) // removes its directory
}

// retire stops a process once its calls have finished. The lock is held.
func (i *Instance) retire(p *process) {
	if p.retired {
		return
	}
	p.retired = true
	if i.current == p {
		i.current = nil
	}
	if p.inFlight == 0 {
		close(p.drained)
	}
	i.work.Go(func() {
		select {
		case <-p.drained:
		case <-p.child.gone():
		case <-i.closing:
		}
		p.stop(i.host.config.StopGrace)
	})
}

// release ends a call. A process with a hung call receives no new calls. It is stopped only when
// its other calls have finished, because they may be creating something that takes long.
func (i *Instance) release(p *process, hung bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p.inFlight--
	if hung {
		i.retire(p)
	}
	if p.inFlight > 0 {
		return
	}
	if p.retired {
		select {
		case <-p.drained:
		default:
			close(p.drained)
		}
		return
	}
	i.lastUsed = i.clock.Now()
}

// scheduleIdleCheck checks after a while whether the process is idle. The lock is held.
func (i *Instance) scheduleIdleCheck(after time.Duration) {
	if i.idleCheckPending {
		return
	}
	i.idleCheckPending = true
	// In a goroutine, because a clock may call the function while holding its own locks.
	i.clock.AfterFunc(after, func() { go i.stopIdle() })
}

func (i *Instance) stopIdle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.idleCheckPending = false
	if i.closed || i.current == nil {
		return
	}
	left := i.settings.Idle - i.clock.Since(i.lastUsed)
	if i.current.inFlight > 0 {
		left = i.settings.Idle
	}
	if left > 0 {
		i.scheduleIdleCheck(left)
		return
	}
	i.retire(i.current)
}

// Close stops the Instance. Waiting calls are rejected. Running calls get half of Config.StopGrace
// to finish, once the provider is asked to stop. When Close returns, no process is left, except one
// in which a keeper finishes named calls.
func (i *Instance) Close() {
	i.mu.Lock()
	if !i.closed {
		i.closed = true
		close(i.closing)
	}
	for p := range i.running {
		i.retire(p)
	}
	i.mu.Unlock()
	i.work.Wait()
	i.host.unregister(i)
}

// call makes one call. It waits for the limiter, acquires a process, and distinguishes a provider
// that hangs from a caller that cancelled.
func (i *Instance) call(ctx context.Context, spec callSpec, request, answer proto.Message) error {
	done, err := i.limiter.acquire(ctx, spec.remote, i.closing)
	if err != nil {
		return i.notCalled(err)
	}
	defer done()
	p, err := i.acquire(ctx)
	if err != nil {
		return err
	}
	err = i.invoke(ctx, p, spec, request, answer)
	if err == nil {
		return nil
	}
	if errors.Is(err, errNotBegun) {
		return i.notCalled(err)
	}
	return i.unavailable(spec, err)
}

func (i *Instance) unavailable(spec callSpec, why error) error {
	return fmt.Errorf("provider %s: %s of %s: %w: %w", i.binary.Name, spec.method, spec.about, providerapi.ErrUnavailable, why)
}

// errHung reports a call that exceeded its timeout.
var errHung = errors.New("the provider did not answer in time")

// invoke makes the call on a process. Deadlines are enforced here and not sent to the provider. The
// provider would give up at the same moment, and a hung provider could not be distinguished from
// one that gave up.
func (i *Instance) invoke(ctx context.Context, p *process, spec callSpec, request, answer proto.Message) error {
	bounded, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer time.AfterFunc(spec.timeout, func() { cancel(errHung) }).Stop()
	if !spec.finish {
		defer context.AfterFunc(ctx, func() { cancel(ctx.Err()) })()
	}
	err := p.call(bounded, spec, request, answer)
	why := context.Cause(bounded)
	hung := err != nil && errors.Is(why, errHung)
	i.release(p, hung)
	switch {
	case err == nil, errors.Is(err, errKnown), errors.Is(err, errNotBegun):
		return err
	case hung:
		return fmt.Errorf("%w (%s)", errHung, spec.timeout)
	case why != nil:
		return why
	}
	if p.handedOver.Load() {
		if spec.name == nil {
			return errStopping
		}
		return errHandedOver
	}
	err = p.explain(err)
	switch {
	case p.isGone():
		return &lostError{err}
	case p.isDisconnected():
		// The process lives, but its connection is broken for good.
		i.discard(p)
	}
	return err
}

// errHandedOver reports a call that was left to its keeper.
var errHandedOver = errors.New("Atoll is shutting down while the call continues; repeat the call with the same name to get its result")

// discard retires a process.
func (i *Instance) discard(p *process) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.retire(p)
}

// A lostError reports a call whose process ended.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// A callSpec describes a call apart from its messages.
type callSpec struct {
	method, about string
	timeout       time.Duration
	remote        bool      // can reach the infrastructure
	finish        bool      // is not interrupted when the caller cancels
	name          *callName // of a call that is made at most once; requires a keeper
}
