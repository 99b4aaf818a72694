package workspaces

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

// mergedWatch is a watch of a resource in all consumers. Each consumer has a member, which keeps it open. One goroutine (run) sends what
// members report, and alone knows where the watch stands.
//
// A consumer that is added is a new member. One that is lost ends the watch with 410, as does a change that leaves no certainty: clients list
// again.
type mergedWatch struct {
	*allConsumers
	store *requestStore
	key   string
	opts  storage.ListOptions
	ctx   context.Context
	end   context.CancelFunc
	out   chan watch.Event
	news  chan memberNews
	state *merger
	// members are those of all entries, also those that have found no binding.
	members map[string]memberState
	// next is when to send a bookmark, zero if none is due.
	next time.Time
	// numbers are the last positions that this watch has sent. Only the last ones can still be the client's.
	numbers []uint64
}

// memberState is an entry with a member. absent is set if it has found no binding: the next APIBinding changes the entry.
type memberState struct {
	revision int64
	absent   bool
}

// positionsOfWatch is how many positions of a watch are remembered.
const positionsOfWatch = 3

// ResultChan implements watch.Interface.
func (m *mergedWatch) ResultChan() <-chan watch.Event { return m.out }

// Stop implements watch.Interface.
func (m *mergedWatch) Stop() { m.end() }

// watchAll watches a resource in all consumers.
func (s *requestStore) watchAll(ctx context.Context, a *allConsumers, key string, opts storage.ListOptions) (watch.Interface, error) {
	from, err := a.watchFrom(opts)
	if err != nil {
		return nil, err
	}
	m := &mergedWatch{allConsumers: a, store: s, key: key, opts: opts, out: make(chan watch.Event), news: make(chan memberNews), members: map[string]memberState{}}
	m.state = newMerger(from == nil && opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.Predicate.AllowWatchBookmarks)
	m.ctx, m.end = context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, m.end)
	context.AfterFunc(m.ctx, func() { stop() })
	utilflowcontrol.WatchInitialized(ctx)
	changed, err := m.followExporter()
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
func (a *allConsumers) watchFrom(opts storage.ListOptions) (position, error) {
	if opts.ResourceVersion == "" || opts.ResourceVersion == "0" || opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		return nil, nil // the present state is not older than any that a client has seen
	}
	number, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	if err != nil {
		return nil, apierrors.NewBadRequest("resourceVersion is not a number")
	}
	at, known := a.view.exporter.positions.recall(a.of(), number)
	if !known {
		return nil, expired("this server does not remember the resourceVersion, or it is that of an object")
	}
	return at, nil
}

// followExporter returns a channel that receives when the export or its consumers change.
func (m *mergedWatch) followExporter() (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	for _, prefix := range []string{consumersOf(m.view.exporter, m.view.export), customKey(exportResource) + m.view.export} {
		of, err := m.view.exporter.follow(m.ctx, prefix)
		if err != nil {
			return nil, err
		}
		go func() {
			for range of {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
			m.end() // changes are unknown from now on
		}()
	}
	return changed, nil
}

// begin starts the members of all consumers.
func (m *mergedWatch) begin(from position) error {
	all, err := m.recorded(m.ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, c := range all {
		known[c.uid] = true
		m.add(c, from[c.uid], from)
	}
	for uid := range from {
		if !known[uid] {
			return expired("a workspace is no consumer any more")
		}
	}
	return nil
}

// add starts a member. revision is where the client has seen the consumer, 0 if it has not.
func (m *mergedWatch) add(c recordedConsumer, revision int64, from position) {
	m.members[c.uid] = memberState{revision: c.revision}
	m.state.begin(c.uid, revision)
	now := from == nil && m.opts.SendInitialEvents != nil && !*m.opts.SendInitialEvents
	go (&member{mergedWatch: m, consumer: c, revision: revision, now: now}).run()
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
		case <-changed:
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
	case n.absent:
		m.state.absent(n.uid)
		m.members[n.uid] = memberState{m.members[n.uid].revision, true}
		return m.update() // the entry may have changed since the member began
	case n.event == nil:
		m.state.reached(n.uid, n.revision)
	default:
		m.send(*n.event)
		m.state.sent(n.uid, n.revision)
	}
	return nil
}

// update follows a change of the export or of its consumers.
func (m *mergedWatch) update() error {
	exported, err := m.exported(m.ctx, m.view.exporter, m.view.export)
	if errors.Is(err, ErrNotFound) || err == nil && !exported.Has(m.resource) {
		return expired("the resource is not exported any more")
	}
	if err != nil {
		return err
	}
	all, err := m.recorded(m.ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		if is, has := m.members[c.uid]; !has || is.absent && is.revision != c.revision {
			m.add(c, 0, position{})
		}
	}
	return nil
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
	kept := &m.view.exporter.positions
	number := kept.remember(m.of(), at, time.Now())
	if m.numbers = append(m.numbers, number); len(m.numbers) > positionsOfWatch {
		kept.forget(m.numbers[0])
		m.numbers = m.numbers[1:]
	}
	object := m.store.newObject()
	err := m.store.Versioner().UpdateObject(object, number)
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
		status = unavailable("a consumer of the APIExport cannot be read now: retry")
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
