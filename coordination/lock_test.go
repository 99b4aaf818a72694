package coordination

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func newLock(t *testing.T, s *leaseServer, identity string) *Lock {
	t.Helper()
	_, cfg := s.connect()
	lock, err := NewLock(cfg, "ops", "web", identity)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func record(holder string, transitions int) resourcelock.LeaderElectionRecord {
	now := metav1.NewTime(time.Now())
	return resourcelock.LeaderElectionRecord{
		HolderIdentity: holder, LeaseDurationSeconds: 15, LeaderTransitions: transitions, AcquireTime: now, RenewTime: now,
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// see reads the lease and returns the raw bytes.
func see(t *testing.T, lock *Lock) []byte {
	t.Helper()
	_, raw, err := lock.Get(t.Context())
	must(t, err)
	return raw
}

func TestTokenIdentifiesOneLeadership(t *testing.T) {
	s := newLeaseServer()
	east, west := newLock(t, s, "east/1"), newLock(t, s, "west/1")
	token := func() Token {
		t.Helper()
		token, err := east.Token()
		must(t, err)
		return token
	}
	notHeld := func(when string) {
		t.Helper()
		if token, err := east.Token(); !errors.Is(err, ErrNotHeld) {
			t.Errorf("%s: token %v, %v", when, token, err)
		}
	}
	notHeld("before the first lease")
	must(t, east.Create(t.Context(), record("east/1", 0)))
	first := token()
	must(t, east.Update(t.Context(), record("east/1", 0)))
	if token() != first {
		t.Errorf("%v after renewing, was %v", token(), first)
	}

	see(t, west)
	must(t, west.Update(t.Context(), record("west/1", 1)))
	if err := east.Update(t.Context(), record("east/1", 0)); !apierrors.IsConflict(err) {
		t.Errorf("renew a lost lease: %v", err)
	}
	if token() != first {
		t.Errorf("%v before it has seen the new holder, was %v", token(), first)
	}
	see(t, east)
	notHeld("once it has seen the new holder")

	must(t, east.Update(t.Context(), record("east/1", 2)))
	second := token()
	if second.UID != first.UID || second.Transitions != 2 || second.ResourceVersion == first.ResourceVersion {
		t.Errorf("%v after %v", second, first)
	}
	must(t, east.Update(t.Context(), record("", 2)))
	notHeld("after releasing")

	s.remove()
	must(t, east.Create(t.Context(), record("east/1", 0)))
	if third := token(); third.UID == second.UID {
		t.Errorf("%v of a recreated lease, after %v", third, second)
	}
}

func TestReleaseKeepsSuccessorsLease(t *testing.T) {
	s := newLeaseServer()
	east, west := newLock(t, s, "east/1"), newLock(t, s, "west/1")
	must(t, east.Create(t.Context(), record("east/1", 0)))
	see(t, west)
	must(t, west.Update(t.Context(), record("west/1", 1)))
	// Leader election does this on exit.
	see(t, east)
	if err := east.Update(t.Context(), record("", 1)); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), "west/1") {
		t.Errorf("release west's lease: %v", err)
	}
	if _, err := west.Token(); err != nil {
		t.Error(err)
	}
	must(t, west.Update(t.Context(), record("west/1", 1)))
}

// TestRawBytesShowEveryRenewal: leader election compares bytes that contain whole seconds,
// which would hide several renewals within one, or by a clock that was set back.
func TestRawBytesShowEveryRenewal(t *testing.T) {
	s := newLeaseServer()
	east, west := newLock(t, s, "east/1"), newLock(t, s, "west/1")
	r := record("east/1", 0)
	r.RenewTime = metav1.NewTime(r.RenewTime.Truncate(time.Second))
	must(t, east.Create(t.Context(), r))
	first := see(t, west)
	if again := see(t, west); !bytes.Equal(first, again) {
		t.Errorf("without a renewal %s became %s", first, again)
	}
	r.RenewTime = metav1.NewTime(r.RenewTime.Add(time.Millisecond))
	must(t, east.Update(t.Context(), r))
	if again := see(t, west); bytes.Equal(first, again) {
		t.Errorf("a renewal does not change %s", again)
	}
}

func TestUpdateBeforeGet(t *testing.T) {
	if err := newLock(t, newLeaseServer(), "east/1").Update(t.Context(), record("east/1", 0)); err == nil {
		t.Error("updated a lease before reading it")
	}
}

func TestIdentityNamesClusterAndProcess(t *testing.T) {
	one, err := Identity("east")
	must(t, err)
	two, err := Identity("east")
	must(t, err)
	if one == two || !strings.HasPrefix(one, "east/") {
		t.Errorf("identities %s and %s", one, two)
	}
	for _, cluster := range []string{"", "a/b"} {
		if id, err := Identity(cluster); err == nil {
			t.Errorf("cluster %q: %s", cluster, id)
		}
	}
	for _, identity := range []string{"", "operator-0", "/operator-0", "east/"} {
		if _, err := NewLock(&rest.Config{}, "ops", "web", identity); err == nil || !strings.Contains(err.Error(), "coordination.Identity") {
			t.Errorf("identity %q: %v", identity, err)
		}
	}
	if _, err := NewLock(&rest.Config{}, "", "web", one); err == nil {
		t.Error("created a lock without a namespace")
	}
}
