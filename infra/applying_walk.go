package infra

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

const (
	defaultChanges = 10
	// toldEvery is how often Progress is told, and mostRunning how many it is told of.
	toldEvery   = 250 * time.Millisecond
	mostRunning = 10
)

// result is what came of a step, the worse the higher: a change is as its worst step.
type result uint8

const (
	succeeded result = iota
	notBegun
	blocked
	refused
	failed
	// later is of a step that cannot be done before another of the same object.
	later
)

// ending is how a step came to its end.
type ending struct {
	node    int32
	result  result
	done    plan.Action // what was done
	problem *v1alpha1.Problem
	behind  int32 // of later: the step that comes first
	err     error // what keeps all of it from going on
}

// carrier is one Apply on its way.
type carrier struct {
	e     *Engine
	what  Applying
	steps *steps

	mu      sync.Mutex
	written map[reference.Ref]*State    // by this run; nil if it was deleted
	read    map[reference.Ref]cty.Value // data sources
	values  map[reference.Ref]value     // of resources
	ended   []bool
	warned  warnings

	// What follows is the walk's alone.
	progress *graph.Progress
	results  chan ending
	out      Applied
	running  map[int32]time.Time
	busy     map[reference.Ref]int32
	behind   map[int32][]int32
	again    []int32 // those that waited for another of the same object
	told     time.Time

	// alone says that nothing is left that a step could wait for. It is only written while no step runs.
	alone bool
}

func newCarrier(e *Engine, what Applying, s *steps) *carrier {
	if what.Parallelism <= 0 {
		what.Parallelism = defaultChanges
	}
	return &carrier{
		e: e, what: what, steps: s,
		written: map[reference.Ref]*State{}, read: map[reference.Ref]cty.Value{}, values: map[reference.Ref]value{}, ended: make([]bool, len(s.all)),
		results: make(chan ending, what.Parallelism),
		running: map[int32]time.Time{}, busy: map[reference.Ref]int32{}, behind: map[int32][]int32{},
	}
}

func (e *Engine) log() *slog.Logger {
	if e.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return e.Log
}

// walk carries out the steps, each after what it waits for.
func (r *carrier) walk(ctx context.Context) (*Applied, error) {
	progress, err := r.steps.order.graph.Walk(graph.ByPath, nil)
	if err != nil {
		return nil, err
	}
	r.progress = progress
	for _, p := range r.steps.of {
		if p.change != nil {
			r.out.Total++
		}
		r.out.Total += int64(len(p.deposed))
	}
	var stop error
	canceled, over, late := r.what.Canceled, ctx.Done(), (<-chan time.Time)(nil)
	quiet := false // nothing else begins
	for {
		if !quiet {
			select {
			case <-canceled: // The select below has no preference, and may have taken in results first.
				canceled, quiet = nil, true
			default:
				r.start(ctx)
			}
		}
		if len(r.running) == 0 {
			if !quiet && r.unpark() {
				continue
			}
			break
		}
		select {
		case e := <-r.results:
			if e.err != nil && stop == nil {
				stop, quiet = e.err, true
			}
			r.ends(e)
		case <-canceled:
			canceled, quiet = nil, true
		case <-over:
			over, quiet, stop = nil, true, ctx.Err()
			late = r.e.after(grace)
		case <-late:
			// What still runs is in the journal as begun, and is written down if it ends.
			return r.finish(), stop
		}
		r.tell(false)
	}
	if stop == nil && progress.Left() > 0 {
		stop = ctx.Err()
	}
	return r.finish(), stop
}

// start begins as many steps as there may be at a time.
func (r *carrier) start(ctx context.Context) {
	for len(r.running) < r.what.Parallelism {
		n, there := r.next()
		if !there {
			return
		}
		if other, busy := r.busy[r.steps.all[n].ref]; busy {
			r.behind[other] = append(r.behind[other], n)
			continue
		}
		r.busy[r.steps.all[n].ref] = n
		r.running[n] = r.e.Clock.Now()
		go func() { r.results <- r.carryOut(ctx, n) }()
	}
}

func (r *carrier) next() (int32, bool) {
	if len(r.again) > 0 {
		n := r.again[0]
		r.again = r.again[1:]
		return n, true
	}
	return r.progress.Next()
}

// ends takes in what came of a step.
func (r *carrier) ends(e ending) {
	s := &r.steps.all[e.node]
	delete(r.running, e.node)
	delete(r.busy, s.ref)
	switch e.result {
	case later:
		// If the other will not be done in this run, this one is told so when it is tried again.
		switch r.progress.State(e.behind) {
		case graph.Waiting, graph.Ready, graph.Running:
			r.behind[e.behind] = append(r.behind[e.behind], e.node)
		default:
			r.again = append(r.again, e.node)
		}
	case notBegun:
		// It stays as it is in the walk, in which nothing else begins.
		r.release(e.node)
		return
	case succeeded:
		r.counted(e.node, succeeded, e.done)
		r.progress.Done(e.node)
	default:
		r.counted(e.node, e.result, e.done)
		for _, n := range r.progress.Failed(e.node) {
			r.counted(n, blocked, "")
			r.release(n)
		}
	}
	if e.problem != nil {
		r.out.Problems = append(r.out.Problems, *e.problem)
	}
	r.release(e.node)
}

// release lets those try again that waited for a step of the same object.
func (r *carrier) release(n int32) {
	r.again = append(r.again, r.behind[n]...)
	delete(r.behind, n)
}

// unpark has steps go on that wait for what will not come to an end any more; false if there are none.
func (r *carrier) unpark() bool {
	if r.alone {
		return false
	}
	r.alone = true
	for _, waiting := range r.behind {
		r.again = append(r.again, waiting...)
	}
	clear(r.behind)
	slices.Sort(r.again)
	return len(r.again) > 0
}

// counted counts a change when the last of its steps has come to an end.
func (r *carrier) counted(n int32, as result, done plan.Action) {
	r.mu.Lock()
	r.ended[n] = true
	r.mu.Unlock()
	c := r.steps.all[n].change
	c.worst = max(c.worst, as)
	if c.left--; c.left > 0 {
		return
	}
	c.sealed = nil
	r.forget(c.ref)
	switch c.worst {
	case succeeded:
		r.out.Succeeded++
		r.count(c, done)
	case blocked:
		r.out.Blocked++
	case refused:
		r.out.Refused++
	case failed:
		r.out.Failed++
	}
}

// count says what was done.
func (r *carrier) count(c *change, done plan.Action) {
	if c.action == plan.Replace {
		done = plan.Replace
	}
	if c.importing {
		r.out.Done.Import++
	}
	if c.drifted {
		r.out.Done.Drift++
	}
	switch done {
	case plan.Create:
		r.out.Done.Create++
	case plan.Update:
		r.out.Done.Update++
	case plan.Replace:
		r.out.Done.Replace++
	case plan.Delete:
		r.out.Done.Delete++
	case plan.Read:
		r.out.Done.Read++
	case plan.Forget:
		r.out.Done.Forget++
	case plan.NoOp:
		r.out.Done.NoOp++
	case plan.Place:
		r.out.Done.Place++
	}
}

// finish is what came of all of it.
func (r *carrier) finish() *Applied {
	ended := r.out.Succeeded + r.out.Failed + r.out.Refused + r.out.Blocked
	r.out.Canceled = r.out.Total - ended
	slices.SortFunc(r.out.Problems, compareProblems)
	r.tell(true)
	out := r.applied()
	return &out
}

// tell says how far it is, not too often.
func (r *carrier) tell(last bool) {
	if r.what.Progress == nil || !last && r.e.Clock.Since(r.told) < toldEvery {
		return
	}
	r.told = r.e.Clock.Now()
	r.what.Progress(r.applied())
}

// applied is a copy: whoever is told keeps it.
func (r *carrier) applied() Applied {
	out := r.out
	out.Problems = slices.Clone(r.out.Problems)
	r.mu.Lock()
	out.Warnings = r.warned.list()
	r.mu.Unlock()
	nodes := make([]int32, 0, len(r.running))
	for n := range r.running {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b int32) int { return cmp.Or(r.running[a].Compare(r.running[b]), cmp.Compare(a, b)) })
	for _, n := range nodes[:min(len(nodes), mostRunning)] {
		out.Running = append(out.Running, r.steps.all[n].address)
	}
	return out
}

// state is what is stored of the object of a step: as this run wrote it, or as the World says.
func (r *carrier) state(n *task) *State { return r.stateOf(n.ref) }

func (r *carrier) stateOf(ref reference.Ref) *State {
	r.mu.Lock()
	s, there := r.written[ref]
	r.mu.Unlock()
	if there {
		return s
	}
	return r.e.World.State(ref)
}

// remember takes in what was stored; nil that nothing is any more.
func (r *carrier) remember(n *task, s *State) {
	if s == nil {
		r.e.World.RemoveState(n.ref)
	} else {
		s = r.e.World.SetState(s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written[n.ref] = s
	delete(r.values, n.ref)
}

// forget lets go what was written of a resource of which nothing more is done: the World has it. What was deleted stays: the World may be
// told of it once more, by what was under way before.
func (r *carrier) forget(ref reference.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written[ref] != nil {
		delete(r.written, ref)
	}
}

// isEnded tells whether a step has come to an end, well or not.
func (r *carrier) isEnded(n int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[n]
}
