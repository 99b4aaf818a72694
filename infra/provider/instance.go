package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/contract"
)

// An Instance is a provider of one version with one configuration. Behind it is
// one process, or none while nobody calls; for a while two, when one takes over
// from another.
type Instance struct {
	host     *Host
	clock    clock.WithDelayedExecution
	binary   Binary
	settings Settings
	turns    *turns
	// schemaOnly is of one that is never configured, only asked what it has.
	schemaOnly bool

	closing chan struct{}  // closed to call off all waiting
	work    sync.WaitGroup // what starts, watches and stops processes

	mu       sync.Mutex
	closed   bool
	catalog  *Catalog // set once
	mask     *mask    // with the configuration's secrets, once the Catalog tells which they are
	current  *process // takes calls; nil if none does
	starting *attempt
	running  map[*process]struct{} // current, and those that finish what they have
	warnings contract.Diagnostics  // of the last configuration

	failures  int // in a row
	notBefore time.Time
	lastUsed  time.Time
	watched   bool // a timer looks whether there is anything to do
}

// An attempt is the start of a process, for all that wait for it.
type attempt struct {
	done chan struct{}
	err  error // once done
}

var _ contract.Provider = (*Instance)(nil)

const (
	// firstBackOff doubles with each failure in a row, up to lastBackOff.
	firstBackOff = 200 * time.Millisecond
	lastBackOff  = 30 * time.Second
	// soundAfter is how long a process has to live for its end to count as the first.
	soundAfter = time.Minute
)

func newInstance(h *Host, binary Binary, settings Settings) *Instance {
	settings.Limits = settings.Limits.withDefaults()
	settings.Idle = cmp.Or(settings.Idle, h.config.Idle)
	settings.RecycleAfter = cmp.Or(settings.RecycleAfter, h.config.RecycleAfter)
	i := &Instance{
		host: h, clock: h.config.Clock, binary: binary, settings: settings,
		turns:   newTurns(settings.Limits, h.config.Clock),
		closing: make(chan struct{}),
		running: map[*process]struct{}{},
	}
	i.know(settings.Catalog)
	return i
}

// know takes the Catalog, and with it which strings are secrets.
func (i *Instance) know(catalog *Catalog) {
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

// Catalog is what the provider has.
func (i *Instance) Catalog() contract.Catalog { return i.catalog }

// open starts the first process, for what the provider says of its configuration.
func (i *Instance) open(ctx context.Context) (contract.Diagnostics, error) {
	p, err := i.acquire(ctx)
	var refused *refusal
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

// acquire gives a process for one call, starting one if there is none. It has to
// be released.
func (i *Instance) acquire(ctx context.Context) (*process, error) {
	for {
		i.mu.Lock()
		if i.closed {
			i.mu.Unlock()
			return nil, i.notAsked(errStopping)
		}
		if i.current != nil && i.current.isGone() {
			i.lost(i.current)
		}
		if p := i.current; p != nil {
			p.calls++
			p.inFlight++
			if p.calls >= i.settings.RecycleAfter && i.starting == nil && !i.clock.Now().Before(i.notBefore) {
				i.begin()
			}
			i.mu.Unlock()
			return p, nil
		}
		if i.starting == nil {
			i.begin()
		}
		a := i.starting
		i.mu.Unlock()

		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			return nil, i.notAsked(ctx.Err())
		}
	}
}

func (i *Instance) notAsked(why error) error {
	return fmt.Errorf("provider %s: %w: %w", i.binary.Name, contract.ErrNotAsked, why)
}

// begin has a process started, which becomes the current one. The lock is held.
func (i *Instance) begin() {
	a := &attempt{done: make(chan struct{})}
	i.starting = a
	wait := i.notBefore.Sub(i.clock.Now())
	i.work.Go(func() {
		p, warnings, err := i.startAfter(wait)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.starting = nil
		a.err = err
		if err != nil {
			i.failed()
		} else {
			i.warnings = warnings
			i.replace(p)
		}
		close(a.done)
	})
}

// startAfter starts and configures a process, when the back-off is over.
func (i *Instance) startAfter(wait time.Duration) (*process, contract.Diagnostics, error) {
	if wait > 0 {
		timer := i.clock.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-i.closing:
			return nil, nil, i.notAsked(errStopping)
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), i.host.config.StartTimeout,
		fmt.Errorf("it did not get ready within %s", i.host.config.StartTimeout))
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
		close(p.drained) // no call got to it
		p.stop(i.host.config.StopGrace)
		return nil, nil, err
	}
	return p, warnings, nil
}

// failed puts the next start off. The lock is held.
func (i *Instance) failed() {
	wait := min(lastBackOff, firstBackOff<<min(i.failures, 10))
	i.failures++
	i.notBefore = i.clock.Now().Add(wait)
}

// replace makes a process the current one. The one before finishes what it has. The
// lock is held.
func (i *Instance) replace(p *process) {
	i.running[p] = struct{}{}
	if old := i.current; old != nil {
		i.retire(old)
	}
	i.current = p
	i.work.Go(func() {
		<-p.child.gone()
		i.ended(p)
	})
	if i.closed {
		i.retire(p)
		return
	}
	i.lastUsed = i.clock.Now()
	i.watch(i.settings.Idle)
}

// ended forgets a process that is gone, whoever wanted that.
func (i *Instance) ended(p *process) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.running, p)
	if i.current == p {
		i.lost(p)
	}
}

// lost is of a process that was to live. The lock is held.
func (i *Instance) lost(p *process) {
	if i.clock.Since(p.started) >= soundAfter {
		i.failures = 0
	}
	i.failed()
	i.retire(p) // for what it leaves behind
}

// retire lets a process finish what it has, and stops it. The lock is held.
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

// release ends a call. A process in which one hung gets no more of them; it ends
// when its other calls have, which may be making something that takes long.
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

// watch looks after a while whether the process is idle. The lock is held.
func (i *Instance) watch(after time.Duration) {
	if i.watched {
		return
	}
	i.watched = true
	// A goroutine, because a clock may call it while it holds locks of its own.
	i.clock.AfterFunc(after, func() { go i.stopIdle() })
}

func (i *Instance) stopIdle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watched = false
	if i.closed || i.current == nil {
		return
	}
	left := i.settings.Idle - i.clock.Since(i.lastUsed)
	if i.current.inFlight > 0 {
		left = i.settings.Idle
	}
	if left > 0 {
		i.watch(left)
		return
	}
	i.retire(i.current)
}

// Close stops the Instance. Calls that wait are refused; those that run get half of
// Config.StopGrace to end, once the provider is asked to stop. When it returns no process
// is left, unless a keeper finishes calls that have names.
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
	i.host.dismiss(i)
}

// ask makes one call: it waits for a turn, takes a process, and tells a provider that
// hangs from a caller that gave up.
func (i *Instance) ask(ctx context.Context, q question, request, answer proto.Message) error {
	done, err := i.turns.take(ctx, q.remote, i.closing)
	if err != nil {
		return i.notAsked(err)
	}
	defer done()
	p, err := i.acquire(ctx)
	if err != nil {
		return err
	}
	err = i.invoke(ctx, p, q, request, answer)
	if err == nil {
		return nil
	}
	if errors.Is(err, errNotBegun) {
		return i.notAsked(err)
	}
	return i.unavailable(q, err)
}

func (i *Instance) unavailable(q question, why error) error {
	return fmt.Errorf("provider %s: %s of %s: %w: %w", i.binary.Name, q.method, q.about, contract.ErrUnavailable, why)
}

// errHung is of a call that took longer than any should.
var errHung = errors.New("it did not answer in time")

// invoke makes the call. Deadlines are kept here and not told to the provider: it would give
// up in the same moment, and who did could not be told apart.
func (i *Instance) invoke(ctx context.Context, p *process, q question, request, answer proto.Message) error {
	bounded, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer time.AfterFunc(q.timeout, func() { cancel(errHung) }).Stop()
	if !q.finish {
		defer context.AfterFunc(ctx, func() { cancel(ctx.Err()) })()
	}
	err := p.ask(bounded, q, request, answer)
	why := context.Cause(bounded)
	hung := err != nil && errors.Is(why, errHung)
	i.release(p, hung)
	switch {
	case err == nil, errors.Is(err, errKnown), errors.Is(err, errNotBegun):
		return err
	case hung:
		return fmt.Errorf("%w: within %s", errHung, q.timeout)
	case why != nil:
		return why
	}
	if p.left.Load() {
		if q.name == nil {
			return errStopping
		}
		return errGoesOn
	}
	err = p.explain(err)
	switch {
	case p.isGone():
		return &lostError{err}
	case p.isCutOff():
		// It lives, but nobody can speak with it any more.
		i.discard(p)
	}
	return err
}

// errGoesOn is of a call that was left to its keeper.
var errGoesOn = errors.New("Atoll is stopping, and what makes the call is not: ask for it again, by the same name")

// discard has a process take no more calls.
func (i *Instance) discard(p *process) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.retire(p)
}

// A lostError is of a call whose process has ended.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// A question is what goes with a call beside its messages.
type question struct {
	method, about string
	timeout       time.Duration
	remote        bool      // can reach what the provider manages
	finish        bool      // is not broken off when the caller gives up
	name          *callName // of one that is made once only, if it is kept
}
