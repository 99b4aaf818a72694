package store

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/postgres"
)

var faultTime = flag.Duration("time", 15*time.Second, "how long servers are killed and frozen in TestServersComeAndGo")

// How TestServersComeAndGo is made up.
const (
	serverCount = 3
	watchAll    = 8                // watchers of everything
	watchOne    = 3 * crashClients // watchers of one writer's keys
	// retryWindow is for how long a client with several endpoints may fail: a
	// frozen server may hold the keyspace until the database ends its session
	// (4 s), and others wait for that for at most 6 s before they fail.
	retryWindow = 12 * time.Second
)

// Three servers share one PostgreSQL. They are killed and frozen in turn, while
// clients that know all three write and watch. Nothing that was acknowledged is
// lost, no watcher misses or repeats an event, and no client is without service
// for long.
func TestServersComeAndGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := postgres.Start(ctx, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	servers := startStores(t, db.URL(), serverCount)
	var clients []*clientv3.Client
	for range 12 {
		clients = append(clients, servers.client(t))
	}
	awaitAnswer(t, clients[0])

	ctx, stopWatching := context.WithCancel(context.WithoutCancel(t.Context()))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stopWatching()
	observers := map[string][]*observer{}
	watch := func(i int, prefix string) {
		o := newObserver(fmt.Sprintf("watcher %d of %s", i, prefix))
		observers[prefix] = append(observers[prefix], o)
		created := make(chan struct{})
		watching.Go(func() { o.watch(ctx, clients[i%len(clients)], prefix, created) })
		await(t, created, "a watch is created")
	}
	for i := range watchAll {
		watch(i, "client-")
	}
	for i := range watchOne {
		watch(i, fmt.Sprintf("client-%02d-", i%crashClients))
	}

	l := newLedger()
	outages := &outages{since: map[int]time.Time{}}
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers sync.WaitGroup
	l.write(writing, &writers, func(ctx context.Context, c int, name string) (int64, error) {
		began := time.Now()
		revision, err := createKey(ctx, clients[c%len(clients)], name)
		if errors.Is(err, errRefused) {
			outages.note(c, began, nil) // it was an answer
			return 0, err
		}
		outages.note(c, began, err)
		return revision, err
	})

	kills, freezes := 0, 0
	for end := time.Now().Add(*faultTime); time.Now().Before(end); {
		i := (kills + freezes) % serverCount
		if (kills+freezes)%2 == 0 {
			servers.kill(i)
			kills++
			time.Sleep(500 * time.Millisecond)
			servers.start(t, i)
		} else {
			// Long enough for the database to end its sessions, every other time.
			servers.freeze(t, i, time.Duration(1+freezes%2*6)*time.Second)
			freezes++
		}
		await(t, l.more(100), "clients write")
	}
	stopWriting()
	writers.Wait()

	r, err := clients[0].Get(t.Context(), "client-", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]map[string]int64{"client-": {}}
	for _, kv := range r.Kvs {
		own := string(kv.Key[:len("client-00-")])
		if stored[own] == nil {
			stored[own] = map[string]int64{}
		}
		stored["client-"][string(kv.Key)] = kv.ModRevision
		stored[own][string(kv.Key)] = kv.ModRevision
	}
	l.check(t, stored["client-"])
	events := 0
	for prefix, all := range observers {
		for _, o := range all {
			o.check(t, stored[prefix])
			events += len(o.seen)
		}
	}
	worst := outages.worst()
	t.Logf("%d kills, %d freezes, %d events at %d watchers; the longest time that a client was without an answer: %s",
		kills, freezes, events, watchAll+watchOne, worst.Round(time.Millisecond))
	if worst > retryWindow {
		t.Errorf("a client was without an answer for %s, longer than %s", worst, retryWindow)
	}
}

// watch records the events of a client's watch, which the client resumes by itself.
func (o *observer) watch(ctx context.Context, client *clientv3.Client, prefix string, created chan struct{}) {
	for r := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithPrevKV()) {
		if err := r.Err(); err != nil && ctx.Err() == nil {
			o.fail(err)
		}
		if r.Created && created != nil {
			close(created)
			created = nil
		}
		for _, e := range r.Events {
			if !e.IsCreate() || e.Kv.Version != 1 || e.PrevKv != nil {
				o.fail(fmt.Errorf("%s: event is not the creation that it was: %v", e.Kv.Key, e))
			}
			o.event(string(e.Kv.Key), e.Kv.ModRevision)
		}
	}
}

// outages notes for how long each client got nothing, or nothing but errors.
type outages struct {
	mu      sync.Mutex
	since   map[int]time.Time
	longest time.Duration
}

// note notes the outcome of a call and when it began.
func (o *outages) note(client int, began time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before, failing := o.since[client]; failing {
		began = before
	}
	if err != nil {
		o.since[client] = began
		return
	}
	o.longest = max(o.longest, time.Since(began))
	delete(o.since, client)
}

func (o *outages) worst() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	worst := o.longest
	for _, began := range o.since {
		worst = max(worst, time.Since(began))
	}
	return worst
}

// stores are several `atoll kv serve` of one datastore.
type stores struct {
	dir, datastore string
	addresses      []string
	processes      []*child.Process
}

func startStores(t *testing.T, datastore string, n int) *stores {
	t.Helper()
	s := &stores{dir: t.TempDir(), datastore: datastore, processes: make([]*child.Process, n)}
	for i := range n {
		s.addresses = append(s.addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t))))
		s.start(t, i)
	}
	t.Cleanup(func() {
		for i := range n {
			if t.Failed() {
				s.dump(i)
			}
			s.kill(i)
			if t.Failed() {
				t.Logf("the end of server %d's log:\n%s", i, lastLines(filepath.Join(s.dir, fmt.Sprintf("kv-%d.log", i))))
			}
		}
	})
	return s
}

// lastLines gives the end of a file, or why it cannot be read.
func lastLines(file string) string {
	const most = 64 << 10
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-most):])
}

func (s *stores) start(t *testing.T, i int) {
	t.Helper()
	// Its configuration goes to a child by a pipe: the URL is on no command line.
	process, err := atoll.Run(filepath.Join(s.dir, fmt.Sprintf("kv-%d.log", i)), "kv", "serve",
		"--datastore", s.datastore, "--listen", s.addresses[i])
	if err != nil {
		t.Fatal(err)
	}
	s.processes[i] = process
}

// dump makes a server print its goroutines and exit.
func (s *stores) dump(i int) {
	if s.processes[i] == nil {
		return
	}
	if process, err := os.FindProcess(s.processes[i].PID()); err == nil && process.Signal(syscall.SIGQUIT) == nil {
		<-s.processes[i].Done()
	}
}

func (s *stores) kill(i int) {
	if s.processes[i] != nil {
		s.processes[i].Kill()
		s.processes[i] = nil
	}
}

// freeze stops a server's process for a time, as a machine that is paused.
func (s *stores) freeze(t *testing.T, i int, d time.Duration) {
	t.Helper()
	process, err := os.FindProcess(s.processes[i].PID())
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d)
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// awaitAnswer waits until some server answers.
func awaitAnswer(t *testing.T, client *clientv3.Client) {
	t.Helper()
	eventually(t, 30*time.Second, "the servers answer", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(ctx, "anything")
		return err
	})
}

// client makes a client that knows all servers.
func (s *stores) client(t *testing.T) *clientv3.Client { return s.dial(t, s.addresses...) }

// clientOf makes a client of one server.
func (s *stores) clientOf(t *testing.T, i int) *clientv3.Client { return s.dial(t, s.addresses[i]) }

func (s *stores) dial(t *testing.T, addresses ...string) *clientv3.Client {
	t.Helper()
	var endpoints []string
	for _, a := range addresses {
		endpoints = append(endpoints, "http://"+a)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		// A frozen server is noticed by its silence.
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: time.Second,
		BackoffWaitBetween: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
