package reach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

const (
	// bookmarkInterval is how often a watch without events tells its client how far it has read.
	bookmarkInterval = time.Minute
	// clustersInterval is how often a watch looks for clusters that joined or left.
	clustersInterval = 5 * time.Second
)

// session is one client's watch. A goroutine for each source sends its events, one at a time.
type session struct {
	reach *Reach
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
	s := &session{reach: r, query: q, here: here, out: make(chan watch.Event, 100), bookmarks: o.AllowWatchBookmarks}
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch from, ours := parseVersion(o.ResourceVersion); {
	case initial || o.ResourceVersion == "" || o.ResourceVersion == "0":
	case !ours:
		return nil, apierrors.NewResourceExpired("the resource version is not one of a list of pods by this user: list again")
	default:
		if s.track = r.ledger.resume(from, q.scope); s.track == nil {
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
	clusters, bookmarks := s.reach.clock.NewTicker(clustersInterval), s.reach.clock.NewTicker(bookmarkInterval)
	defer clusters.Stop()
	defer bookmarks.Stop()
	for {
		if states, err := s.reach.members.states(ctx); err == nil {
			s.followClusters(ctx, states, running, start)
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

// followClusters follows the clusters that have joined, and reports the pods of clusters that left as deleted.
func (s *session) followClusters(ctx context.Context, states []state, running map[string]*follower, start func(string, func(context.Context))) {
	exists := map[string]bool{store: true}
	for _, is := range states {
		exists[is.cluster] = true
		if running[is.cluster] == nil && is.unreached == "" && s.query.concerns(is.cluster) {
			start(is.cluster, func(ctx context.Context) { s.follow(ctx, s.memberSource(is.cluster)) })
		}
	}
	for name, f := range running {
		if !exists[name] {
			f.cancel()
			<-f.done // or it could send a pod again
			delete(running, name)
			s.left(ctx, name)
		}
	}
}

// begin sends everything that there is, for a client that has no list.
func (s *session) begin(ctx context.Context, initial bool) bool {
	objects, version, _, err := s.reach.collect(ctx, s.query, s.here)
	if err != nil {
		s.fail(ctx, err)
		return false
	}
	from, _ := parseVersion(version)
	s.track = s.reach.ledger.resume(from, s.query.scope)
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
	obj.SetResourceVersion(s.reach.ledger.version(s.reach.ledger.bookmark(s.track, s.reach.clock.Now()), 0))
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
	known := s.reach.ledger.knows(s.track, key)
	kind, effect := watch.Modified, changed
	switch {
	case gone && !known:
		return
	case gone:
		kind, effect = watch.Deleted, removed
	case !known:
		kind, effect = watch.Added, added
	}
	position := s.reach.ledger.record(s.track, key, obj.GetResourceVersion(), effect, s.reach.clock.Now())
	s.reach.number(obj, position)
	s.put(ctx, watch.Event{Type: kind, Object: obj})
}

// left reports the objects of a cluster that is no longer a member as deleted.
func (s *session) left(ctx context.Context, cluster string) {
	for uid, name := range s.reach.ledger.objectsOf(s.track, cluster) {
		s.send(ctx, cluster, s.vanished(uid, name, ""), true)
	}
	s.reach.ledger.advance(s.track, cluster, "") // another cluster may join under the name
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

func (s *session) memberSource(cluster string) source {
	return source{
		name: cluster,
		list: func(ctx context.Context) (part, error) {
			m, err := s.reach.members.get(ctx, cluster)
			if err != nil {
				return part{}, err
			}
			out := m.list(ctx, s.query)
			return out, out.err
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			m, err := s.reach.members.get(ctx, cluster)
			if err != nil {
				return nil, err
			}
			o := s.query.options(cluster)
			o.ResourceVersion, o.AllowWatchBookmarks = version, true
			o.Watch = true
			return m.rest.Get().NamespaceIfScoped(s.query.namespace, s.query.namespace != "").Resource(s.query.resource).VersionedParams(&o, scheme.ParameterCodec).Watch(ctx)
		},
		belongs: func(ctx context.Context, obj object) (bool, error) {
			m, err := s.reach.members.get(ctx, cluster)
			if err != nil || !s.query.covers(obj) {
				return false, err
			}
			return s.query.kind.belongs(ctx, m, obj)
		},
		show: func(obj object) { s.query.kind.show(obj, cluster) },
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
		case <-s.reach.clock.After(delay.Step()):
		}
	}
}

// read lists a source if necessary, and sends its events until the watch ends. It calls healthy when the source answers.
func (s *session) read(ctx context.Context, from source, healthy func()) error {
	version := s.reach.ledger.versionOf(s.track, from.name)
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
			s.reach.ledger.advance(s.track, from.name, "")
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
	gone := s.reach.ledger.objectsOf(s.track, source)
	for _, obj := range list.objects {
		delete(gone, obj.GetUID())
		s.send(ctx, source, obj, false)
	}
	for uid, name := range gone {
		s.send(ctx, source, s.vanished(uid, name, list.version), true)
	}
	s.reach.ledger.advance(s.track, source, list.version)
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
			s.reach.ledger.advance(s.track, from.name, obj.GetResourceVersion())
			return nil
		}
		return s.see(ctx, from, obj, e.Type == watch.Deleted)
	case *metav1.Status:
		err := apierrors.FromObject(obj)
		if expired(err) {
			s.reach.ledger.advance(s.track, from.name, "")
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
	known := s.reach.ledger.knows(s.track, key)
	if !gone {
		belongs, err := from.belongs(ctx, obj)
		if err != nil && !known {
			return err
		}
		known = known || belongs
	}
	if !known {
		s.reach.ledger.advance(s.track, from.name, version)
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
