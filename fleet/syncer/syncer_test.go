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

func TestSaysSoBeforeItDoesSo(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("the object is there", func() bool { return s.memberHas("ConfigMap", "conf") != nil })
	s.eventually("and reported", s.contains("control apply configmap-conf <nil>"))
	journal := s.settled()
	want := []string{"control apply configmap-conf Applying", "member apply conf", "control apply configmap-conf <nil>"}
	if strings.Join(journal, "\n") != strings.Join(want, "\n") {
		t.Errorf("wrote\n%s\nwant\n%s", strings.Join(journal, "\n"), strings.Join(want, "\n"))
	}
	made := s.memberHas("ConfigMap", "conf")
	if made.GetLabels()[v1alpha1.ManagedLabel] != "true" || made.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "source" {
		t.Errorf("without our marks: %v %v", made.GetLabels(), made.GetAnnotations())
	}
}

func TestTouchesNothingForeign(t *testing.T) {
	otherCluster := marked("theirs", "source")
	otherCluster.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "west", v1alpha1.SourceUIDAnnotation: "source"})
	for name, there := range map[string]*unstructured.Unstructured{
		"unmarked":            configMap("theirs"),
		"of another object":   marked("theirs", "another"),
		"of a twin's syncer":  otherCluster,
		"and a cluster's own": configMap("own"),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, objects(configMap("source"), binding(true, nil)), objects(there))
			s.eventually("a conflict is reported", s.contains("control apply configmap-conf Conflict"))
			for _, entry := range s.settled() {
				if strings.HasPrefix(entry, "member") {
					t.Errorf("wrote to the member: %s", entry)
				}
			}
		})
	}
	t.Run("unless told to", func(t *testing.T) {
		source := configMap("source")
		source.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: "true"})
		s := open(t, objects(source, binding(true, nil)), objects(configMap("theirs")))
		s.eventually("it is taken over", s.contains("member apply conf"))
	})
}

func TestALostMemberLosesNothing(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(false, &v1alpha1.ClusterState{UID: "there"})), nil)
	s.mu.Lock()
	s.down = errors.New("dial tcp 192.0.2.1:6443: connection refused")
	s.mu.Unlock()
	s.syncer.queue.Add(types.NamespacedName{Namespace: "shop", Name: "configmap-conf"})
	for _, entry := range s.settled() {
		// Before the line was cut it may have found that nothing is there.
		if strings.Contains(entry, "member delete") {
			t.Errorf("deleted: %s", entry)
		}
	}
	if got := explain(s.down); strings.Contains(got, "192.0.2.1") {
		t.Errorf("the report changes with each network error: %s", got)
	}
}

// TestReportsARolloutInSteps: that an object is on its way is not a report for each thing
// that happens on the way; that it has arrived is told at once.
func TestReportsARolloutInSteps(t *testing.T) {
	s := &Syncer{clock: testingclock.NewFakeClock(time.Unix(1000, 0))}
	fake := s.clock.(*testingclock.FakeClock)
	intent := &v1alpha1.ClusterState{Name: "east", Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}
	m := &memory{entry: intent, told: fake.Now()}
	going := &v1alpha1.ClusterState{Name: "east", UID: "u", Health: v1alpha1.Progressing, Message: "1 of 3"}
	if wait := s.early(m, going); wait != pace {
		t.Errorf("a report right after the intent waits %s, want %s", wait, pace)
	}
	for what, entry := range map[string]*v1alpha1.ClusterState{
		"that it is well":       {Name: "east", UID: "u", Health: v1alpha1.Healthy},
		"that it is in trouble": {Name: "east", UID: "u", Health: v1alpha1.Degraded},
		"what is in the way":    {Name: "east", UID: "u", Health: v1alpha1.Progressing, Reason: v1alpha1.StateDrifted},
	} {
		if wait := s.early(m, entry); wait > 0 {
			t.Errorf("%s waits %s", what, wait)
		}
	}
	fake.Step(pace)
	if wait := s.early(m, going); wait > 0 {
		t.Errorf("later it waits %s", wait)
	}
	if wait := s.early(&memory{}, going); wait > 0 {
		t.Errorf("the first report of a syncer waits %s", wait)
	}
}

// TestBeginsWithLists: a syncer that begins reads what is there by a watch, and does not
// ask for each object.
func TestBeginsWithLists(t *testing.T) {
	there := marked("there", "source")
	there.SetResourceVersion("5")
	s := open(t, objects(configMap("source"), binding(true, &v1alpha1.ClusterState{UID: "there", Health: v1alpha1.Healthy})), objects(there))
	s.eventually("it is put in step", s.contains("member apply conf"))
	s.settled()
	for _, a := range s.member.Actions() {
		if a.GetVerb() == "get" && a.GetResource().Resource == "configmaps" {
			t.Errorf("asked for one: %v", a)
		}
	}
}

// TestBeginsWhereTheLastOneEnded: what is there as another syncer left it is not applied
// again; what was changed there meanwhile is.
func TestBeginsWhereTheLastOneEnded(t *testing.T) {
	first := open(t, objects(configMap("source"), binding(true, nil)), nil)
	first.eventually("it is reported", first.contains("control apply configmap-conf <nil>"))
	first.settled()
	b, err := first.control.Tracker().Get(v1alpha1.ResourceBindingResource, "shop", "configmap-conf")
	if err != nil {
		t.Fatal(err)
	}
	left := first.memberHas("ConfigMap", "conf")
	bound := b.(*unstructured.Unstructured)

	second := open(t, objects(configMap("source"), bound.DeepCopy()), objects(left.DeepCopy()))
	if wrote := second.settled(); len(wrote) > 0 {
		t.Errorf("wrote %q", wrote)
	}
	changed := left.DeepCopy()
	changed.Object["data"] = map[string]any{"a": "something else"}
	third := open(t, objects(configMap("source"), bound.DeepCopy()), objects(changed))
	third.eventually("it is put right", third.contains("member apply conf"))
}
