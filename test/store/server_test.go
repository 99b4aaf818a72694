package store

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/playground/atoll"
)

var runs = flag.Int("runs", 2, "how often a server is killed in the tests of killed servers")

// How hard the tests are on a server: so many clients write at once, and it is killed each time
// after so many writes. Clients pause between writes: the question is what faults do, and not how
// many writes a small machine can bear.
const (
	crashClients = 64
	crashWrites  = 1000
	writePause   = 50 * time.Millisecond
)

// ledger notes what writers were told of their writes.
type ledger struct {
	mu sync.Mutex
	// acknowledged maps a name to the revision that the server gave it.
	acknowledged map[string]int64
	// unknown are writes that ended in an error: done or not.
	unknown map[string]error
	// reached is signalled when there are target acknowledged writes.
	target  int
	reached chan struct{}
}

func newLedger() *ledger {
	return &ledger{acknowledged: map[string]int64{}, unknown: map[string]error{}}
}

func (l *ledger) note(name string, revision int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.unknown[name] = err
		return
	}
	l.acknowledged[name] = revision
	if l.reached != nil && len(l.acknowledged) >= l.target {
		close(l.reached)
		l.reached = nil
	}
}

// more returns a channel that is closed after n more acknowledged writes.
func (l *ledger) more(n int) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target, l.reached = len(l.acknowledged)+n, make(chan struct{})
	return l.reached
}

// check compares with the server's final state: every acknowledged write is stored at the acknowledged
// revision, and every stored key was written by a client.
func (l *ledger) check(t *testing.T, stored map[string]int64) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	survived := 0
	for name, revision := range l.acknowledged {
		if got, ok := stored[name]; !ok {
			t.Errorf("%s was acknowledged at revision %d and is lost", name, revision)
		} else if got != revision {
			t.Errorf("%s was acknowledged at revision %d and is stored at %d", name, revision, got)
		}
	}
	for name := range stored {
		if _, ok := l.acknowledged[name]; ok {
			continue
		}
		if _, ok := l.unknown[name]; !ok {
			t.Errorf("%s is stored, but no client wrote it", name)
		}
		survived++
	}
	t.Logf("%d writes acknowledged, %d failed, %d of the failed writes are stored", len(l.acknowledged), len(l.unknown), survived)
}

// write has many clients write, each name once, until ctx ends.
func (l *ledger) write(ctx context.Context, wg *sync.WaitGroup, create func(ctx context.Context, client int, name string) (int64, error)) {
	for client := range crashClients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("client-%02d-%06d", client, i)
				// The end of the test does not interrupt a write, so that only crashes cause unknown outcomes.
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				revision, err := create(call, client, name)
				cancel()
				l.note(name, revision, err)
				select {
				case <-ctx.Done():
				case <-time.After(writePause):
				}
			}
		})
	}
}

// observer notes what one watcher was told.
type observer struct {
	name string

	mu   sync.Mutex
	seen map[string]int64
	last int64
	errs []error
	// restarts counts how often the watch had to restart with a list.
	restarts int
}

func newObserver(name string) *observer { return &observer{name: name, seen: map[string]int64{}} }

// event notes the creation of name. Events come in the order of revisions,
// each once.
func (o *observer) event(name string, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before, ok := o.seen[name]; ok {
		o.errs = append(o.errs, fmt.Errorf("%s repeated at %d, was seen at %d", name, revision, before))
	}
	if revision <= o.last {
		o.errs = append(o.errs, fmt.Errorf("%s at %d after revision %d", name, revision, o.last))
	}
	o.seen[name], o.last = revision, revision
}

// relisted notes a whole state at a revision: everything seen must be in it.
func (o *observer) relisted(stored map[string]int64, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name := range o.seen {
		if _, ok := stored[name]; !ok {
			o.errs = append(o.errs, fmt.Errorf("%s was seen and is not in the list at %d", name, revision))
		}
	}
	if revision < o.last {
		o.errs = append(o.errs, fmt.Errorf("list at %d after revision %d", revision, o.last))
	}
	o.seen, o.last = stored, revision
}

// check waits until the observer has seen all that is stored.
func (o *observer) check(t *testing.T, stored map[string]int64) {
	t.Helper()
	// client-go's reflector waits up to a minute, jitter included, between attempts after a long outage.
	eventually(t, 3*time.Minute, o.name+" has seen everything", func(context.Context) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		for name, revision := range stored {
			if got, ok := o.seen[name]; !ok {
				return fmt.Errorf("%s is missing; %d of %d seen", name, len(o.seen), len(stored))
			} else if got != revision {
				return fmt.Errorf("%s was seen at %d and is stored at %d", name, got, revision)
			}
		}
		return nil
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) != len(stored) {
		t.Errorf("%s saw %d objects, %d are stored", o.name, len(o.seen), len(stored))
	}
	for i, err := range o.errs {
		if i == 10 {
			t.Errorf("%s: and %d errors more", o.name, len(o.errs)-i)
			break
		}
		t.Errorf("%s: %v", o.name, err)
	}
	if o.restarts > 0 {
		t.Logf("%s restarted with a list %d times", o.name, o.restarts)
	}
}

// A server that is killed in the middle of 64 clients' writes has, after a
// restart, every object that it acknowledged, and its watchers go on without a
// gap or a repeat.
func TestAKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := atoll.Config{Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"), Port: freePort(t)}
	start := func() *atoll.Server {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		server, err := atoll.Start(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("ready after %s", time.Since(began).Round(10*time.Millisecond))
		t.Cleanup(server.Kill)
		return server
	}
	server := start()
	var clients []kubernetes.Interface
	for range 8 {
		rest, err := server.REST()
		if err != nil {
			t.Fatal(err)
		}
		rest.Dial = (&net.Dialer{}).DialContext // a connection of its own
		client, err := kubernetes.NewForConfig(rest)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
	}

	ctx, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stopWatching()
	observers := []*observer{newObserver("watcher 0"), newObserver("watcher 1")}
	for i, o := range observers {
		watchers.Go(func() { o.follow(ctx, clients[i]) })
	}
	informer := newObserver("informer")
	added := watchByInformer(ctx, t, clients[2], informer)

	l := newLedger()
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers sync.WaitGroup
	l.write(writing, &writers, func(ctx context.Context, c int, name string) (int64, error) {
		made, err := clients[c%len(clients)].CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"by": name}}, metav1.CreateOptions{})
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(made.ResourceVersion, 10, 64)
	})
	for range *runs {
		await(t, l.more(crashWrites), "clients write")
		server.Kill()
		server = start()
	}
	await(t, l.more(crashWrites), "clients write")
	stopWriting()
	writers.Wait()

	stored, _, err := listConfigMaps(t.Context(), clients[0])
	if err != nil {
		t.Fatal(err)
	}
	l.check(t, stored)
	for _, o := range observers {
		o.check(t, stored)
	}
	informer.check(t, stored)
	if n := added.duplicates(); n > 0 {
		t.Errorf("the informer's handler was told %d times of an object that it knew", n)
	}
}

// follow lists and watches ConfigMaps by Kubernetes' protocol: it resumes at the last seen revision, and lists
// again if the server has compacted that revision.
func (o *observer) follow(ctx context.Context, client kubernetes.Interface) {
	listed := false
	for ctx.Err() == nil {
		if !listed {
			stored, revision, err := listConfigMaps(ctx, client)
			if err != nil {
				pause(ctx)
				continue
			}
			o.relisted(stored, revision)
			listed = true
		}
		o.mu.Lock()
		from := strconv.FormatInt(o.last, 10)
		o.mu.Unlock()
		w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
		if err == nil {
			err = o.consume(w)
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			listed = false
			o.mu.Lock()
			o.restarts++
			o.mu.Unlock()
		} else if err != nil {
			pause(ctx)
		}
	}
}

// consume records events until the watch ends, and returns the reason if the server sent one.
func (o *observer) consume(w watch.Interface) error {
	defer w.Stop()
	for e := range w.ResultChan() {
		switch object := e.Object.(type) {
		case *corev1.ConfigMap:
			revision, err := strconv.ParseInt(object.ResourceVersion, 10, 64)
			if err != nil {
				return err
			}
			switch {
			case e.Type == watch.Bookmark:
				o.mu.Lock()
				o.last = max(o.last, revision)
				o.mu.Unlock()
			case isOurs(object.Name):
				o.event(object.Name, revision)
			}
		case *metav1.Status:
			return apierrors.FromObject(object)
		}
	}
	return nil
}

// additions counts what an informer's handler was told.
type additions struct {
	mu    sync.Mutex
	times map[string]int
}

func (a *additions) duplicates() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, times := range a.times {
		n += times - 1
	}
	return n
}

// watchByInformer follows ConfigMaps with client-go's own machinery.
func watchByInformer(ctx context.Context, t *testing.T, client kubernetes.Interface, o *observer) *additions {
	t.Helper()
	a := &additions{times: map[string]int{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			c := object.(*corev1.ConfigMap)
			if !isOurs(c.Name) {
				return
			}
			revision, _ := strconv.ParseInt(c.ResourceVersion, 10, 64)
			a.mu.Lock()
			a.times[c.Name]++
			a.mu.Unlock()
			o.mu.Lock()
			o.seen[c.Name] = revision
			o.mu.Unlock()
		},
		UpdateFunc: func(before, object any) {
			// After a relist, an informer reports known objects as updated from and to the same revision.
			c := object.(*corev1.ConfigMap)
			if isOurs(c.Name) && c.ResourceVersion != before.(*corev1.ConfigMap).ResourceVersion {
				o.fail(fmt.Errorf("%s was changed, but no client changes it", c.Name))
			}
		},
		DeleteFunc: func(object any) { o.fail(fmt.Errorf("%v was deleted, but no client deletes", object)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	t.Cleanup(factory.Shutdown)
	return a
}

func (o *observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

// listConfigMaps are the writers' ConfigMaps with their revisions, and the
// revision of the list.
func listConfigMaps(ctx context.Context, client kubernetes.Interface) (map[string]int64, int64, error) {
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	stored := map[string]int64{}
	for i := range list.Items {
		if c := &list.Items[i]; isOurs(c.Name) {
			if stored[c.Name], err = strconv.ParseInt(c.ResourceVersion, 10, 64); err != nil {
				return nil, 0, err
			}
		}
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	return stored, revision, err
}

func isOurs(name string) bool { return len(name) > 7 && name[:7] == "client-" }

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: not within 2 minutes", what)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

var errRefused = errors.New("the transaction did not succeed")
