package planstore

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
)

// TestContentsInStatus checks that the status, stored as JSON, keeps all contents.
func TestContentsInStatus(t *testing.T) {
	pieces := map[int][][]byte{}
	chunks := NewChunkWriter(func(chunk int, p [][]byte) error { pieces[chunk] = p; return nil })
	actions := []change.Action{change.Create, change.Update, change.Replace, change.Delete, change.Read, change.Import, change.Forget, change.Place, change.NoOp}
	for n := range 5000 {
		c := &change.Change{Address: change.Address{Type: "demo_file", Name: fmt.Sprintf("f%05d", n)}, Action: actions[n%len(actions)]}
		switch n % 7 {
		case 0:
			c.Drift = &change.Difference{}
		case 1:
			c.Deferred = "it waits"
		case 2:
			c.Importing = "id"
		}
		if err := chunks.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	want, err := chunks.Finish()
	if err != nil {
		t.Fatal(err)
	}
	status := v1alpha1.PlanStatus{Phase: v1alpha1.PlanPlanned, Summary: v1alpha1.PlanSummary{Create: 77}}
	SetContents(&status, want)
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	var stored v1alpha1.PlanStatus
	if err := json.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	if stored.Phase != v1alpha1.PlanPlanned {
		t.Errorf("other fields have changed: %+v", stored.Phase)
	}
	got := ContentsOf(&stored)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := got.Check(want.Digest); err != nil {
		t.Error(err)
	}
	if len(want.Chunks) < 2 {
		t.Fatal("the plan has only one chunk")
	}
}

func TestEmptyContents(t *testing.T) {
	status := v1alpha1.PlanStatus{Digest: "sha256:old", Chunks: []v1alpha1.PlanChunk{{Digest: "old"}}, Summary: v1alpha1.PlanSummary{Create: 1}}
	empty, err := NewChunkWriter(nil).Finish()
	if err != nil {
		t.Fatal(err)
	}
	SetContents(&status, empty)
	if status.Chunks != nil || status.Summary != (v1alpha1.PlanSummary{}) {
		t.Errorf("fields of the previous plan are left: %+v", status)
	}
	if got := ContentsOf(&status); !reflect.DeepEqual(got, empty) {
		t.Errorf("got %+v, want %+v", got, empty)
	}
}
