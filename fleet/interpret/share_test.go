package interpret

import (
	"fmt"
	"math/rand"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestApportion: the parts add up, no part is below its floor, and more weight never gets less.
func TestApportion(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for range 20_000 {
		weights := make([]int32, 1+random.Intn(6))
		var total, floored int32
		for i := range weights {
			weights[i] = int32(random.Intn(6))
			total += weights[i]
		}
		n, floor := int32(random.Intn(30)), int32(random.Intn(3))
		floors := each(weights, floor)
		for _, f := range floors {
			floored += f
		}
		parts := apportion(n, weights, floors)
		var sum int32
		for i, p := range parts {
			sum += p
			if p < floors[i] {
				t.Fatalf("%d by %v with floor %d: %v is below a floor", n, weights, floor, parts)
			}
			if weights[i] == 0 && p != 0 {
				t.Fatalf("%d by %v: %v gives replicas to a zero weight", n, weights, parts)
			}
			for j := range parts {
				if weights[j] > weights[i] && parts[j] < parts[i] {
					t.Fatalf("%d by %v with floor %d: %v gives more to a lower weight", n, weights, floor, parts)
				}
			}
		}
		if want := max(n, floored); total > 0 && sum != want {
			t.Fatalf("%d by %v with floor %d: %v adds up to %d, want %d", n, weights, floor, parts, sum, want)
		}
	}
}

// TestBoundsAddUp: for every division, the autoscalers of all clusters together keep the bounds, as
// far as one replica in each cluster allows.
func TestBoundsAddUp(t *testing.T) {
	k := mustFind(t, "autoscaling", "HorizontalPodAutoscaler")
	random := rand.New(rand.NewSource(2))
	for range 2_000 {
		target := map[string]int32{}
		active := int64(0)
		for i := range 1 + random.Intn(5) {
			target[fmt.Sprint("c", i)] = int32(random.Intn(5))
			if target[fmt.Sprint("c", i)] > 0 {
				active++
			}
		}
		low := int64(1 + random.Intn(10))
		high := low + int64(random.Intn(20))
		obj := parse(t, fmt.Sprintf("spec: {minReplicas: %d, maxReplicas: %d}", low, high))
		var lows, highs int64
		for name, share := range target {
			out := k.PrepareShare(obj, Share{Cluster: name, Target: target})
			least, most := ScaleBounds(out)
			if least < 1 || most < least {
				t.Fatalf("%v: %s gets %d to %d", target, name, least, most)
			}
			if share > 0 {
				lows, highs = lows+int64(least), highs+int64(most)
			}
		}
		if active > 0 && (lows != max(low, active) || highs != max(high, active)) {
			t.Fatalf("%d to %d over %v: %d to %d", low, high, target, lows, highs)
		}
	}
}

// TestOrdinalsAreUnique: no two clusters have a pod of the same name, and together they have all
// pods.
func TestOrdinalsAreUnique(t *testing.T) {
	k := mustFind(t, "apps", "StatefulSet")
	random := rand.New(rand.NewSource(3))
	for range 500 {
		base, partition := int64(random.Intn(3)), int64(random.Intn(12))
		shares := make([]int32, 1+random.Intn(4))
		all := int64(0)
		for i := range shares {
			shares[i] = int32(random.Intn(4))
			all += int64(shares[i])
		}
		obj := parse(t, fmt.Sprintf("spec: {replicas: %d, ordinals: {start: %d}, updateStrategy: {rollingUpdate: {partition: %d}}}", all, base, partition))
		updated := map[int64]bool{}
		start := int32(0)
		for _, n := range shares {
			at := start
			out := k.PrepareShare(obj, Share{Cluster: "c", Replicas: &n, OrdinalStart: &at}).Object
			first, _ := number(out, "spec", "ordinals", "start")
			own, _ := number(out, "spec", "updateStrategy", "rollingUpdate", "partition")
			for i := range int64(n) {
				if _, twice := updated[first+i]; twice {
					t.Fatalf("ordinal %d occurs twice", first+i)
				}
				updated[first+i] = i >= own
			}
			start += n
		}
		for i := range all {
			is, there := updated[base+i]
			if !there || is != (i >= partition) {
				t.Fatalf("ordinal %d: exists %v, updated %v; partition %d", base+i, there, is, partition)
			}
		}
	}
}

// TestWithoutOrdinals: if no ordinal shifts, the field is not sent, because old clusters do not
// know it.
func TestWithoutOrdinals(t *testing.T) {
	n, zero := int32(2), int32(0)
	out := mustFind(t, "apps", "StatefulSet").PrepareShare(parse(t, "spec: {replicas: 5}"), Share{Cluster: "c", Replicas: &n, OrdinalStart: &zero})
	if object(out.Object, "spec", "ordinals") != nil {
		t.Errorf("%v", out.Object)
	}
}

// TestHandOver: an autoscaler's count is not overwritten, and not lost during the handover.
func TestHandOver(t *testing.T) {
	k := mustFind(t, "apps", "Deployment")
	live := func(replicas int, manager string) *unstructured.Unstructured {
		return parse(t, fmt.Sprintf(`
metadata:
  managedFields:
  - {manager: atoll-syncer, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}}
  - {manager: %s, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}}
  - {manager: status, fieldsType: FieldsV1, fieldsV1: {"f:status": {"f:replicas": {}}}}
spec: {replicas: %d}
`, manager, replicas))
	}
	three, zero := int32(3), int32(0)
	for name, tt := range map[string]struct {
		share Share
		want  int64 // -1: not sent
	}{
		"not in the member yet":           {Share{Replicas: &three, Autoscaled: true}, 3},
		"only our field manager owns it":  {Share{Replicas: &three, Autoscaled: true, Live: live(7, "atoll-syncer")}, 7},
		"the autoscaler set it":           {Share{Replicas: &three, Autoscaled: true, Live: live(7, "kube-controller-manager")}, -1},
		"a share of zero switches it off": {Share{Replicas: &zero, Autoscaled: true, Live: live(7, "kube-controller-manager")}, 0},
		"from zero, the share is sent":    {Share{Replicas: &three, Autoscaled: true, Live: live(0, "atoll-syncer")}, 3},
		"whole, set by the autoscaler":    {Share{Autoscaled: true, Live: live(7, "kube-controller-manager")}, -1},
		"no autoscaler":                   {Share{Replicas: &three, Live: live(7, "kube-controller-manager")}, 3},
	} {
		tt.share.Cluster, tt.share.Manager = "east", "atoll-syncer"
		got := int64(-1)
		if n, sent := number(k.PrepareShare(parse(t, "spec: {replicas: 9}"), tt.share).Object, "spec", "replicas"); sent {
			got = n
		}
		if got != tt.want {
			t.Errorf("%s: %d replicas are sent, want %d", name, got, tt.want)
		}
	}
}

// TestRescaled: the count of an object is what the autoscalers of its clusters decided in total.
func TestRescaled(t *testing.T) {
	three, two, zero := int32(3), int32(2), int32(0)
	wants := func(current, desired int64) map[string]any {
		return map[string]any{"currentReplicas": current, "desiredReplicas": desired}
	}
	for name, tt := range map[string]struct {
		kind     string
		replicas int
		clusters []ScaledCluster
		want     int32 // 0: it stays
	}{
		"it adds up":                              {"Deployment", 1, []ScaledCluster{{&three, wants(3, 4)}, {&two, wants(2, 2)}}, 6},
		"it is the same":                          {"Deployment", 6, []ScaledCluster{{&three, wants(3, 4)}, {&two, wants(2, 2)}}, 0},
		"one has not reported":                    {"Deployment", 1, []ScaledCluster{{&three, wants(3, 4)}, {&two, nil}}, 6},
		"none has reported":                       {"Deployment", 1, []ScaledCluster{{&three, nil}, {&two, nil}}, 0},
		"none has metrics, and counts are known":  {"Deployment", 1, []ScaledCluster{{&three, wants(3, 0)}, {&two, wants(2, 0)}}, 5},
		"one has no share":                        {"Deployment", 1, []ScaledCluster{{&three, wants(3, 4)}, {&zero, wants(7, 7)}}, 4},
		"started from 0, reports are from before": {"Deployment", 1, []ScaledCluster{{&three, wants(0, 0)}, {&two, wants(2, 2)}}, 5},
		"a user stopped it":                       {"Deployment", 0, []ScaledCluster{{&three, wants(3, 4)}}, 0},
		"whole in one cluster":                    {"Deployment", 1, []ScaledCluster{{nil, wants(3, 4)}}, 4},
		"whole in each cluster":                   {"Deployment", 1, []ScaledCluster{{nil, wants(3, 4)}, {nil, wants(2, 2)}, {nil, nil}}, 2},
		"none has reported, and it is too many":   {"Deployment", 12, []ScaledCluster{{&three, nil}, {&two, nil}}, 5},
		"none has reported, too many, and whole":  {"Deployment", 12, []ScaledCluster{{nil, nil}}, 0},
		"more than the maximum":                   {"Deployment", 1, []ScaledCluster{{&three, wants(3, 1<<40)}, {&two, wants(2, 2)}}, 9},
		"no cluster":                              {"Deployment", 1, nil, 0},
		"a StatefulSet":                           {"StatefulSet", 1, []ScaledCluster{{nil, wants(3, 4)}}, 4},
		"a kind without replicas":                 {"DaemonSet", 1, []ScaledCluster{{nil, wants(3, 4)}}, 0},
	} {
		obj := parse(t, fmt.Sprintf("spec: {replicas: %d}", tt.replicas))
		n, changed := mustFind(t, "apps", tt.kind).Rescaled(obj, parse(t, "spec: {minReplicas: 1, maxReplicas: 9}"), tt.clusters)
		if changed != (tt.want > 0) || changed && n != tt.want {
			t.Errorf("%s: %d, changed %v, want %d", name, n, changed, tt.want)
		}
	}
}

func TestAllows(t *testing.T) {
	empty := &unstructured.Unstructured{Object: map[string]any{}}
	for _, tt := range []struct {
		group, kind string
		mode        Mode
		want        bool
	}{
		{"apps", "Deployment", Divided, true}, {"apps", "Deployment", Duplicated, true}, {"apps", "Deployment", Single, true},
		{"apps", "StatefulSet", Divided, true}, {"apps", "DaemonSet", Divided, false}, {"batch", "CronJob", Divided, false},
		{"", "Pod", Duplicated, false}, {"", "Pod", Single, true}, {"", "Pod", Divided, false},
	} {
		if why := mustFind(t, tt.group, tt.kind).CheckMode(empty, tt.mode); (why == "") != tt.want {
			t.Errorf("%s %s: %q", tt.kind, tt.mode, why)
		}
	}
}

// TestTrimManagedFields: only the owners of the replica count are kept.
func TestTrimManagedFields(t *testing.T) {
	obj := parse(t, `
metadata:
  managedFields:
  - {manager: atoll-syncer, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}, "f:template": {}}}}
  - {manager: kube-controller-manager, operation: Update, fieldsType: FieldsV1, fieldsV1: {"f:status": {"f:replicas": {}}}}
  - {manager: kube-controller-manager, operation: Update, subresource: scale, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}}
spec: {replicas: 7}
`)
	k := mustFind(t, "apps", "Deployment")
	k.TrimManagedFields(obj)
	if n := len(obj.GetManagedFields()); n != 2 || !ownedByOthers(obj, "atoll-syncer", k.ReplicasPath()) || ownedByOthers(obj, "atoll-syncer", []string{"spec", "template"}) {
		t.Errorf("%d owners: %v", n, obj.GetManagedFields())
	}
	mustFind(t, "", "ConfigMap").TrimManagedFields(obj)
	if obj.GetManagedFields() != nil {
		t.Errorf("owners kept for a kind without a count: %v", obj.GetManagedFields())
	}
}
