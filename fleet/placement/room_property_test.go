package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/fleet/capacity"
)

// world is a random fleet with nodes, and objects that are placed in it.
type world struct {
	t       *testing.T
	seed    uint64
	r       *rand.Rand
	now     time.Time
	fleet   *Fleet
	rooms   *Rooms
	nodes   map[string][]worldNode
	objects []worldObject
}

// worldNode is a node with CPU in cores; others is what pods that the fleet did not put there use.
type worldNode struct{ all, others int }

type worldObject struct {
	Object
	cpu    int
	policy *Policy
	shares []Share
	inputs string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 7)), now: start, rooms: NewRooms(), nodes: map[string][]worldNode{}}
	var clusters []Cluster
	for i := range 1 + w.r.IntN(5) {
		c := Cluster{Name: fmt.Sprint("c", i), Joined: start.Add(time.Duration(i) * time.Minute), Ready: true, Confirmed: true, Since: start}
		for range 1 + w.r.IntN(4) {
			n := worldNode{all: []int{4, 8, 16}[w.r.IntN(3)]}
			n.others = w.r.IntN(n.all + 1)
			w.nodes[c.Name] = append(w.nodes[c.Name], n)
		}
		clusters = append(clusters, c)
	}
	w.fleet = NewFleet(clusters)
	for i := range 1 + w.r.IntN(4) {
		o := worldObject{cpu: 1 + w.r.IntN(6)}
		o.Object = Object{Key: fmt.Sprint("o", i), Mode: divided, Divisible: true, Replicas: int32(w.r.IntN(12)), Needs: Resources{CPU: int64(o.cpu) * 1000, Pods: 1},
			Pods: []Pods{{Count: 1, Spec: map[string]any{"containers": []any{map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": fmt.Sprint(o.cpu)}}}}}}}}
		o.policy = policy(t, w.anyPolicy())
		w.objects = append(w.objects, o)
	}
	return w
}

func (w *world) anyPolicy() string {
	return []string{
		`{}`, `{division: {by: Even}}`, `{division: {by: Capacity}}`, `{mode: Single}`, `{mode: Duplicated}`, `{clusterCount: {max: 2}}`, `{clusterCount: {max: 1}}`,
		`{division: {by: Weighted, weights: [{clusters: {names: [c0]}, weight: 3}, {clusters: {names: [c1, c2]}, weight: 1}]}}`,
		`{division: {by: Even, maxPerCluster: 3}}`, `{division: {by: Even, minPerCluster: 2}}`, `{clusters: {names: [c0, c1]}}`, `{division: {by: Fewest}}`,
		`{clusterGroups: [{name: a, clusters: {names: [c1]}}, {name: b, clusters: {names: [c0, c2]}}, {name: c, clusters: {}}]}`,
	}[w.r.IntN(13)]
}

// report has each cluster report its nodes, with the pods that run there.
func (w *world) report() {
	w.now = w.now.Add(time.Minute)
	w.rooms.Expire(w.now)
	for _, name := range w.fleet.Names() {
		nodes := w.nodes[name]
		used, fits := w.pack(name)
		if !fits {
			w.t.Fatalf("seed %d: the nodes %v of %s cannot run %s", w.seed, nodes, name, w.in(name))
		}
		var list []capacity.Node
		for i, n := range nodes {
			all := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(n.all), resource.DecimalSI), corev1.ResourcePods: resource.MustParse("100")}
			list = append(list, capacity.Node{Allocatable: all, Requested: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(n.others+used[i]), resource.DecimalSI)}})
		}
		w.rooms.Report(name, capacity.Prepare(capacity.Summarize(list, nil)), w.now)
	}
}

// in describes what a cluster has.
func (w *world) in(name string) (out string) {
	for _, o := range w.objects {
		out += fmt.Sprintf("%d of %d CPU, ", o.podsIn(name), o.cpu)
	}
	return out
}

func (o *worldObject) podsIn(cluster string) int {
	for _, s := range o.shares {
		if s.Cluster == cluster {
			return int(o.times(s))
		}
	}
	return 0
}

// pack assigns the pods of a cluster to its nodes: large ones first, and any way that there is.
func (w *world) pack(name string) (used []int, fits bool) {
	var pods []int
	for _, o := range w.objects {
		for range o.podsIn(name) {
			pods = append(pods, o.cpu)
		}
	}
	slices.SortFunc(pods, func(a, b int) int { return b - a })
	used = make([]int, len(w.nodes[name]))
	return used, w.packFrom(name, pods, used)
}

func (w *world) packFrom(name string, pods, used []int) bool {
	if len(pods) == 0 {
		return true
	}
	tried := map[int]bool{}
	for i, n := range w.nodes[name] {
		free := n.all - n.others - used[i]
		if free < pods[0] || tried[free] {
			continue
		}
		tried[free] = true
		used[i] += pods[0]
		if w.packFrom(name, pods[1:], used) {
			return true
		}
		used[i] -= pods[0]
	}
	return false
}

// decide decides about every object in turn, and returns the shares before.
func (w *world) decide() (before [][]Share) {
	for i := range w.objects {
		o := &w.objects[i]
		before = append(before, o.shares)
		request := Request{Object: o.Object, Fleet: w.fleet, Policy: o.policy, Previous: o.shares, Inputs: o.inputs, Now: w.now}
		request.Room = w.rooms.For(w.fleet, &request.Object, nil, o.shares)
		d := Decide(request)
		w.rooms.Grant(&request.Object, o.shares, d.Shares(), w.now)
		o.shares, o.inputs = d.Shares(), d.Inputs
	}
	return before
}

// stays fails if a decision took replicas away from where they run.
func (w *world) stays(what string, before [][]Share) {
	for i := range w.objects {
		o := &w.objects[i]
		was := worldObject{Object: o.Object, shares: before[i]}
		for _, s := range before[i] {
			if o.podsIn(s.Cluster) < was.podsIn(s.Cluster) {
				w.t.Errorf("seed %d: %s: object %d with %d replicas and policy %+v was %v and is %v", w.seed, what, i, o.Replicas, o.policy.spec, before[i], o.shares)
			}
		}
	}
}

// TestRoomOfRandomFleets: no cluster is given more pods than its nodes can run, and the pods of others move nothing.
func TestRoomOfRandomFleets(t *testing.T) {
	fleets := 10_000
	if testing.Short() {
		fleets = 1000
	}
	for seed := range uint64(fleets) {
		w := newWorld(t, seed)
		w.report()
		w.decide()
		w.stays("decided again at once", w.decide())
		w.report() // fails if the shares do not fit
		w.stays("after the pods started", w.decide())
		w.report()
		for _, name := range w.fleet.Names() {
			nodes := w.nodes[name]
			for i := range nodes {
				if nodes[i].others > 0 && w.r.IntN(2) == 0 {
					nodes[i].others -= 1 + w.r.IntN(nodes[i].others)
				}
			}
		}
		w.report()
		w.stays("others left", w.decide())
		w.report()
		w.stays("nothing happened", w.decide())
		for _, name := range w.fleet.Names() {
			nodes := w.nodes[name]
			used, _ := w.pack(name)
			for i := range nodes {
				if free := nodes[i].all - nodes[i].others - used[i]; free > 0 {
					nodes[i].others += w.r.IntN(free + 1)
				}
			}
		}
		w.report()
		w.stays("others came", w.decide())
		for i := range w.objects {
			w.objects[i].Replicas += int32(w.r.IntN(4))
		}
		w.stays("scaled up", w.decide())
		if t.Failed() {
			return
		}
	}
}
