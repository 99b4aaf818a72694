package capacity

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestFreed: pods leave the nodes where others may run, from as few as possible, and no more than nodes have. Pods that
// will have room when others left take its free part already.
func TestFreed(t *testing.T) {
	taint := []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	n := Prepare(Summarize([]Node{
		{Allocatable: amounts("8", "32Gi", "110"), Requested: amounts("6", "4Gi", "0"), Pods: 6},
		{Allocatable: amounts("8", "32Gi", "110"), Requested: amounts("8", "4Gi", "0"), Pods: 8},
		{Allocatable: amounts("8", "32Gi", "110"), Requested: amounts("8", "4Gi", "0"), Pods: 8, Taints: taint},
	}, nil))
	small := demand(t, `{tolerations: [{operator: Exists}], containers: [{resources: {requests: {cpu: "1"}}}]}`)
	large := demand(t, `{containers: [{resources: {requests: {cpu: "4"}}}]}`)
	for leave, want := range map[int64]int64{0: 0, 1: 0, 2: 1, 6: 2, 9: 2, 10: 3, 14: 4, 100: 4} {
		if got := n.Freed(small, leave, large).RoomFor(large).Free; got != want {
			t.Errorf("%d pods leave: there is room for %d, want %d", leave, got, want)
		}
	}
	if got := n.Reserved(large, 1).RoomFor(small).Free; got != 0 {
		t.Errorf("with a pod that will come, there is room for %d", got)
	}
	if got := n.Freed(small, 6, large).Reserved(large, 1).RoomFor(small).Free; got != 4 {
		t.Errorf("with a pod that has room, there is room for %d, want 4", got)
	}
}
