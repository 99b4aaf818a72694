package syncer

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func (s *fixture) data() string {
	s.t.Helper()
	data, _, _ := unstructured.NestedString(s.conf().Object, "data", "a")
	return data
}

// TestReportsContestingManager: a manager in the member that reverts every correction is
// reported, with the field, until it stops.
func TestReportsContestingManager(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.waitForConf()
	s.settle()
	for range freeCorrections {
		s.edit("rival", configMaps, "conf", func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"a": "by a rival"} })
		s.eventually("the drift is corrected", func() bool { return s.data() == "b" })
	}
	s.eventually("the contest is reported", func() bool { return s.state().Reason == v1alpha1.StateContested })
	got := s.state()
	for _, words := range []string{"rival", "data.a", "spec.drift: Report"} {
		if !strings.Contains(got.Message, words) {
			t.Errorf("message %q does not contain %q", got.Message, words)
		}
	}
	if got.UID == "" || got.Applied == "" {
		t.Errorf("the known state is lost: %+v", got)
	}
	s.eventually("the contest ends when no one reverts the object", func() bool { return s.state().Reason == "" })
}

// TestReportsUnwatchableKind: objects of a kind that cannot be watched are polled, and the
// entry has the reason Unwatched until the kind is watchable.
func TestReportsUnwatchableKind(t *testing.T) {
	s := &fixture{t: t, watchErr: statusError(403, metav1.StatusReasonForbidden, `configmaps is forbidden: User "atoll" cannot watch resource "configmaps"`)}
	s.start(objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("it is there", func() bool { return s.conf() != nil })
	s.eventually("it is reported", func() bool { return s.state().Reason == v1alpha1.StateUnwatched })
	if message := s.state().Message; !strings.Contains(message, `cannot watch resource "configmaps"`) || !strings.Contains(message, "grant that") {
		t.Errorf("message %q", message)
	}
	// Polling finds a change there.
	s.edit("kubectl", configMaps, "conf", func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"a": "by hand"} })
	s.syncer.requeueKind(kindInfo("", "ConfigMap"))
	s.eventually("the drift is corrected", func() bool { return s.data() == "b" })

	s.mu.Lock()
	s.watchErr = nil
	s.mu.Unlock()
	s.eventually("the kind is watched, and the reason is cleared", func() bool { return s.state().Reason == "" })
}
