package clusters

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestLeavingWaitsForTheSyncer: a Cluster in mode Pull keeps its finalizer until its syncer has removed the fleet's empty
// namespaces, if the syncer does that, it answers, and the objects are not to stay.
func TestLeavingWaitsForTheSyncer(t *testing.T) {
	for name, tt := range map[string]struct {
		heard   bool
		seen    fleet.Observation
		ready   metav1.ConditionStatus
		cascade string
		waits   string // the message; "" if it leaves
	}{
		"not yet":                  {true, fleet.Observation{RemovesNamespaces: true}, "True", "", "the cluster's syncer has not removed them yet"},
		"before the first report":  {false, fleet.Observation{}, "True", "", "the cluster's syncer has not removed them yet"},
		"it fails":                 {true, fleet.Observation{RemovesNamespaces: true, NamespacesMessage: "no permission"}, "True", "", "no permission"},
		"done for another Cluster": {true, fleet.Observation{RemovesNamespaces: true, NamespacesRemoved: "other"}, "True", "", "the cluster's syncer has not removed them yet"},
		"done":                     {true, fleet.Observation{RemovesNamespaces: true, NamespacesRemoved: "uid"}, "True", "", ""},
		"an older syncer":          {true, fleet.Observation{}, "True", "", ""},
		"its objects stay":         {true, fleet.Observation{RemovesNamespaces: true}, "True", v1alpha1.LeaveOrphan, ""},
		"it does not answer":       {true, fleet.Observation{RemovesNamespaces: true}, "False", "", ""},
	} {
		s := prepare(t, nil)
		c := newController(t.Context(), s.session(t.Context()), s.serve, noNamespaces, s.metrics)
		c.heartbeats = &heartbeats{last: map[string]lastHeartbeat{}}
		if tt.heard {
			c.heartbeats.last["east"] = lastHeartbeat{at: s.clock.Now(), observation: tt.seen}
		}
		s.control.Put(&v1alpha1.Cluster{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Cluster"},
			ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "uid", Finalizers: []string{v1alpha1.ClusterFinalizer}, Annotations: map[string]string{v1alpha1.LeaveAnnotation: tt.cascade}},
			Spec:       v1alpha1.ClusterSpec{Mode: v1alpha1.ModePull},
			Status:     v1alpha1.ClusterStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: tt.ready, Reason: "Test", LastTransitionTime: metav1.Now()}}}})
		s.control.Delete(v1alpha1.ClusterResource, "", "east")
		cluster := &v1alpha1.Cluster{}
		s.control.Read(v1alpha1.ClusterResource, "", "east", cluster)
		if err := c.finalize(t.Context(), cluster, newMemberReconciler(c, "east", false)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		message := ""
		if s.control.Read(v1alpha1.ClusterResource, "", "east", cluster) {
			for _, condition := range cluster.Status.Conditions {
				if condition.Type == v1alpha1.ClusterLeaving {
					message = condition.Message
				}
			}
		}
		want := ""
		if tt.waits != "" {
			want = "the empty namespaces of the fleet are still in the cluster: " + tt.waits + "; retrying, or leave them there with `atoll leave east --cascade=orphan`"
		}
		if message != want {
			t.Errorf("%s: the message is %q, want %q", name, message, want)
		}
	}
}

// TestSyncersRemoveNamespaces: the syncer in mode Pull removes the fleet's empty namespaces when its Cluster leaves and
// nothing is bound to it. It tries again after a failure, and reports both outcomes.
func TestSyncersRemoveNamespaces(t *testing.T) {
	s := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Now())}
	s.id.Store("id-1")
	s.member = httptest.NewServer(http.HandlerFunc(s.answer))
	defer s.member.Close()
	var self atomic.Pointer[v1alpha1.Cluster]
	var bound, denied atomic.Bool
	var asked atomic.Int32
	cluster := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "uid"}, Status: v1alpha1.ClusterStatus{ID: "id-1"}}
	self.Store(cluster)
	bound.Store(true)
	denied.Store(true)
	var seen atomic.Pointer[fleet.Observation]
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Observer{Clock: s.clock, Log: slog.New(slog.DiscardHandler),
			Self:   func() (*v1alpha1.Cluster, bool) { return self.Load(), true },
			Report: func(_ context.Context, o fleet.Observation) error { seen.Store(&o); return nil },
			Serve:  func(ctx context.Context) error { return s.serve(ctx, nil, "east", nil, nil) },
			Bound:  bound.Load,
			RemoveNamespaces: func(context.Context) error {
				asked.Add(1)
				if denied.Load() {
					return errors.New("no permission")
				}
				return nil
			},
		}.Run(ctx, &rest.Config{Host: s.member.URL})
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, holds func(*fleet.Observation) bool) {
		t.Helper()
		fakeapi.Until(t, what, func() bool {
			s.clock.Step(time.Second)
			o := seen.Load()
			return o != nil && holds(o)
		})
	}
	reports := func(what string) { // waits for two further reports
		t.Helper()
		for range 2 {
			last := seen.Load()
			until(what, func(o *fleet.Observation) bool { return o != last && o.Ready })
		}
	}
	reports("it reports")
	if o := seen.Load(); !o.RemovesNamespaces || asked.Load() > 0 {
		t.Errorf("before the cluster leaves: %+v, asked %d times", o, asked.Load())
	}
	leaves, now := cluster.DeepCopy(), metav1.Now()
	leaves.DeletionTimestamp = &now
	orphans := leaves.DeepCopy()
	orphans.Annotations = map[string]string{v1alpha1.LeaveAnnotation: v1alpha1.LeaveOrphan}
	self.Store(leaves)
	reports("objects are bound")
	self.Store(orphans) // before nothing is bound, so that no turn sees a Cluster whose namespaces are to go
	reports("objects are to stay")
	bound.Store(false)
	reports("objects are to stay")
	if asked.Load() > 0 {
		t.Fatalf("namespaces are removed although objects are bound, or are to stay")
	}
	self.Store(leaves)
	until("it says why it failed", func(o *fleet.Observation) bool {
		return o.NamespacesMessage == "no permission" && o.NamespacesRemoved == ""
	})
	denied.Store(false)
	until("it has removed them", func(o *fleet.Observation) bool { return o.NamespacesMessage == "" && o.NamespacesRemoved == "uid" })
	times := asked.Load()
	reports("it goes on")
	if asked.Load() != times {
		t.Errorf("they are removed again")
	}
}
