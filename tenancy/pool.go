package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
)

// ErrEnded is returned for a workspace that is being deleted.
var ErrEnded = errors.New("the workspace is being deleted")

// ErrStopping is returned when the server is stopping.
var ErrStopping = errors.New("the server is stopping")

// Pool has the workspaces that are awake, by their UIDs. Any number of requests may use one. It is closed when none has used it for
// the idle time: a request that comes later opens it again.
type Pool[W any] struct {
	config Config[W]
	// base is the context of work that outlives the request that began it.
	base context.Context
	// opening has an element for each workspace that is being opened.
	opening chan struct{}

	mu    sync.Mutex
	awake map[string]*entry[W]
	ended bool // the pool is closed
}

// Config configures a Pool.
type Config[W any] struct {
	// Open opens a workspace. It is called once at a time for each, and for different ones concurrently. Its context is not that of a
	// request, because other requests wait for the result too; it ends after OpenTimeout.
	Open func(ctx context.Context, uid string) (W, error)
	// Close closes it, when no request uses it any more.
	Close func(uid string, w W)
	// Idle is how long an unused workspace stays open.
	Idle time.Duration
	// OpenTimeout bounds Open.
	OpenTimeout time.Duration
	// Grace is how long requests may take to end when the server stops. Then their contexts end.
	Grace time.Duration
	// MaxOpening bounds how many workspaces are being opened at the same time. More requests wait.
	MaxOpening int
	Clock      clock.WithTicker
	Metrics    *Metrics
}

// entry is a workspace that is awake, or being opened or closed.
type entry[W any] struct {
	// opened is closed when w or err is set; closed when the workspace is closed.
	opened, closed chan struct{}
	w              W
	err            error
	// life ends when the workspace is being deleted.
	life context.Context
	end  context.CancelCauseFunc

	// The fields below belong to the pool's lock.
	uses     int
	lastUsed time.Time
	deleted  bool
	closing  bool
}

// NewPool returns a pool. The caller runs it. The pool uses only the values of ctx.
func NewPool[W any](ctx context.Context, config Config[W]) *Pool[W] {
	return &Pool[W]{config: config, base: context.WithoutCancel(ctx), opening: make(chan struct{}, config.MaxOpening), awake: map[string]*entry[W]{}}
}

// Acquire returns an open workspace for one request. The context of the request is to be replaced by the returned one, which ends
// when the workspace is being deleted. release must be called when the request is over.
// Errors: ErrEnded, those of Open, and that of ctx.
func (p *Pool[W]) Acquire(ctx context.Context, uid string) (in context.Context, w W, release func(), err error) {
	e, err := p.enter(ctx, uid)
	if err != nil {
		return nil, w, nil, err
	}
	leave := sync.OnceFunc(func() { p.leave(uid, e) })
	select {
	case <-e.opened:
	case <-ctx.Done():
		leave()
		return nil, w, nil, ctx.Err()
	}
	if e.err != nil {
		leave()
		return nil, w, nil, e.err
	}
	in, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(context.Cause(e.life)) })
	return in, e.w, func() {
		stop()
		cancel(nil)
		leave()
	}, nil
}

// enter counts a request in, and begins to open the workspace if it is not awake.
func (p *Pool[W]) enter(ctx context.Context, uid string) (*entry[W], error) {
	for {
		p.mu.Lock()
		e := p.awake[uid]
		switch {
		case p.ended:
			p.mu.Unlock()
			return nil, ErrStopping
		case e == nil:
			e = &entry[W]{opened: make(chan struct{}), closed: make(chan struct{}), uses: 1}
			e.life, e.end = context.WithCancelCause(p.base)
			p.awake[uid] = e
			p.mu.Unlock()
			go p.open(uid, e)
			return e, nil
		case e.deleted:
			p.mu.Unlock()
			return nil, ErrEnded
		case !e.closing:
			e.uses++
			p.mu.Unlock()
			return e, nil
		}
		p.mu.Unlock()
		// It has been idle and is being closed at this moment: open it again after that.
		select {
		case <-e.closed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Pool[W]) open(uid string, e *entry[W]) {
	defer close(e.opened)
	p.opening <- struct{}{}
	defer func() { <-p.opening }()
	ctx, cancel := context.WithTimeout(e.life, p.config.OpenTimeout)
	defer cancel()
	began := p.config.Clock.Now()
	w, err := p.config.Open(ctx, uid)
	p.config.Metrics.opened(p.config.Clock.Since(began), err)
	e.w, e.err = w, err
	if err == nil {
		return
	}
	e.err = fmt.Errorf("open workspace %s: %w", uid, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !e.closing { // otherwise close is waiting for it
		delete(p.awake, uid) // the next request tries again
		e.closing = true
		close(e.closed)
	}
}

// leave counts a request out.
func (p *Pool[W]) leave(uid string, e *entry[W]) {
	p.mu.Lock()
	e.uses--
	e.lastUsed = p.config.Clock.Now()
	last := e.uses == 0 && (e.deleted || p.ended) && !e.closing
	e.closing = e.closing || last
	p.mu.Unlock()
	if last {
		p.close(uid, e)
	}
}

// close closes a workspace that nothing uses. The caller has set closing.
func (p *Pool[W]) close(uid string, e *entry[W]) {
	<-e.opened
	if e.err == nil {
		p.config.Close(uid, e.w)
		p.config.Metrics.closed()
	}
	e.end(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.awake, uid)
	close(e.closed)
}

// Run closes idle workspaces until ctx ends. Then it closes all of them, when their requests have ended.
func (p *Pool[W]) Run(ctx context.Context) error {
	ticker := p.config.Clock.NewTicker(max(p.config.Idle/4, time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			p.closeIdle(p.config.Clock.Now().Add(-p.config.Idle))
		case <-ctx.Done():
			p.stop()
			return nil
		}
	}
}

// closeIdle closes the workspaces that have not been used since then.
func (p *Pool[W]) closeIdle(since time.Time) {
	type candidate struct {
		uid string
		e   *entry[W]
		// used is the last use.
		used time.Time
	}
	var idle []candidate
	p.mu.Lock()
	for uid, e := range p.awake {
		if e.isIdle(since) {
			idle = append(idle, candidate{uid, e, e.lastUsed})
		}
	}
	p.mu.Unlock()
	// Close may use another workspace, such as the parent, which was last used a moment later. So none is marked before its turn.
	slices.SortFunc(idle, func(a, b candidate) int { return a.used.Compare(b.used) })
	var closers errgroup.Group
	closers.SetLimit(closersAtOnce)
	for _, c := range idle {
		closers.Go(func() error {
			p.mu.Lock()
			still := c.e.isIdle(since)
			c.e.closing = c.e.closing || still
			p.mu.Unlock()
			if still {
				p.close(c.uid, c.e)
			}
			return nil
		})
	}
	_ = closers.Wait() // there are no errors
}

// closersAtOnce is how many idle workspaces close at the same time. Each writes its usage, and new ones may be opened faster than one after another.
const closersAtOnce = 8

// isIdle reports whether nothing uses the workspace, or has since then. The caller holds the pool's lock.
func (e *entry[W]) isIdle(since time.Time) bool {
	return e.uses == 0 && !e.closing && !e.lastUsed.After(since)
}

// End ends all requests to a workspace that is being deleted, and returns when it is closed, or with ctx's error. Call it after Open
// has begun to fail for this workspace: a request that comes later would open it again.
func (p *Pool[W]) End(ctx context.Context, uid string) error {
	p.mu.Lock()
	e := p.awake[uid]
	if e == nil {
		p.mu.Unlock()
		return nil
	}
	e.deleted = true
	idle := e.uses == 0 && !e.closing
	e.closing = e.closing || idle
	p.mu.Unlock()
	e.end(ErrEnded)
	if idle {
		p.close(uid, e)
	}
	select {
	case <-e.closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close workspace %s: requests still use it: %w", uid, ctx.Err())
	}
}

// stop ends the pool: each workspace is closed when its last request is over. Watches would not end by themselves.
func (p *Pool[W]) stop() {
	p.mu.Lock()
	p.ended = true
	all, idle := map[string]*entry[W]{}, map[string]*entry[W]{}
	for uid, e := range p.awake {
		all[uid] = e
		if e.uses == 0 && !e.closing {
			e.closing = true
			idle[uid] = e
		}
	}
	p.mu.Unlock()
	for uid, e := range idle {
		p.close(uid, e)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, e := range all {
			<-e.closed
		}
	}()
	select {
	case <-closed:
		return
	case <-p.config.Clock.After(p.config.Grace):
	}
	for _, e := range all {
		e.end(ErrStopping)
	}
	<-closed
}

// Awake returns how many workspaces are open.
func (p *Pool[W]) Awake() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.awake)
}
