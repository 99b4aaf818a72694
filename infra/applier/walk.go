package applier

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/problems"
)

const (
	defaultParallelism = 10
	// progressEvery is how often OnProgress is called, and maxRunning the number of changes that it
	// lists.
	progressEvery = 250 * time.Millisecond
	maxRunning    = 10
)

// stepResult is the result of a step, worst last. A change has the result of its worst step.
type stepResult uint8

const (
	succeeded stepResult = iota
	notStarted
	blocked
	refused
	failed
	// postponed is for a step that must wait for another one of the same object.
	postponed
)

// stepEnd is the end of a step.
type stepEnd struct {
	node    int32
	result  stepResult
	action  change.Action // the action carried out
	problem *v1alpha1.Problem
	waitFor int32 // if postponed: the step to wait for
	err     error // an error that stops the Apply
}

// run is one run of Applier.Apply.
type run struct {
	e     *Applier
	opts  Options
	steps *stepSet

	mu         sync.Mutex
	states     map[expr.Ref]*infra.State // by this run; nil if deleted
	dataValues map[expr.Ref]cty.Value    // data sources
	values     map[expr.Ref]value        // of resources
	ended      []bool
	warnings   problems.Warnings

	// The fields below belong to the walk's goroutine.
	progress   *graph.Walk
	results    chan stepEnd
	out        Result
	running    map[int32]time.Time
	busy       map[expr.Ref]int32
	waiting    map[int32][]int32
	retries    []int32 // steps that waited for another of the same object
	lastReport time.Time

	// stalled means that no step is left to wait for. It is only written while no step runs.
	stalled bool
}

func newRun(e *Applier, opts Options, s *stepSet) *run {
	if opts.Parallelism <= 0 {
		opts.Parallelism = defaultParallelism
	}
	return &run{
		e: e, opts: opts, steps: s,
		states: map[expr.Ref]*infra.State{}, dataValues: map[expr.Ref]cty.Value{}, values: map[expr.Ref]value{}, ended: make([]bool, len(s.all)),
		results: make(chan stepEnd, opts.Parallelism),
		running: map[int32]time.Time{}, busy: map[expr.Ref]int32{}, waiting: map[int32][]int32{},
	}
}

// walk runs the steps in dependency order.
func (r *run) walk(ctx context.Context) (*Result, error) {
	progress, err := r.steps.order.graph.Walk(graph.ByPath, nil)
	if err != nil {
		return nil, err
	}
	r.progress = progress
	for _, p := range r.steps.byRef {
		if p.change != nil {
			r.out.Total++
		}
		r.out.Total += int64(len(p.deposed))
	}
	var stop error
	canceled, over, late := r.opts.Canceled, ctx.Done(), (<-chan time.Time)(nil)
	quiet := false // start no further steps
	for {
		if !quiet {
			select {
			case <-canceled: // The select below picks at random, and may have taken results first.
				canceled, quiet = nil, true
			default:
				r.start(ctx)
			}
		}
		if len(r.running) == 0 {
			if !quiet && r.releaseWaiting() {
				continue
			}
			break
		}
		select {
		case e := <-r.results:
			if e.err != nil && stop == nil {
				stop, quiet = e.err, true
			}
			r.finishStep(e)
		case <-canceled:
			canceled, quiet = nil, true
		case <-over:
			over, quiet, stop = nil, true, ctx.Err()
			late = r.e.after(gracePeriod)
		case <-late:
			// Running steps are pending in the journal, and write their outcome if they end.
			return r.finish(), stop
		}
		r.report(false)
	}
	if stop == nil && progress.Left() > 0 {
		stop = ctx.Err()
	}
	return r.finish(), stop
}

// start starts steps up to the parallelism.
func (r *run) start(ctx context.Context) {
	for len(r.running) < r.opts.Parallelism {
		n, ok := r.next()
		if !ok {
			return
		}
		if other, busy := r.busy[r.steps.all[n].ref]; busy {
			r.waiting[other] = append(r.waiting[other], n)
			continue
		}
		r.busy[r.steps.all[n].ref] = n
		r.running[n] = r.e.Clock.Now()
		go func() { r.results <- r.runStep(ctx, n) }()
	}
}

func (r *run) next() (int32, bool) {
	if len(r.retries) > 0 {
		n := r.retries[0]
		r.retries = r.retries[1:]
		return n, true
	}
	return r.progress.Next()
}

// finishStep handles the end of a step.
func (r *run) finishStep(e stepEnd) {
	s := &r.steps.all[e.node]
	delete(r.running, e.node)
	delete(r.busy, s.ref)
	switch e.result {
	case postponed:
		// If the other step will not run, the retry finds that out.
		switch r.progress.State(e.waitFor) {
		case graph.Waiting, graph.Ready, graph.Running:
			r.waiting[e.waitFor] = append(r.waiting[e.waitFor], e.node)
		default:
			r.retries = append(r.retries, e.node)
		}
	case notStarted:
		// It keeps its state in the walk, in which no further step starts.
		r.release(e.node)
		return
	case succeeded:
		r.countStep(e.node, succeeded, e.action)
		r.progress.Done(e.node)
	default:
		r.countStep(e.node, e.result, e.action)
		for _, n := range r.progress.Failed(e.node) {
			r.countStep(n, blocked, "")
			r.release(n)
		}
	}
	if e.problem != nil {
		r.out.Problems = append(r.out.Problems, *e.problem)
	}
	r.release(e.node)
}

// release retries the steps that waited for a step of the same object.
func (r *run) release(n int32) {
	r.retries = append(r.retries, r.waiting[n]...)
	delete(r.waiting, n)
}

// releaseWaiting retries steps that wait for one that will not end. It returns false if there are
// none.
func (r *run) releaseWaiting() bool {
	if r.stalled {
		return false
	}
	r.stalled = true
	for _, waiting := range r.waiting {
		r.retries = append(r.retries, waiting...)
	}
	clear(r.waiting)
	slices.Sort(r.retries)
	return len(r.retries) > 0
}

// countStep counts a change when its last step has ended.
func (r *run) countStep(n int32, as stepResult, action change.Action) {
	r.mu.Lock()
	r.ended[n] = true
	r.mu.Unlock()
	c := r.steps.all[n].approvedChange
	c.worst = max(c.worst, as)
	if c.left--; c.left > 0 {
		return
	}
	c.sealed = nil
	r.forgetState(c.ref)
	switch c.worst {
	case succeeded:
		r.out.Succeeded++
		r.countAction(c, action)
	case blocked:
		r.out.Blocked++
	case refused:
		r.out.Refused++
	case failed:
		r.out.Failed++
	}
}

// countAction counts a completed change by its action.
func (r *run) countAction(c *approvedChange, action change.Action) {
	if c.action == change.Replace {
		action = change.Replace
	}
	if c.importing {
		r.out.Summary.Import++
	}
	if c.movedFrom != nil && c.address.Deposed == "" {
		r.out.Summary.Move++
	}
	if c.drifted {
		r.out.Summary.Drift++
	}
	switch action {
	case change.Create:
		r.out.Summary.Create++
	case change.Update:
		r.out.Summary.Update++
	case change.Replace:
		r.out.Summary.Replace++
		if c.keepOld {
			r.out.Summary.Kept++
		}
	case change.Delete:
		r.out.Summary.Delete++
	case change.Read:
		r.out.Summary.Read++
	case change.Forget:
		r.out.Summary.Forget++
	case change.NoOp:
		r.out.Summary.NoOp++
	case change.Place:
		r.out.Summary.Place++
	}
}

// finish returns the final result.
func (r *run) finish() *Result {
	ended := r.out.Succeeded + r.out.Failed + r.out.Refused + r.out.Blocked
	r.out.Canceled = r.out.Total - ended
	slices.SortFunc(r.out.Problems, problems.Compare)
	r.report(true)
	out := r.snapshot()
	return &out
}

// report calls OnProgress, at most once per interval.
func (r *run) report(last bool) {
	if r.opts.OnProgress == nil || !last && r.e.Clock.Since(r.lastReport) < progressEvery {
		return
	}
	r.lastReport = r.e.Clock.Now()
	r.opts.OnProgress(r.snapshot())
}

// snapshot returns a copy of the result, which the caller keeps.
func (r *run) snapshot() Result {
	out := r.out
	out.Problems = slices.Clone(r.out.Problems)
	r.mu.Lock()
	out.Warnings = r.warnings.List()
	r.mu.Unlock()
	nodes := make([]int32, 0, len(r.running))
	for n := range r.running {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b int32) int { return cmp.Or(r.running[a].Compare(r.running[b]), cmp.Compare(a, b)) })
	for _, n := range nodes[:min(len(nodes), maxRunning)] {
		out.Running = append(out.Running, r.steps.all[n].address)
	}
	return out
}

// state returns the state of a step's object: as written by this run, or from the Inventory.
func (r *run) state(n *step) *infra.State { return r.stateOf(n.ref) }

func (r *run) stateOf(ref expr.Ref) *infra.State {
	r.mu.Lock()
	s, ok := r.states[ref]
	r.mu.Unlock()
	if ok {
		return s
	}
	return r.e.Inventory.State(ref)
}

// setState records a stored state; nil if it was deleted.
func (r *run) setState(ref expr.Ref, s *infra.State) {
	if s == nil {
		r.e.Inventory.RemoveState(ref)
	} else {
		s = r.e.Inventory.SetState(s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[ref] = s
	delete(r.values, ref)
}

// forgetState drops the cached state of a resource without further steps: the Inventory has it. A
// deletion is kept, because the watch may still deliver an older version to the Inventory.
func (r *run) forgetState(ref expr.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states[ref] != nil {
		delete(r.states, ref)
	}
}

// hasEnded reports whether a step has ended, with any result.
func (r *run) hasEnded(n int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[n]
}
