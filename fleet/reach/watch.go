package reach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// bookmarkInterval is how often a watch without events tells its client how far it has read.
	bookmarkInterval = time.Minute
	// sourcesInterval is how often a watch looks for sources that are new or gone, such as clusters that joined or left.
	sourcesInterval = 5 * time.Second
)

// session is one client's watch. A goroutine for each source sends its events, one at a time.
type session struct {
	merger
	from  sources
	query query
	track *track
	here  cache.ListerWatcherWithContext
	out   chan watch.Event
	stop  context.CancelFunc
	// bookmarks is set if the client accepts bookmarks: upstream's handlers panic if the initial events end with one that the client does not accept.
	bookmarks bool

	sending sync.Mutex // held while an event gets its position and is sent
}

var _ watch.Interface = (*session)(nil)

func (s *session) Stop()                          { s.stop() }
func (s *session) ResultChan() <-chan watch.Event { return s.out }

// Watch watches what List lists. A watch from the resource version of a list, or of an event, continues there without
// a gap; one that another server made, or that is too old, gets 410. Objects of a cluster that does not answer stay as they are.
func (r *Reach) Watch(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (watch.Interface, error) {
	q, err := r.query(resource, namespace, o)
	if err != nil {
		return nil, err
	}
	return r.watch(ctx, q, here, clusters{r}, o)
}

// watch watches what list lists.
func (m merger) watch(ctx context.Context, q query, here cache.ListerWatcherWithContext, from sources, o metav1.ListOptions) (watch.Interface, error) {
	s := &session{merger: m, from: from, query: q, here: here, out: make(chan watch.Event, 100), bookmarks: o.AllowWatchBookmarks}
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch at, ours := parseVersion(o.ResourceVersion); {
	case initial || o.ResourceVersion == "" || o.ResourceVersion == "0":
	case !ours:
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("the resource version is not one of a list of %s by this user: list again", q.resource))
	default:
		if s.track = m.ledger.resume(at, q.scope); s.track == nil {
			return nil, apierrors.NewResourceExpired("the resource version is too old, or another server's: list again")
		}
	}
	ctx, s.stop = context.WithCancel(ctx)
	go s.run(ctx, initial)
	return s, nil
}

func (s *session) run(ctx context.Context, initial bool) {
	defer close(s.out)
	defer s.stop()
	if s.track == nil {
		if !s.begin(ctx, initial) {
			return
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.stop() // before waiting
	running := map[string]*follower{}
	start := func(source string, follow func(context.Context)) {
		ctx, cancel := context.WithCancel(ctx)
		f := &follower{cancel, make(chan struct{})}
		running[source] = f
		wg.Go(func() {
			defer close(f.done)
			follow(ctx)
		})
	}
	start(store, func(ctx context.Context) { s.follow(ctx, s.storeSource()) })
	clusters, bookmarks := s.clock.NewTicker(sourcesInterval), s.clock.NewTicker(bookmarkInterval)
	defer clusters.Stop()
	defer bookmarks.Stop()
	for {
		if exist, readable, err := s.from.names(ctx, s.query); err == nil {
			s.followSources(ctx, exist, readable, running, start)
		}
		select {
		case <-ctx.Done():
			return
		case <-clusters.C():
		case <-bookmarks.C():
			if s.bookmarks {
				s.bookmark(ctx, false)
			}
		}
	}
}

// follower is the goroutine that sends the events of one source.
type follower struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// followSources follows the sources that are new, and reports objects as deleted if their source is gone.
func (s *session) followSources(ctx context.Context, exist, readable []string, running map[string]*follower, start func(string, func(context.Context))) {
	for _, name := range readable {
		if running[name] == nil {
			start(name, func(ctx context.Context) { s.follow(ctx, s.from.source(name, s.query)) })
		}
	}
	for name, f := range running {
		if name != store && !slices.Contains(exist, name) {
			f.cancel()
			<-f.done // or it could send a pod again
			delete(running, name)
		}
	}
	for _, name := range s.ledger.sourcesOf(s.track) {
		if name != store && running[name] == nil && !slices.Contains(exist, name) {
			s.left(ctx, name) // perhaps before this watch began
		}
	}
}

// begin sends everything that there is, for a client that has no list.
func (s *session) begin(ctx context.Context, initial bool) bool {
	objects, version, _, err := s.collect(ctx, s.query, s.here, s.from)
	if err != nil {
		s.fail(ctx, err)
		return false
	}
	from, _ := parseVersion(version)
	s.track = s.ledger.resume(from, s.query.scope)
	for _, obj := range objects {
		if !s.put(ctx, watch.Event{Type: watch.Added, Object: obj}) {
			return false
		}
	}
	if initial && s.bookmarks {
		s.bookmark(ctx, true)
	}
	return ctx.Err() == nil
}

func (s *session) bookmark(ctx context.Context, endOfInitial bool) {
	s.sending.Lock()
	defer s.sending.Unlock()
	obj := s.query.kind.new()
	obj.SetResourceVersion(s.ledger.version(s.ledger.bookmark(s.track, s.clock.Now()), 0))
	if endOfInitial {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	s.put(ctx, watch.Event{Type: watch.Bookmark, Object: obj})
}

func (s *session) fail(ctx context.Context, err error) {
	status := apierrors.NewInternalError(err).ErrStatus
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	s.put(ctx, watch.Event{Type: watch.Error, Object: &status})
}

func (s *session) put(ctx context.Context, e watch.Event) bool {
	select {
	case s.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// send gives an event of a source its position, and sends it. The object's version is that of its source.
func (s *session) send(ctx context.Context, source string, obj object, gone bool) {
	s.sending.Lock()
	defer s.sending.Unlock()
	key := keyOf(source, obj)
	known := s.ledger.knows(s.track, key)
	kind, effect := watch.Modified, changed
	switch {
	case gone && !known:
		return
	case gone:
		kind, effect = watch.Deleted, removed
	case !known:
		kind, effect = watch.Added, added
	}
	position := s.ledger.record(s.track, key, obj.GetResourceVersion(), effect, s.clock.Now())
	s.number(obj, position)
	s.put(ctx, watch.Event{Type: kind, Object: obj})
}

// left reports the objects of a source that does not exist any more as deleted.
func (s *session) left(ctx context.Context, source string) {
	for uid, name := range s.ledger.objectsOf(s.track, source) {
		s.send(ctx, source, s.vanished(uid, name, ""), true)
	}
	s.ledger.advance(s.track, source, "") // another one may get the name
}

// vanished is an object without anything but its identity.
func (s *session) vanished(uid types.UID, name types.NamespacedName, version string) object {
	obj := s.query.kind.new()
	obj.SetNamespace(name.Namespace)
	obj.SetName(name.Name)
	obj.SetUID(uid)
	obj.SetResourceVersion(version)
	return obj
}

// source is a list of objects that can be watched.
type source struct {
	name  string
	list  func(context.Context) (part, error)
	watch func(ctx context.Context, version string) (watch.Interface, error)
	// belongs reports whether the client may see an object, and show changes it to what Atoll shows.
	belongs func(context.Context, object) (bool, error)
	show    func(object)
}

func (s *session) storeSource() source {
	return source{
		name: store,
		list: func(ctx context.Context) (part, error) { return listHere(ctx, s.here, s.query) },
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			return s.here.WatchWithContext(ctx, metav1.ListOptions{LabelSelector: s.query.labels, FieldSelector: s.query.fields, ResourceVersion: version, AllowWatchBookmarks: true})
		},
		belongs: func(context.Context, object) (bool, error) { return true, nil },
		show:    func(object) {},
	}
}

// follow sends the events of a source until ctx ends. While the source fails, its pods stay as they are.
func (s *session) follow(ctx context.Context, from source) {
	backoff := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8, Cap: 15 * time.Second}
	delay := backoff
	for ctx.Err() == nil {
		err := s.read(ctx, from, func() { delay = backoff })
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.clock.After(delay.Step()):
		}
	}
}

// read lists a source if necessary, and sends its events until the watch ends. It calls healthy when the source answers.
func (s *session) read(ctx context.Context, from source, healthy func()) error {
	version := s.ledger.versionOf(s.track, from.name)
	if version == "" {
		list, err := from.list(ctx)
		if err != nil {
			return err
		}
		version = list.version
		s.replace(ctx, from.name, list)
	}
	events, err := from.watch(ctx, version)
	if err != nil {
		if expired(err) {
			s.ledger.advance(s.track, from.name, "")
		}
		return err
	}
	defer events.Stop()
	healthy()
	return s.pass(ctx, from, events)
}

func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// replace sends what changed between what the client knows of a source and a new list of it.
func (s *session) replace(ctx context.Context, source string, list part) {
	gone := s.ledger.objectsOf(s.track, source)
	for _, obj := range list.objects {
		delete(gone, obj.GetUID())
		s.send(ctx, source, obj, false)
	}
	for uid, name := range gone {
		s.send(ctx, source, s.vanished(uid, name, list.version), true)
	}
	s.ledger.advance(s.track, source, list.version)
}

// pass sends the events of a watch until it ends.
func (s *session) pass(ctx context.Context, from source, events watch.Interface) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-events.ResultChan():
			if !open {
				return nil
			}
			if err := s.event(ctx, from, e); err != nil {
				return err
			}
		}
	}
}

func (s *session) event(ctx context.Context, from source, e watch.Event) error {
	switch obj := e.Object.(type) {
	case object:
		if e.Type == watch.Bookmark {
			s.ledger.advance(s.track, from.name, obj.GetResourceVersion())
			return nil
		}
		return s.see(ctx, from, obj, e.Type == watch.Deleted)
	case *metav1.Status:
		err := apierrors.FromObject(obj)
		if expired(err) {
			s.ledger.advance(s.track, from.name, "")
		}
		return err
	default:
		return fmt.Errorf("source %q sent %T", from.name, obj)
	}
}

// see sends an event about an object, if the client may see it. An object that the client knows is reported until its end,
// also when the object that it belonged to is gone.
func (s *session) see(ctx context.Context, from source, obj object, gone bool) error {
	version := obj.GetResourceVersion()
	key := keyOf(from.name, s.identity(from, obj))
	known := s.ledger.knows(s.track, key)
	if !gone {
		belongs, err := from.belongs(ctx, obj)
		if err != nil && !known {
			return err
		}
		known = known || belongs
	}
	if !known {
		s.ledger.advance(s.track, from.name, version)
		return nil
	}
	from.show(obj)
	s.send(ctx, from.name, obj, gone || !s.query.matches(obj))
	return nil
}

// identity returns an object with the name by which the client knows it.
func (s *session) identity(from source, obj object) object {
	is := s.vanished(obj.GetUID(), types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}, "")
	from.show(is)
	return is
}
