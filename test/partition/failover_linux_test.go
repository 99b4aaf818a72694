package partition_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/expose"
)

// failoverLimit limits the time without shared APIs in a member whose server is lost while others run: 10 s
// until a silent server counts as gone, 10 s before that until another one leads the fleet, and the delay of
// a busy machine.
const failoverLimit = 40 * time.Second

// TestMemberFailsOverToOtherServers kills or freezes a server, or cuts it off from the database alone. Its
// member's API server and its watches then use the other servers, and return to their own server when it is
// back. If the lost server leads the fleet, it would itself have to reroute its member. The other members
// notice nothing.
func TestMemberFailsOverToOtherServers(t *testing.T) {
	s := stretched(t)
	leader := s.leader(t)
	follower := members[slices.IndexFunc(members, func(m string) bool { return m != leader })]
	t.Run("a follower is killed", func(t *testing.T) {
		s.testServerLoss(t, follower, func() (restore func()) { return s.killServer(t, follower) })
	})
	t.Run("the leader is cut off from the database", func(t *testing.T) {
		leader := s.leader(t)
		s.testServerLoss(t, leader, func() (restore func()) { return s.network.cut(t, leader, databaseSite) })
	})
	if !*thorough {
		return
	}
	t.Run("the leader is frozen", func(t *testing.T) {
		leader := s.leader(t)
		s.testServerLoss(t, leader, func() (restore func()) { return s.freezeServer(t, leader) })
	})
	for _, name := range members {
		t.Run("the server in "+name+" is killed", func(t *testing.T) {
			t.Logf("the leader is in %s", s.leader(t))
			s.testServerLoss(t, name, func() (restore func()) { return s.killServer(t, name) })
		})
		t.Run("the server in "+name+" is frozen", func(t *testing.T) {
			t.Logf("the leader is in %s", s.leader(t))
			s.testServerLoss(t, name, func() (restore func()) { return s.freezeServer(t, name) })
		})
	}
}

func (s *stage) testServerLoss(t *testing.T, member string, lose func() (restore func())) {
	others := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == member })
	if _, err := write(t.Context(), s.notes(t, others[0]), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	shared := startSharedReader(t, s, member, "read-me")
	undisturbed := map[string]*sharedReader{}
	for _, other := range others {
		undisturbed[other] = startSharedReader(t, s, other, "read-me")
	}
	o := startObserver(t, member, s.notes(t, member))
	w := startWriter(t, s.notes(t, others[0]), "led")
	eventually(t, failoverLimit, member+" uses its own server", func(ctx context.Context) error { return s.usesServers(ctx, t, member, member) })
	pass(t, 2*sharedReadInterval)

	lost := time.Now()
	restore := lose()
	eventually(t, failoverLimit, member+" uses the other servers", func(ctx context.Context) error { return s.usesServers(ctx, t, member, others...) })
	led := time.Now()
	eventually(t, failoverLimit, member+" reads shared objects", func(context.Context) error { return answered(shared.between(led, time.Now())) })
	newest := w.last()
	eventually(t, failoverLimit, "its watch continues", func(context.Context) error { return o.saw(newest) })
	pass(t, 2*sharedReadInterval)
	failed := 0
	for _, a := range shared.between(lost, time.Now()) {
		if a.err != nil {
			failed++
		}
	}
	t.Logf("%s was without reads for %s (%d failed), and without events for %s", member,
		outage(shared.between(time.Time{}, time.Now())).Round(10*time.Millisecond), failed, o.silence(lost).Round(10*time.Millisecond))

	restore()
	back := time.Now()
	eventually(t, failoverLimit, member+" uses its own server again", func(ctx context.Context) error { return s.usesServers(ctx, t, member, member) })
	pass(t, 4*time.Second)
	for _, a := range shared.between(back, time.Now()) {
		if a.err != nil {
			t.Errorf("%s after the server was back: after %s: %v", a.began.Sub(back).Round(time.Millisecond), a.took, a.err)
		}
	}
	for other, reader := range undisturbed {
		answers := reader.between(lost, time.Now())
		for _, a := range answers {
			if a.err != nil {
				t.Errorf("%s, whose server is well, %s after the loss: after %s: %v", other, a.began.Sub(lost).Round(time.Millisecond), a.took, a.err)
			}
		}
		t.Logf("%s: %d reads", other, len(answers))
	}
	w.end()
	eventually(t, failoverLimit, "the watch got all events", func(context.Context) error { return o.saw(w.last()) })
	o.check(t, w)
	w.check(t)
}

// leader returns the member whose server leads the fleet.
func (s *stage) leader(t *testing.T) string {
	t.Helper()
	var found string
	leases := s.client(t, "atoll-west").CoordinationV1()
	eventually(t, failoverLimit, "a server leads", func(ctx context.Context) error {
		lead, err := leases.Leases(fleet.LeaseNamespace).Get(ctx, fleet.LeaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		servers, err := leases.Leases(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.MemberEndpointLabel})
		if err != nil {
			return err
		}
		for _, server := range servers.Items {
			if lead.Spec.HolderIdentity != nil && *server.Spec.HolderIdentity == *lead.Spec.HolderIdentity {
				found = server.Labels[v1alpha1.MemberEndpointLabel]
				return nil
			}
		}
		return errors.New("the leader is not one of the servers")
	})
	return found
}

// killServer kills a server. restore, or the end of the test, starts it again.
func (s *stage) killServer(t *testing.T, name string) (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers[name].Kill()
	restore = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := s.startServer(ctx, name); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// freezeServer stops a server that keeps its connections, as when its machine is suspended. restore, or the
// end of the test, continues it.
func (s *stage) freezeServer(t *testing.T, name string) (restore func()) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid := s.servers[name].PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// usesServers returns an error unless a member's API server uses exactly the servers of the given members.
func (s *stage) usesServers(ctx context.Context, t *testing.T, name string, of ...string) error {
	slicesOf, err := s.client(t, name).DiscoveryV1().EndpointSlices(v1alpha1.SystemNamespace).
		List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + expose.Service})
	if err != nil {
		return err
	}
	var have, want []string
	for _, slice := range slicesOf.Items {
		for _, endpoint := range slice.Endpoints {
			have = append(have, endpoint.Addresses...)
		}
	}
	for _, m := range of {
		want = append(want, s.network.sites[m].address.String())
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return fmt.Errorf("%s uses the servers %v, want %v", name, have, want)
	}
	return nil
}

// answered returns the error of the last read.
func answered(answers []answer) error {
	if len(answers) == 0 {
		return errors.New("no reads")
	}
	return answers[len(answers)-1].err
}

// outage returns the longest time between two successful reads.
func outage(answers []answer) time.Duration {
	var worst time.Duration
	var last time.Time
	for _, a := range answers {
		if a.err != nil {
			continue
		}
		at := a.began.Add(a.took)
		if !last.IsZero() {
			worst = max(worst, at.Sub(last))
		}
		last = at
	}
	return worst
}
