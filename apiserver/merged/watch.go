package merged

import (
	"context"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

// mergedWatch is a watch of a resource in many workspaces. Each has a member, which keeps it open. One goroutine (run) sends what
// members report, and alone knows where the watch stands.
//
// A workspace that is added is a new member. One that is lost ends the watch with 410, as does a change that leaves no certainty: clients list
// again.
type mergedWatch struct {
	Request
	key   string
	opts  storage.ListOptions
	ctx   context.Context
	end   context.CancelFunc
	out   chan watch.Event
	news  chan memberNews
	state *merger
	// joined are all workspaces with a member, by their UIDs, also those that do not have the resource.
	joined map[string]memberState
	// next is when to send a bookmark, zero if none is due.
	next time.Time
	// numbers are the last positions that this watch has sent. Only the last ones can still be the client's.
	numbers []uint64
}

// memberState is a workspace with a member. seen is the last that was known of it. ended is set if its member has ended because it does not
// have the resource: a change of the object that names the workspace begins another one.
type memberState struct {
	Ref
	seen  int64
	ended bool
}

// positionsOfWatch is how many positions of a watch are remembered.
const positionsOfWatch = 3

// ResultChan implements watch.Interface.
func (m *mergedWatch) ResultChan() <-chan watch.Event { return m.out }

// Stop implements watch.Interface.
func (m *mergedWatch) Stop() { m.end() }

// Watch watches the resource in all workspaces.
func (r Request) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := r.watch(ctx, key, opts)
	return w, r.explained(err)
}

func (r Request) watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	from, err := r.watchFrom(opts)
	if err != nil {
		return nil, err
	}
	m := &mergedWatch{Request: r, key: key, opts: opts, out: make(chan watch.Event), news: make(chan memberNews), joined: map[string]memberState{}}
	m.state = newMerger(from == nil && opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.Predicate.AllowWatchBookmarks)
	m.ctx, m.end = context.WithCancel(ctx)
	stop := context.AfterFunc(r.Life, m.end)
	context.AfterFunc(m.ctx, func() { stop() })
	utilflowcontrol.WatchInitialized(ctx)
	changed, err := m.Follow(m.ctx)
	if err != nil {
		m.end()
		return nil, err
	}
	if err := m.begin(from); err != nil {
		m.end()
		return nil, err
	}
	go m.run(changed)
	return m, nil
}

// watchFrom returns the position where a watch begins; nil is the present state.
func (r Request) watchFrom(opts storage.ListOptions) (position, error) {
	if opts.ResourceVersion == "" || opts.ResourceVersion == "0" || opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		return nil, nil // the present state is not older than any that a client has seen
	}
	number, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	if err != nil {
		return nil, apierrors.NewBadRequest("resourceVersion is not a number")
	}
	at, known := r.Positions().recall(r.Name(), number)
	if !known {
		return nil, Expired("this server does not remember the resourceVersion, or it is that of an object")
	}
	return at, nil
}

// begin starts the members of all workspaces.
func (m *mergedWatch) begin(from position) error {
	all, err := m.Members(m.ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, ref := range all {
		known[ref.UID] = true
		m.add(ref, from[ref.UID], from)
	}
	for uid := range from {
		if !known[uid] {
			return lost()
		}
	}
	return nil
}

// add starts a member. revision is where the client has seen the workspace, 0 if it has not.
func (m *mergedWatch) add(ref Ref, revision int64, from position) {
	m.joined[ref.UID] = memberState{Ref: ref, seen: ref.Revision}
	m.state.begin(ref.UID, revision)
	now := from == nil && m.opts.SendInitialEvents != nil && !*m.opts.SendInitialEvents
	go (&member{mergedWatch: m, ref: ref, revision: revision, now: now}).run()
}

// join starts members of the workspaces that have none, or whose member has ended before they changed.
func (m *mergedWatch) join(all []Ref) error {
	for _, ref := range all {
		is, has := m.joined[ref.UID]
		switch {
		case !has && len(m.joined) >= MaxWorkspaces:
			return TooMany("there", "use a smaller tree, or one workspace at a time")
		case !has, is.ended && is.Revision != ref.Revision:
			m.add(ref, 0, position{})
		default:
			is.seen = ref.Revision
			m.joined[ref.UID] = is
		}
	}
	return nil
}

// run sends events until the watch ends.
func (m *mergedWatch) run(changed <-chan struct{}) {
	defer close(m.out)
	defer m.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		bookmark := m.schedule(time.Now(), timer)
		var err error
		select {
		case <-m.ctx.Done():
			return
		case n := <-m.news:
			err = m.take(n)
		case _, more := <-changed:
			if !more {
				return // changes are unknown from now on: clients continue at the last bookmark
			}
			err = m.update()
		case <-bookmark:
			err = m.sendBookmark()
		}
		if err != nil {
			m.fail(err)
			return
		}
	}
}

// schedule returns the channel of the timer if a bookmark is due, after it has set the timer. Events that follow do not postpone it.
func (m *mergedWatch) schedule(now time.Time, timer *time.Timer) <-chan time.Time {
	after, due := m.state.bookmarkIn(m.left())
	if !due || !m.opts.Predicate.AllowWatchBookmarks {
		m.next = time.Time{}
		return nil
	}
	if next := now.Add(after); m.next.IsZero() || next.Before(m.next) {
		m.next = next
	}
	timer.Reset(m.next.Sub(now))
	return timer.C
}

// left is how long the watch may still run.
func (m *mergedWatch) left() time.Duration {
	if end, ok := m.ctx.Deadline(); ok {
		return time.Until(end)
	}
	return time.Hour
}

// take sends what a member reports.
func (m *mergedWatch) take(n memberNews) error {
	switch {
	case n.err != nil:
		return n.err
	case n.below != nil:
		return m.join(n.below)
	case n.absent:
		return m.absent(n)
	case n.begun:
		m.state.begin(n.uid, 0)
	case n.event == nil:
		m.state.reached(n.uid, n.revision)
	default:
		m.send(*n.event)
		m.state.sent(n.uid, n.revision)
	}
	return nil
}

// absent records that a workspace does not have the resource.
func (m *mergedWatch) absent(n memberNews) error {
	m.state.absent(n.uid)
	is := m.joined[n.uid]
	is.ended = n.ended
	m.joined[n.uid] = is
	if !n.ended {
		return nil
	}
	if is.seen != is.Revision { // it has changed since the member began
		is.Revision = is.seen
		m.add(is.Ref, 0, position{})
	}
	return m.update()
}

// update follows a change that the scope itself has noticed.
func (m *mergedWatch) update() error {
	all, err := m.Refresh(m.ctx)
	if err != nil {
		return err
	}
	return m.join(all)
}

func (m *mergedWatch) send(e watch.Event) {
	select {
	case m.out <- e:
	case <-m.ctx.Done():
	}
}

// sendBookmark tells the client where it can continue.
func (m *mergedWatch) sendBookmark() error {
	m.next = time.Time{}
	at, ok := m.state.position()
	if !ok {
		return nil
	}
	kept := m.Positions()
	number := kept.remember(m.Name(), at, time.Now())
	if m.numbers = append(m.numbers, number); len(m.numbers) > positionsOfWatch {
		kept.forget(m.numbers[0])
		m.numbers = m.numbers[1:]
	}
	object := m.NewObject()
	err := storage.APIObjectVersioner{}.UpdateObject(object, number)
	if err == nil && m.state.initial {
		err = storage.AnnotateInitialEventsEndBookmark(object)
	}
	if err == nil {
		m.state.bookmarked()
		m.send(watch.Event{Type: watch.Bookmark, Object: object})
	}
	return err
}

// fail ends the watch with an error that the client sees.
func (m *mergedWatch) fail(err error) {
	var status apierrors.APIStatus
	if !errors.As(m.explained(err), &status) {
		status = m.unreadable()
	}
	of := status.Status()
	m.send(watch.Event{Type: watch.Error, Object: &of})
}

// revisionOf returns the revision of an object of a watch.
func revisionOf(object runtime.Object) (revision int64, initialEnd bool, err error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return 0, false, err
	}
	revision, err = strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
	return revision, accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true", err
}
