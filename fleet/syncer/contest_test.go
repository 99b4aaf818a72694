package syncer

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

func (s *stage) data() string {
	s.t.Helper()
	data, _, _ := unstructured.NestedString(s.memberHas("ConfigMap", "conf").Object, "data", "a")
	return data
}

// TestSaysWhoFightsBack: a controller in the member that insists on its own value is
// named, with the field, until it gives in.
func TestSaysWhoFightsBack(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(true, nil)), nil)
	for i := range free {
		if i == 0 {
			s.changedByHand()
		} else {
			changed := s.memberHas("ConfigMap", "conf").DeepCopy()
			version, _ := strconv.Atoi(changed.GetResourceVersion())
			changed.SetResourceVersion(strconv.Itoa(version + 1))
			changed.Object["data"] = map[string]any{"a": "by a rival"}
			changed.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "rival", Operation: metav1.ManagedFieldsOperationUpdate,
				FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{"f:a":{}}}`)}}})
			if err := s.member.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "shop"); err != nil {
				t.Fatal(err)
			}
		}
		s.eventually("it is put right", func() bool { return s.data() == "b" })
	}
	s.eventually("the contest is reported", func() bool { return s.state().Reason == v1alpha1.StateContested })
	said := s.state()
	for _, words := range []string{"rival", "data.a", "spec.drift: Report"} {
		if !strings.Contains(said.Message, words) {
			t.Errorf("says %q, without %q", said.Message, words)
		}
	}
	if said.UID == "" || said.Applied == "" {
		t.Errorf("what is known is gone: %+v", said)
	}
	s.eventually("it is over when nobody fights", func() bool { return s.state().Reason == "" })
}

// TestSaysWhatItMayNotWatch: what cannot be watched is looked at one by one, and the
// entry says so until it can be.
func TestSaysWhatItMayNotWatch(t *testing.T) {
	s := &stage{t: t, blind: said(403, metav1.StatusReasonForbidden, `configmaps is forbidden: User "atoll" cannot watch resource "configmaps"`)}
	s.start(objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("it is there", func() bool { return s.memberHas("ConfigMap", "conf") != nil })
	s.eventually("it is reported", func() bool { return s.state().Reason == v1alpha1.StateUnwatched })
	if message := s.state().Message; !strings.Contains(message, `cannot watch resource "configmaps"`) || !strings.Contains(message, "grant that") {
		t.Errorf("says %q", message)
	}
	// A change there is found when it is looked at.
	changed := s.memberHas("ConfigMap", "conf").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["data"] = map[string]any{"a": "by hand"}
	if err := s.member.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, changed, "shop"); err != nil {
		t.Fatal(err)
	}
	k, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
	s.syncer.lookAgain(k)
	s.eventually("it is put right", func() bool { return s.data() == "b" })

	s.mu.Lock()
	s.blind = nil
	s.mu.Unlock()
	s.eventually("it is watched, and says nothing more", func() bool { return s.state().Reason == "" })
}
