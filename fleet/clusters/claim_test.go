package clusters

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var leaseResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// contest is a member that several control planes claim.
type contest struct {
	*testing.T
	member *fakeapi.Server
	clock  *clocktesting.FakeClock
}

func newContest(t *testing.T) *contest {
	return &contest{t, fakeapi.New(t, fakeapi.BuiltIns("coordination.k8s.io/v1 Lease")...), clocktesting.NewFakeClock(time.Now())}
}

// contender is one process of a control plane.
type contender struct {
	*contest
	*claims
	cluster *v1alpha1.Cluster
	last    result
}

func (c *contest) contender(id, database, session string) *contender {
	c.Helper()
	one, err := newClaims(c.member.Config(), claimant{fleet.ControlPlane{ID: id, Database: database, Server: "https://" + session}, session}, c.clock)
	if err != nil {
		c.Fatal(err)
	}
	return &contender{contest: c, claims: one, cluster: &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east", Annotations: map[string]string{}}}}
}

// probe makes one successful probe, and returns the reason; "" while it is undecided.
func (c *contender) probe() string {
	c.Helper()
	r, known := c.check(c.Context(), c.cluster, result{ready: true, reason: v1alpha1.ReasonClusterReady, message: "ready"})
	if !known {
		return ""
	}
	c.last = r
	return r.reason
}

// expect lets some time pass, with probes of all, and compares their reasons.
func (c *contest) expect(when string, passed time.Duration, want map[*contender]string) {
	c.Helper()
	for end := c.clock.Now().Add(passed); ; c.clock.Step(probeInterval) {
		last := !c.clock.Now().Before(end)
		for one, reason := range want {
			if got := one.probe(); last && got != reason {
				c.Errorf("%s: %s is %q, want %q (%s)", when, one.session, got, reason, one.last.message)
			}
		}
		if last {
			return
		}
	}
}

func (c *contest) holder() string {
	var lease coordinationv1.Lease
	if !c.member.Read(leaseResource, metav1.NamespaceSystem, v1alpha1.ClaimLease, &lease) {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

const (
	mine   = v1alpha1.ReasonClusterReady
	theirs = v1alpha1.ReasonOtherControlPlane
)

// TestARestoredControlPlaneStandsBack: it has another ID. It never replaces the first one without a
// user's word, not even while that one is silent, and both can replace each other with it.
func TestARestoredControlPlaneStandsBack(t *testing.T) {
	c := newContest(t)
	first, second := c.contender("a", "1", "first"), c.contender("b", "2", "second")
	c.expect("alone", 0, map[*contender]string{first: mine})
	c.expect("beside it", time.Minute, map[*contender]string{first: mine, second: theirs})
	if text := second.last.message; !strings.Contains(text, "another control plane, a, whose server is https://first") || !strings.Contains(text, "atoll clusters take-over east") {
		t.Error(text)
	}
	if claim := second.last.claim; claim == nil || claim.Holder != "a/1" || claim.Server != "https://first" {
		t.Errorf("%+v", claim)
	}
	c.expect("the first is silent", time.Hour, map[*contender]string{second: theirs})
	second.cluster.Annotations[v1alpha1.TakeOverAnnotation] = "a/1"
	c.expect("a user lets the second replace it", 0, map[*contender]string{second: mine})
	c.expect("both", time.Minute, map[*contender]string{first: theirs, second: mine})
	delete(second.cluster.Annotations, v1alpha1.TakeOverAnnotation)
	first.cluster.Annotations[v1alpha1.TakeOverAnnotation] = "b/2"
	c.expect("and back", time.Minute, map[*contender]string{first: mine, second: theirs})
	third := c.contender("c", "3", "third")
	third.cluster.Annotations[v1alpha1.TakeOverAnnotation] = "b/2"
	c.expect("a permission for another holder", time.Minute, map[*contender]string{third: theirs, first: mine})
}

// TestACopyOfTheFilesStandsBack: it has the same ID, and replaces the first one only when that is silent, as
// a standby that has taken over must.
func TestACopyOfTheFilesStandsBack(t *testing.T) {
	c := newContest(t)
	first, second := c.contender("a", "1", "first"), c.contender("a", "2", "second")
	c.expect("alone", 0, map[*contender]string{first: mine})
	c.expect("at once", 0, map[*contender]string{second: ""})
	c.expect("beside it", time.Minute, map[*contender]string{first: mine, second: theirs})
	if text := second.last.message; !strings.Contains(text, "another copy of this one's database, whose server is https://first") || !strings.Contains(text, claimExpiry.String()) {
		t.Error(text)
	}
	c.expect("the first is silent", claimExpiry, map[*contender]string{second: mine})
	c.expect("it comes back", time.Minute, map[*contender]string{first: theirs, second: mine})
	third := c.contender("a", "3", "third")
	c.expect("a failover with all servers", claimExpiry, map[*contender]string{third: mine})
}

// TestTheLeaderChanges: the next leader of the same control plane continues at once. One that is still
// alive stands back.
func TestTheLeaderChanges(t *testing.T) {
	c := newContest(t)
	first, second := c.contender("a", "1", "first"), c.contender("a", "1", "second")
	c.expect("alone", time.Minute, map[*contender]string{first: mine})
	c.expect("at once", 0, map[*contender]string{second: mine})
	c.expect("both", time.Minute, map[*contender]string{first: theirs, second: mine})
}

// TestALeavingClusterIsReleased: another control plane can claim it. One that does not hold it releases
// nothing.
func TestALeavingClusterIsReleased(t *testing.T) {
	c := newContest(t)
	first, second := c.contender("a", "1", "first"), c.contender("b", "2", "second")
	c.expect("alone", 0, map[*contender]string{first: mine})
	now := metav1.Now()
	second.cluster.DeletionTimestamp = &now
	c.expect("the second leaves", time.Minute, map[*contender]string{first: mine, second: theirs})
	if err := second.leave(t.Context()); err != nil || c.holder() != "a/1" {
		t.Errorf("%v, held by %s", err, c.holder())
	}
	first.cluster.DeletionTimestamp = &now
	c.expect("the first leaves", time.Minute, map[*contender]string{first: mine})
	if got := c.holder(); got != "" {
		t.Errorf("held by %s", got)
	}
	second.cluster.DeletionTimestamp = nil
	c.expect("it has left", 0, map[*contender]string{second: mine})
}

// TestClaimsThatFail: without the permission, the cluster is served, with a remark in its condition; other
// errors count as failed probes. A deleted claim is created again.
func TestClaimsThatFail(t *testing.T) {
	c := newContest(t)
	var failure atomic.Pointer[metav1.Status]
	c.member.OnRequest(func(fakeapi.Request) *metav1.Status { return failure.Load() })
	first := c.contender("a", "1", "first")
	failure.Store(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden})
	c.expect("forbidden", 0, map[*contender]string{first: mine})
	if !strings.Contains(first.last.message, "may not get, create and update Leases") || first.last.claim.Holder != "a/1" {
		t.Errorf("%+v", first.last)
	}
	failure.Store(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "disk full"})
	c.expect("failing", 0, map[*contender]string{first: v1alpha1.ReasonClusterNotReady})
	if !strings.Contains(first.last.message, "Lease kube-system/atoll-control-plane") || !strings.Contains(first.last.message, "disk full") {
		t.Errorf("%+v", first.last)
	}
	failure.Store(nil)
	c.expect("again", 0, map[*contender]string{first: mine})
	c.member.Delete(leaseResource, metav1.NamespaceSystem, v1alpha1.ClaimLease)
	c.expect("deleted", time.Minute, map[*contender]string{first: mine})
	if c.holder() != "a/1" {
		t.Error("it was not made again")
	}
	other := c.contender("b", "2", "other")
	other.cluster.Annotations[v1alpha1.TakeOverAnnotation] = "a/1"
	c.expect("taken over between two probes", 0, map[*contender]string{other: mine})
	c.expect("and noticed", renewClaim, map[*contender]string{first: theirs})
}

// TestNothingRunsInTheClustersOfAnother: the controller serves no cluster of another control plane, until a
// user lets it replace that one, and forgets that word.
func TestNothingRunsInTheClustersOfAnother(t *testing.T) {
	c := newContest(t)
	s := prepare(t, map[string]string{"east": "id-1"})
	s.leases, s.clock = c.member, c.clock
	other := c.contender("a", "1", "first")
	other.probe()
	run(t, s, fleet.ControlPlane{ID: "b", Database: "2"})
	s.waitReady("east", theirs, "https://first", "atoll clusters take-over east")
	if s.serves("east") {
		t.Error("the syncer runs")
	}
	if claim := s.now("east").Status.Claim; claim == nil || claim.Holder != "a/1" {
		t.Errorf("%+v", claim)
	}
	s.control.Merge(v1alpha1.ClusterResource, "", "east", `{"metadata":{"annotations":{"`+v1alpha1.TakeOverAnnotation+`":"a/1"}}}`)
	s.waitReady("east", mine)
	fakeapi.Until(t, "the syncer runs", func() bool { return s.serves("east") })
	fakeapi.Until(t, "the word is forgotten", func() bool { return len(s.now("east").Annotations) == 0 })
	other.cluster.Annotations[v1alpha1.TakeOverAnnotation] = "b/2"
	// Until its own claim is old enough to be renewed, it does not notice that it has lost the cluster.
	fakeapi.Until(t, "the other replaces it", func() bool { c.clock.Step(time.Second); other.probe(); return c.holder() == "a/1" })
	s.waitReady("east", theirs)
	fakeapi.Until(t, "the syncer has stopped", func() bool { return !s.serves("east") })
	other.cluster.DeletionTimestamp = ptr.To(metav1.Now())
	other.probe()
	s.waitReady("east", mine)
	s.control.Delete(v1alpha1.ClusterResource, "", "east")
	fakeapi.Until(t, "it has left", func() bool { return c.holder() == "" })
}

// TestASyncerIsLedToACopy: the address of the servers leads a syncer in mode Pull to another control plane.
func TestASyncerIsLedToACopy(t *testing.T) {
	c := newContest(t)
	s := &fixture{t: t, clock: c.clock, leases: c.member}
	s.id.Store("id-1")
	s.member = httptest.NewServer(http.HandlerFunc(s.answer))
	defer s.member.Close()
	var self atomic.Pointer[v1alpha1.Cluster]
	ledTo := func(holder, takeOver string) {
		self.Store(&v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east", Annotations: map[string]string{v1alpha1.TakeOverAnnotation: takeOver}},
			Status: v1alpha1.ClusterStatus{ID: "id-1", Claim: &v1alpha1.ClusterClaim{Holder: holder, Server: "https://" + holder}}})
	}
	ledTo("a/1", "")
	said, stop := s.observe(&self)
	expect := func(reason string, serves bool, holder string) {
		t.Helper()
		fakeapi.Until(t, reason, func() bool {
			s.clock.Step(time.Second)
			o := said.Load()
			return o != nil && o.Reason == reason && s.serves("east") == serves && o.Claim != nil && o.Claim.Holder == holder && c.holder() == holder
		})
	}
	expect(mine, true, "a/1")
	ledTo("a/2", "") // the database has failed over
	expect(mine, true, "a/2")
	ledTo("b/3", "")
	expect(theirs, false, "a/2")
	ledTo("b/3", "a/2")
	expect(mine, true, "b/3")
	stop()
}
