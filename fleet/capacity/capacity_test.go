package capacity

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func amounts(cpu, memory, pods string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse(pods)}
}

func demand(t *testing.T, spec string) *Demand {
	t.Helper()
	var pod map[string]any
	if err := yaml.Unmarshal([]byte(spec), &pod); err != nil {
		t.Fatal(err)
	}
	d, err := DemandOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRoom: pods are counted by node, and a cluster says why it can run none.
func TestRoom(t *testing.T) {
	nodes := []Node{
		{Labels: map[string]string{corev1.LabelHostname: "a", "zone": "1", "pool": "web"}, Allocatable: amounts("8", "32Gi", "110"), Requested: amounts("5500m", "4Gi", "0"), Pods: 3},
		{Labels: map[string]string{corev1.LabelHostname: "b", "zone": "2", "pool": "web"}, Allocatable: amounts("8", "32Gi", "110"), Pods: 108},
		{Labels: map[string]string{corev1.LabelHostname: "c", "zone": "2", "pool": "web"}, Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10"), "nvidia.com/gpu": resource.MustParse("2")},
			Taints: []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}, {Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}}},
	}
	n := Prepare(Summarize(nodes, nil))
	for name, tt := range map[string]struct {
		spec       string
		free, ever int64
		why        string
	}{
		"small":              {`{containers: [{resources: {requests: {cpu: "1"}}}]}`, 2 + 2, 16, ""},
		"no requests":        {`{containers: [{}]}`, 107 + 2, 220, ""},
		"memory":             {`{containers: [{resources: {requests: {memory: 15Gi}}}]}`, 1 + 2, 4, ""},
		"two containers":     {`{containers: [{resources: {requests: {cpu: "1"}}}, {resources: {limits: {cpu: 1500m}}}]}`, 1 + 2, 6, ""},
		"sidecar":            {`{initContainers: [{restartPolicy: Always, resources: {requests: {cpu: "1"}}}], containers: [{resources: {requests: {cpu: "1"}}}]}`, 1 + 2, 8, ""},
		"overhead":           {`{overhead: {cpu: "1"}, containers: [{resources: {requests: {cpu: "1"}}}]}`, 1 + 2, 8, ""},
		"too large":          {`{containers: [{resources: {requests: {cpu: "12"}}}]}`, 0, 0, "no node is large enough: a pod requests 12 CPU, and the largest node has 8 CPU"},
		"tolerates":          {`{tolerations: [{key: gpu, operator: Exists}], containers: [{resources: {requests: {cpu: "1"}}}]}`, 2 + 2 + 4, 20, ""},
		"gpu":                {`{tolerations: [{operator: Exists}], containers: [{resources: {limits: {nvidia.com/gpu: "1"}}}]}`, 2, 2, ""},
		"gpu, not tolerated": {`{containers: [{resources: {limits: {nvidia.com/gpu: "1"}}}]}`, 0, 0, "no node has 1 of nvidia.com/gpu"},
		"common label":       {`{nodeSelector: {pool: web}, containers: [{resources: {requests: {cpu: "8"}}}]}`, 1, 2, ""},
		"a zone":             {`{nodeSelector: {zone: "2"}, containers: [{resources: {requests: {cpu: "4"}}}]}`, 2, 2, ""},
		"no such zone":       {`{nodeSelector: {zone: "3"}, containers: [{}]}`, 0, 0, "the labels of its 3 nodes do not match"},
		"affinity": {`{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: NotIn, values: ["2"]}]}]}}}, containers: [{resources: {requests: {cpu: "1"}}}]}`,
			2, 8, ""},
		"one node by name": {`{nodeSelector: {kubernetes.io/hostname: b}, containers: [{resources: {requests: {cpu: "8"}}}]}`, 1, 2, ""},
	} {
		room := n.RoomFor(demand(t, tt.spec))
		if room.Free != tt.free || room.Ever != tt.ever || !strings.HasPrefix(room.Why, tt.why) || (room.Why == "") != (tt.why == "") {
			t.Errorf("%s: %+v, want %d, %d %q", name, room, tt.free, tt.ever, tt.why)
		}
	}
	if Prepare(Summarize(nil, nil)) != nil {
		t.Error("a cluster without nodes has room")
	}
}

// TestKeys: pods that ask the same have one key, whatever else differs.
func TestKeys(t *testing.T) {
	key := func(spec string) string {
		var pod map[string]any
		if err := yaml.Unmarshal([]byte(spec), &pod); err != nil {
			t.Fatal(err)
		}
		return KeyOf(pod)
	}
	same := key(`{containers: [{image: a, resources: {requests: {cpu: "1"}}}]}`)
	if key(`{hostname: h, containers: [{image: b, env: [], resources: {requests: {cpu: "1"}}}]}`) != same {
		t.Error("the image makes a difference")
	}
	for _, spec := range []string{
		`{containers: [{resources: {requests: {cpu: "2"}}}]}`,
		`{containers: [{resources: {limits: {cpu: "1"}}}]}`,
		`{containers: [{resources: {requests: {cpu: "1"}}}, {}]}`,
		`{initContainers: [{}], containers: [{resources: {requests: {cpu: "1"}}}]}`,
		`{nodeSelector: {a: b}, containers: [{resources: {requests: {cpu: "1"}}}]}`,
		`{tolerations: [{operator: Exists}], containers: [{resources: {requests: {cpu: "1"}}}]}`,
		`{overhead: {cpu: "1"}, containers: [{resources: {requests: {cpu: "1"}}}]}`,
		`{affinity: {nodeAffinity: {}}, containers: [{resources: {requests: {cpu: "1"}}}]}`,
	} {
		if key(spec) == same {
			t.Errorf("%s has the same key", spec)
		}
	}
}

// TestSameKinds: more nodes of a kind, or more room, change nothing for pods in empty nodes; another kind does.
func TestSameKinds(t *testing.T) {
	of := func(cpu ...string) *Nodes {
		var nodes []Node
		for _, c := range cpu {
			nodes = append(nodes, Node{Allocatable: amounts(c, "32Gi", "110")})
		}
		return Prepare(Summarize(nodes, nil))
	}
	for name, tt := range map[string]struct {
		a, b *Nodes
		same bool
	}{
		"equal":       {of("8"), of("8"), true},
		"one more":    {of("8"), of("8", "8"), true},
		"a large one": {of("8"), of("8", "16"), false},
		"none left":   {of("8"), of("16"), false},
		"unknown":     {of("8"), nil, false},
		"both":        {nil, nil, true},
	} {
		if same := tt.a.SameKinds(tt.b); same != tt.same || tt.b.SameKinds(tt.a) != tt.same {
			t.Errorf("%s: %v", name, same)
		}
	}
	var unknown *Nodes
	if d := demand(t, `{containers: [{resources: {requests: {cpu: "12"}}}]}`); !unknown.Fits(d) || of("8").Fits(d) || !of("8", "16").Fits(d) {
		t.Error("a pod of 12 CPU fits into 8, or not into 16")
	}
}

// TestPendingPodsTakeRoom: a pod without a node takes the room that it is about to get; one that fits nowhere takes
// none.
func TestPendingPodsTakeRoom(t *testing.T) {
	nodes := []Node{{Allocatable: amounts("8", "32Gi", "110")}}
	d := demand(t, `{containers: [{resources: {requests: {cpu: "1"}}}]}`)
	for pending, want := range map[string]int64{"3": 5, "9": 8} {
		if room := Prepare(Summarize(nodes, []corev1.ResourceList{{corev1.ResourceCPU: resource.MustParse(pending)}})).RoomFor(d); room.Free != want {
			t.Errorf("with %s pending: %+v", pending, room)
		}
	}
}

// TestSummariesPromiseNoMore: of any number of nodes the summary has few shapes, and never more room than the nodes.
func TestSummariesPromiseNoMore(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var nodes []Node
		zones, pools := 1+r.IntN(30), 1+r.IntN(6)
		for i := range 1 + r.IntN(400) {
			size := []string{"4", "8", "16", "64"}[r.IntN(1+r.IntN(4))]
			n := Node{Labels: map[string]string{corev1.LabelHostname: fmt.Sprint("n", i), "id": fmt.Sprint(i), "zone": fmt.Sprint(r.IntN(zones)), "pool": fmt.Sprint(r.IntN(pools)), "os": "linux"},
				Allocatable: amounts(size, size+"Gi", "110"), Requested: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(r.IntN(5000)), resource.DecimalSI),
					corev1.ResourceMemory: *resource.NewQuantity(int64(r.IntN(5<<30)), resource.BinarySI)}, Pods: int64(r.IntN(111))}
			if r.IntN(4) == 0 {
				n.Taints = []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule}}
			}
			nodes = append(nodes, n)
		}
		summary := Summarize(nodes, nil)
		count := int32(0)
		for _, s := range summary.Shapes {
			count += s.Count
		}
		if !Acceptable(summary) || int(count) > len(nodes) || len(nodes) < 100 && int(count) != len(nodes) {
			t.Fatalf("seed %d: %d nodes, %d in %d shapes", seed, len(nodes), count, len(summary.Shapes))
		}
		if summary.Labels["os"] != "linux" {
			t.Errorf("seed %d: labels %v", seed, summary.Labels)
		}
		if again := Summarize(nodes, nil); !SameNodes(summary, again) {
			t.Errorf("seed %d: the same nodes have another summary", seed)
		}
		for _, spec := range []string{
			fmt.Sprintf(`{containers: [{resources: {requests: {cpu: %dm, memory: %dMi}}}]}`, 1+r.IntN(3000), 1+r.IntN(3000)),
			fmt.Sprintf(`{nodeSelector: {zone: "%d"}, containers: [{resources: {requests: {cpu: 100m}}}]}`, r.IntN(zones)),
			fmt.Sprintf(`{nodeSelector: {id: "%d"}, tolerations: [{operator: Exists}], containers: [{}]}`, r.IntN(len(nodes))),
		} {
			d := demand(t, spec)
			if promised, has := Prepare(summary).RoomFor(d).Free, exact(t, nodes, d); promised > has && !strings.Contains(spec, "id:") && !uncertain(summary, "zone", spec) {
				t.Errorf("seed %d: %s: promised %d, and there is room for %d", seed, spec, promised, has)
			}
		}
	}
}

// uncertain reports whether a spec selects by a label whose values are not in the summary.
func uncertain(s *v1alpha1.NodeShapes, key, spec string) bool {
	for _, varying := range s.Varying {
		if varying == key && strings.Contains(spec, key+":") {
			return true
		}
	}
	return false
}

// exact returns the room of nodes one by one.
func exact(t *testing.T, nodes []Node, d *Demand) (n int64) {
	t.Helper()
	for _, node := range nodes {
		n += Prepare(Summarize([]Node{node}, nil)).RoomFor(d).Free
	}
	return n
}
