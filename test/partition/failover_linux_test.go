package partition_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/expose"
)

// failoverLimit is how long a member may be without what is shared when its server is
// lost and others could do its work: 10 s until a server that is silent counts as gone,
// 10 s before that until another leads the fleet, and what a busy machine adds.
const failoverLimit = 40 * time.Second

// A server is killed, or cut off from the database alone. The API server of its member
// is led to the other servers, its watches too, and back when it has returned. Once it
// is the server that leads the fleet, which is the one who would do that; the other
// time it is not.
func TestAMemberIsLedToOtherServers(t *testing.T) {
	s := stretched(t)
	leader := s.leader(t)
	follower := members[slices.IndexFunc(members, func(m string) bool { return m != leader })]
	t.Run("one that follows is killed", func(t *testing.T) {
		s.losesServer(t, follower, func() (giveBack func()) { return s.killServer(t, follower) })
	})
	t.Run("the one that leads is cut off from the database", func(t *testing.T) {
		leader := s.leader(t)
		s.losesServer(t, leader, func() (giveBack func()) { return s.network.cut(t, leader, databaseSite) })
	})
}

func (s *stage) losesServer(t *testing.T, member string, lose func() (giveBack func())) {
	others := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == member })
	if _, err := write(t.Context(), s.letters(t, others[0]), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	shared := startAsker(t, s, member, "read-me")
	o := startObserver(t, member, s.letters(t, member))
	w := startWriter(t, s.letters(t, others[0]), "led")
	eventually(t, failoverLimit, member+" calls its own server", func(ctx context.Context) error { return s.calls(ctx, t, member, member) })
	pass(t, 2*asksEach)

	lost := time.Now()
	giveBack := lose()
	eventually(t, failoverLimit, member+" is led to other servers", func(ctx context.Context) error { return s.calls(ctx, t, member, others...) })
	led := time.Now()
	eventually(t, failoverLimit, member+" reads what is shared", func(context.Context) error { return answered(shared.between(led, time.Now())) })
	newest := w.last()
	eventually(t, failoverLimit, "its watch goes on", func(context.Context) error { return o.saw(newest) })
	pass(t, 2*asksEach)
	t.Logf("%s was without reads for %s, and without events for %s", member,
		outage(shared.between(time.Time{}, time.Now())).Round(10*time.Millisecond), o.silence(lost).Round(10*time.Millisecond))

	giveBack()
	back := time.Now()
	eventually(t, failoverLimit, member+" calls its own server again", func(ctx context.Context) error { return s.calls(ctx, t, member, member) })
	pass(t, 4*time.Second)
	for _, a := range shared.between(back, time.Now()) {
		if a.err != nil {
			t.Errorf("%s after the server was back: after %s: %v", a.began.Sub(back).Round(time.Millisecond), a.took, a.err)
		}
	}
	w.end()
	eventually(t, failoverLimit, "the watch saw everything", func(context.Context) error { return o.saw(w.last()) })
	o.check(t, w)
	w.check(t)
}

// leader is the member whose server leads the fleet.
func (s *stage) leader(t *testing.T) string {
	t.Helper()
	var found string
	leases := s.client(t, "atoll-west").CoordinationV1()
	eventually(t, failoverLimit, "somebody leads", func(ctx context.Context) error {
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
		return errors.New("the leader is not among the servers")
	})
	return found
}

// killServer ends a server until giveBack, or the end of the test.
func (s *stage) killServer(t *testing.T, name string) (giveBack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers[name].Kill()
	giveBack = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := s.startServer(ctx, name); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(giveBack)
	return giveBack
}

// calls tells whether a member's API server calls the servers of these members, and no
// others.
func (s *stage) calls(ctx context.Context, t *testing.T, name string, of ...string) error {
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
		return fmt.Errorf("%s calls %v, not %v", name, have, want)
	}
	return nil
}

// answered: the last of these has an answer.
func answered(answers []answer) error {
	if len(answers) == 0 {
		return errors.New("nobody has read")
	}
	return answers[len(answers)-1].err
}

// outage is the longest time from one good answer to the next.
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
