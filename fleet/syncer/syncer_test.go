package syncer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestRecordsIntentBeforeFirstWrite(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("the object is there", func() bool { return s.memberObject("ConfigMap", "conf") != nil })
	s.eventually("and reported", s.contains("control apply configmap-conf <nil>"))
	journal := s.waitIdle()
	want := []string{"control apply configmap-conf Applying", "member apply conf", "control apply configmap-conf <nil>"}
	if strings.Join(journal, "\n") != strings.Join(want, "\n") {
		t.Errorf("wrote\n%s\nwant\n%s", strings.Join(journal, "\n"), strings.Join(want, "\n"))
	}
	made := s.memberObject("ConfigMap", "conf")
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
			for _, entry := range s.waitIdle() {
				if strings.HasPrefix(entry, "member") {
					t.Errorf("wrote to the member: %s", entry)
				}
			}
		})
	}
	t.Run("adopts on request", func(t *testing.T) {
		source := configMap("source")
		source.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: "true"})
		s := newFixture(t, objects(source, binding(true, nil)), objects(configMap("theirs")))
		s.eventually("it is taken over", s.contains("member apply conf"))
	})
}

func TestUnreachableMemberDeletesNothing(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(false, &v1alpha1.ClusterState{UID: "there"})), nil)
	s.mu.Lock()
	s.memberErr = errors.New("dial tcp 192.0.2.1:6443: connection refused")
	s.mu.Unlock()
	s.syncer.queue.Add(types.NamespacedName{Namespace: "shop", Name: "configmap-conf"})
	for _, entry := range s.waitIdle() {
		// Before the connection was cut, it may have found that there is no object.
		if strings.Contains(entry, "member delete") {
			t.Errorf("deleted: %s", entry)
		}
	}
	if got := explain(s.memberErr); strings.Contains(got, "192.0.2.1") {
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
	there := managed("there", "source")
	there.SetResourceVersion("5")
	s := newFixture(t, objects(configMap("source"), binding(true, &v1alpha1.ClusterState{UID: "there", Health: v1alpha1.Healthy})), objects(there))
	s.eventually("the object is applied", s.contains("member apply conf"))
	s.waitIdle()
	for _, a := range s.member.Actions() {
		if a.GetVerb() == "get" && a.GetResource().Resource == "configmaps" {
			t.Errorf("read a single object: %v", a)
		}
	}
}

// TestRestartDoesNotReapply: an object that a previous syncer applied is applied again only if
// it has changed since.
func TestRestartDoesNotReapply(t *testing.T) {
	first := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	first.eventually("it is reported", first.contains("control apply configmap-conf <nil>"))
	first.waitIdle()
	b, err := first.control.Tracker().Get(v1alpha1.ResourceBindingResource, "shop", "configmap-conf")
	if err != nil {
		t.Fatal(err)
	}
	left := first.memberObject("ConfigMap", "conf")
	bound := b.(*unstructured.Unstructured)

	second := newFixture(t, objects(configMap("source"), bound.DeepCopy()), objects(left.DeepCopy()))
	if wrote := second.waitIdle(); len(wrote) > 0 {
		t.Errorf("wrote %q", wrote)
	}
	changed := left.DeepCopy()
	changed.Object["data"] = map[string]any{"a": "something else"}
	third := newFixture(t, objects(configMap("source"), bound.DeepCopy()), objects(changed))
	third.eventually("the drift is corrected", third.contains("member apply conf"))
}
