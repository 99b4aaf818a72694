package syncer

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// fakeFence is a Fence that says what a test sets.
type fakeFence struct {
	refuses error
	stopped bool
	wait    time.Duration
	guarded []string
	lease   time.Duration
	lifted  int32 // the count with which the replicas run again; -1 if they do not
}

func (f *fakeFence) Guard(_ context.Context, binding types.NamespacedName, of schema.GroupVersionResource, _ types.NamespacedName, replicas []string, lease time.Duration) error {
	if f.refuses == nil {
		f.guarded, f.lease = append([]string{of.Resource}, replicas...), lease
	}
	return f.refuses
}

func (f *fakeFence) Release(context.Context, types.NamespacedName) error {
	f.guarded = nil
	return nil
}

func (f *fakeFence) Stopped(types.NamespacedName) (bool, time.Duration) { return f.stopped, f.wait }

func (f *fakeFence) Lift(_ context.Context, _ types.NamespacedName, replicas int32) error {
	f.stopped, f.lifted = false, replicas
	return nil
}

// TestGuard: a fenced object is recorded before it is applied, and is not applied while its replicas are stopped, until the
// control plane confirms that they are to run here.
func TestGuard(t *testing.T) {
	k, known := interpret.BuiltIn().Find(schema.GroupKind{Group: "apps", Kind: "StatefulSet"})
	if !known {
		t.Fatal("StatefulSets are not known")
	}
	three := int32(3)
	for name, tt := range map[string]struct {
		fence      fakeFence
		confirms   bool
		autoscaled bool
		wait       time.Duration
		fails      bool
		lifted     int32
	}{
		"it runs":                            {fence: fakeFence{}, lifted: -1},
		"it cannot be recorded":              {fence: fakeFence{refuses: errors.New("no")}, fails: true, lifted: -1},
		"stopped":                            {fence: fakeFence{stopped: true, wait: time.Minute}, confirms: true, wait: time.Minute, lifted: -1},
		"stopped, and decided elsewhere":     {fence: fakeFence{stopped: true}, wait: confirmAgain, lifted: -1},
		"stopped, and confirmed":             {fence: fakeFence{stopped: true}, confirms: true, lifted: 0},
		"stopped, confirmed, and autoscaled": {fence: fakeFence{stopped: true}, confirms: true, autoscaled: true, lifted: 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := &tt.fence
			f.lifted = -1
			s := &Syncer{fencing: &Fencing{Fence: f, Confirm: func(context.Context, *v1alpha1.ResourceBinding) (bool, error) { return tt.confirms, nil }}}
			b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "statefulset.apps-db"}}
			b.Spec.Resource.Name = "db"
			b.Spec.Fencing = &v1alpha1.BindingFencing{Lease: metav1.Duration{Duration: time.Minute}}
			if tt.autoscaled {
				b.Spec.ScaledBy = &v1alpha1.Requirer{}
			}
			m := &record{lastApplied: "before"}
			target := &target{KindInfo: k, binding: b, share: v1alpha1.ClusterShare{Name: "east", Replicas: &three}, record: m}
			wait, err := s.guard(t.Context(), target)
			if wait != tt.wait || (err != nil) != tt.fails || f.lifted != tt.lifted {
				t.Errorf("wait %s, error %v, lifted with %d", wait, err, f.lifted)
			}
			if again := m.lifted && m.lastApplied == ""; again != (tt.lifted >= 0) {
				t.Errorf("it is applied again: %v", again)
			}
			if !tt.fails && (len(f.guarded) != 3 || f.guarded[0] != "statefulsets" || f.lease != time.Minute) {
				t.Errorf("guarded: %v for %s", f.guarded, f.lease)
			}
			b.Spec.Fencing = nil
			if wait, err := s.guard(t.Context(), target); wait != 0 || err != nil || f.guarded != nil {
				t.Errorf("without fencing: %s, %v, guarded %v", wait, err, f.guarded)
			}
		})
	}
}
