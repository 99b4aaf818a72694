package fencing

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
)

// memory is a Store.
type memory struct {
	mu       sync.Mutex
	objects  []Object
	contact  time.Time
	failing  error
	replicas map[string]int32
}

func (m *memory) Load(context.Context) ([]Object, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects, m.contact, m.failing
}

func (m *memory) Save(_ context.Context, objects []Object, contact time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing == nil {
		m.objects, m.contact = objects, contact
	}
	return m.failing
}

func (m *memory) Scale(_ context.Context, o Object, replicas int32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing == nil {
		m.replicas[o.Name.Name] = replicas
	}
	return m.failing
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = err
}

func (m *memory) running() map[string]int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.replicas)
}

// cluster is a cluster with a fence.
type cluster struct {
	*testing.T
	*memory
	*Fence
	clock *testclock.FakeClock
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t, memory: &memory{replicas: map[string]int32{"db": 3, "web": 2}}, clock: testclock.NewFakeClock(time.Unix(1e9, 0))}
	c.restart()
	return c
}

// restart begins another process.
func (c *cluster) restart() { c.Fence = New(c.memory, c.clock, slog.New(slog.DiscardHandler)) }

// pass lets time pass, in which the fence looks at it as Run does.
func (c *cluster) pass(d time.Duration) {
	c.clock.Step(d)
	_ = c.load(c.Context())
	c.stop(c.Context(), c.lapse())
}

func (c *cluster) guard(name string, lease time.Duration) error {
	key := types.NamespacedName{Namespace: "shop", Name: name}
	return c.Guard(c.Context(), key, schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}, key, []string{"spec", "replicas"}, lease)
}

func (c *cluster) runs(name string, want int32) {
	c.Helper()
	if got := c.running()[name]; got != want {
		c.Fatalf("%s has %d replicas, want %d", name, got, want)
	}
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

// TestReplicasStopWithoutContact: each object stops when its own lease lapses, and runs again when there has been contact
// for long enough and the syncer has confirmed it.
func TestReplicasStopWithoutContact(t *testing.T) {
	c := newCluster(t)
	c.Renew(t.Context(), c.clock.Now())
	for name, lease := range map[string]time.Duration{"db": time.Minute, "web": time.Hour} {
		if err := c.guard(name, lease); err != nil {
			t.Fatal(err)
		}
	}
	c.pass(59 * time.Second)
	c.runs("db", 3)
	c.pass(time.Second)
	c.runs("db", 0)
	c.runs("web", 2)
	c.memory.replicas["db"] = 3 // a user of the cluster
	c.pass(stopAgain)
	c.runs("db", 0)
	if stopped, wait := c.Stopped(key("db")); !stopped || wait == 0 {
		t.Errorf("%v %s", stopped, wait)
	}
	c.Renew(t.Context(), c.clock.Now())
	if stopped, wait := c.Stopped(key("db")); !stopped || wait != liftAfter {
		t.Errorf("%v %s", stopped, wait)
	}
	c.pass(liftAfter)
	if stopped, wait := c.Stopped(key("db")); !stopped || wait != 0 {
		t.Errorf("%v %s", stopped, wait)
	}
	if err := c.Lift(t.Context(), key("db"), 2); err != nil {
		t.Fatal(err)
	}
	c.runs("db", 2)
	if stopped, _ := c.Stopped(key("db")); stopped {
		t.Error("it is stopped")
	}
}

// TestContactHasToLast: a report that gets through once does not let replicas run again.
func TestContactHasToLast(t *testing.T) {
	c := newCluster(t)
	c.Renew(t.Context(), c.clock.Now())
	if err := c.guard("db", time.Minute); err != nil {
		t.Fatal(err)
	}
	c.pass(time.Minute)
	c.Renew(t.Context(), c.clock.Now())
	c.pass(time.Minute)
	if _, wait := c.Stopped(key("db")); wait == 0 {
		t.Error("it may run again, although the contact was lost again")
	}
}

// TestRestartedFenceStops: a process that starts without contact stops what the one before had to stop, by the record in the cluster.
func TestRestartedFenceStops(t *testing.T) {
	c := newCluster(t)
	c.Renew(t.Context(), c.clock.Now())
	if err := c.guard("db", time.Minute); err != nil {
		t.Fatal(err)
	}
	c.pass(30 * time.Second)
	c.restart()
	c.pass(29 * time.Second)
	c.runs("db", 3)
	c.pass(time.Second)
	c.runs("db", 0)
	// Another one, which has contact at once, waits all the same: the control plane may be about to decide.
	c.pass(time.Hour)
	c.restart()
	c.pass(0)
	c.Renew(t.Context(), c.clock.Now())
	if stopped, wait := c.Stopped(key("db")); !stopped || wait != liftAfter {
		t.Errorf("%v %s", stopped, wait)
	}
}

// TestNothingStartsWithoutRecord: if the record cannot be written, an object must not start; if replicas cannot be stopped,
// that is tried again.
func TestNothingStartsWithoutRecord(t *testing.T) {
	c := newCluster(t)
	c.fail(errors.New("no"))
	if c.guard("db", time.Minute) == nil {
		t.Error("it may start")
	}
	c.fail(nil)
	c.Renew(t.Context(), c.clock.Now())
	if err := c.guard("db", time.Minute); err != nil || len(c.memory.objects) != 1 {
		t.Fatal(err, c.memory.objects)
	}
	c.fail(errors.New("no"))
	c.pass(time.Minute)
	c.runs("db", 3)
	c.fail(nil)
	c.pass(time.Second)
	c.runs("db", 0)
	if err := c.Release(t.Context(), key("db")); err != nil || len(c.memory.objects) != 0 {
		t.Error(err, c.memory.objects)
	}
}

// TestClockSetBack: a time of contact in the future is not believed.
func TestClockSetBack(t *testing.T) {
	c := newCluster(t)
	c.Renew(t.Context(), c.clock.Now())
	if err := c.guard("db", time.Minute); err != nil {
		t.Fatal(err)
	}
	c.memory.contact = c.clock.Now().Add(time.Hour)
	c.restart()
	c.pass(time.Second)
	c.pass(time.Minute)
	c.runs("db", 0)
}
