package syncer

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestRecordsIntentBeforeFirstWrite(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("the object is there", func() bool { return s.conf() != nil })
	s.eventually("and reported", s.contains("control apply configmap-conf <nil>"))
	journal := s.settle()
	want := []string{"control apply configmap-conf Applying", "member apply conf", "control apply configmap-conf <nil>"}
	if strings.Join(journal, "\n") != strings.Join(want, "\n") {
		t.Errorf("wrote\n%s\nwant\n%s", strings.Join(journal, "\n"), strings.Join(want, "\n"))
	}
	made := s.conf()
	if made.GetLabels()[v1alpha1.ManagedLabel] != "true" || made.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "source" {
		t.Errorf("Atoll's labels or annotations are missing: %v %v", made.GetLabels(), made.GetAnnotations())
	}
}

func TestDoesNotModifyForeignObjects(t *testing.T) {
	otherCluster := managed("theirs", "source")
	otherCluster.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "west", v1alpha1.SourceUIDAnnotation: "source"})
	for name, there := range map[string]*unstructured.Unstructured{
		"unmarked":             configMap("theirs"),
		"of another object":    managed("theirs", "another"),
		"of another syncer":    otherCluster,
		"of the member itself": configMap("own"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(configMap("source"), binding(true, nil)), objects(there))
			s.eventually("a conflict is reported", s.contains("control apply configmap-conf Conflict"))
			if wrote := wroteToMember(s.settle()); len(wrote) > 0 {
				t.Errorf("wrote to the member: %q", wrote)
			}
		})
	}
	t.Run("adopts on request", func(t *testing.T) {
		source := configMap("source")
		source.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: "true"})
		s := newFixture(t, objects(source, binding(true, nil)), objects(configMap("theirs")))
		s.eventually("it is taken over", s.contains("member apply conf"))
	})
	t.Run("adopts in the cluster that the request names", func(t *testing.T) {
		source := configMap("source")
		source.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: "east"})
		s := newFixture(t, objects(source, binding(true, nil)), objects(configMap("theirs")))
		s.eventually("it is taken over", s.contains("member apply conf"))
	})
	t.Run("does not adopt in another cluster", func(t *testing.T) {
		source := configMap("source")
		source.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: "west"})
		s := newFixture(t, objects(source, binding(true, nil)), objects(configMap("theirs")))
		s.eventually("a conflict is reported", s.contains("control apply configmap-conf Conflict"))
		if wrote := wroteToMember(s.settle()); len(wrote) > 0 {
			t.Errorf("wrote to the member: %q", wrote)
		}
	})
}

// TestAdoptsWhatTheFleetLeft: a Cluster that joined with --adopt takes over exactly the objects that this
// fleet left there.
func TestAdoptsWhatTheFleetLeft(t *testing.T) {
	left := func(source string) *unstructured.Unstructured {
		u := configMap("there")
		u.SetAnnotations(map[string]string{v1alpha1.LeftAnnotation: source})
		return u
	}
	unanswered := managed("there", "source")
	unanswered.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "earlier-name", v1alpha1.SourceUIDAnnotation: "source"})
	for name, tt := range map[string]struct {
		there *unstructured.Unstructured
		takes bool
	}{
		"left": {left("source"), true}, "left without an answer": {unanswered, true},
		"left by another object": {left("another"), false}, "foreign": {configMap("there"), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(configMap("source"), binding(true, nil)), objects(tt.there))
			s.eventually("a conflict is reported", s.contains("control apply configmap-conf Conflict"))
			if wrote := wroteToMember(s.settle()); len(wrote) > 0 {
				t.Fatalf("wrote to the member before it was asked to adopt: %q", wrote)
			}
			s.control.Merge(v1alpha1.ClusterResource, "", "east", `{"metadata":{"annotations":{"`+v1alpha1.AdoptAnnotation+`":"true"}}}`)
			if tt.takes {
				s.eventually("it is taken over", s.contains("member apply conf"))
				s.eventually("the conflict is over", func() bool { return s.state().Reason == "" })
				return
			}
			if wrote := wroteToMember(s.settle()); len(wrote) > 0 {
				t.Errorf("wrote to the member: %q", wrote)
			}
		})
	}
}

func TestUnreachableMemberDeletesNothing(t *testing.T) {
	s := &fixture{t: t, down: true}
	s.start(objects(configMap("source"), binding(false, &v1alpha1.ClusterState{UID: "there"})), objects(managed("there", "source")))
	s.eventually("the failure is reported", s.contains("control apply configmap-conf Removing"))
	for _, entry := range s.writes() {
		if strings.Contains(entry, "member delete") || strings.Contains(entry, "no entry") {
			t.Errorf("removed: %s", entry)
		}
	}
	if got := s.state().Message; !strings.Contains(got, "does not respond") || strings.Contains(got, "127.0.0.1") {
		t.Errorf("the report changes with each network error: %s", got)
	}
}

// TestProgressReportsAreRateLimited: reports of a progressing object are rate-limited; its
// final state is reported at once.
func TestProgressReportsAreRateLimited(t *testing.T) {
	s := &Syncer{clock: testingclock.NewFakeClock(time.Unix(1000, 0))}
	fake := s.clock.(*testingclock.FakeClock)
	intent := &v1alpha1.ClusterState{Name: "east", Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}
	m := &record{entry: intent, reportedAt: fake.Now()}
	going := &v1alpha1.ClusterState{Name: "east", UID: "u", Health: v1alpha1.Progressing, Message: "1 of 3"}
	if wait := s.reportDelay(m, going); wait != reportInterval {
		t.Errorf("a report right after the intent is delayed by %s, want %s", wait, reportInterval)
	}
	for what, entry := range map[string]*v1alpha1.ClusterState{
		"healthy":  {Name: "east", UID: "u", Health: v1alpha1.Healthy},
		"degraded": {Name: "east", UID: "u", Health: v1alpha1.Degraded},
		"drifted":  {Name: "east", UID: "u", Health: v1alpha1.Progressing, Reason: v1alpha1.StateDrifted},
	} {
		if wait := s.reportDelay(m, entry); wait > 0 {
			t.Errorf("a report %q is delayed by %s", what, wait)
		}
	}
	fake.Step(reportInterval)
	if wait := s.reportDelay(m, going); wait > 0 {
		t.Errorf("after the interval, the report is delayed by %s", wait)
	}
	if wait := s.reportDelay(&record{}, going); wait > 0 {
		t.Errorf("the first report of a syncer is delayed by %s", wait)
	}
}

// TestStartupReadsFromCache: on startup a syncer reads the member's objects by list and watch,
// not one by one.
func TestStartupReadsFromCache(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, &v1alpha1.ClusterState{UID: "there", Health: v1alpha1.Healthy})), objects(managed("there", "source")))
	s.eventually("the object is applied", s.contains("member apply conf"))
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reads) > 0 {
		t.Errorf("read single objects: %q", s.reads)
	}
}

// TestRestartDoesNotReapply: an object that a previous syncer applied is applied again only if
// it has changed since.
func TestRestartDoesNotReapply(t *testing.T) {
	first := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	first.eventually("it is reported", first.contains("control apply configmap-conf <nil>"))
	first.settle()
	bound, left := first.control.Get(v1alpha1.ResourceBindingResource, "shop", "configmap-conf"), first.conf()

	second := newFixture(t, objects(configMap("source"), bound), objects(left))
	if wrote := second.settle(); len(wrote) > 0 {
		t.Errorf("wrote %q", wrote)
	}
	changed := left.DeepCopy()
	changed.Object["data"] = map[string]any{"a": "something else"}
	third := newFixture(t, objects(configMap("source"), bound), objects(changed))
	third.eventually("the drift is corrected", third.contains("member apply conf"))
}
