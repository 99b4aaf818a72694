package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var statefulSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}

// dbWithVolumes is a StatefulSet whose replicas have volumes of class fast.
const dbWithVolumes = `
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop, uid: db, labels: {fleet.atoll.dev/cluster: east}}, spec: {replicas: 3,
  volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: fast}}], template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}}
`

func volumePolicy(name, spec string) string {
	return fmt.Sprintf("---\n{apiVersion: fleet.atoll.dev/v1alpha1, kind: VolumePolicy, metadata: {name: %[1]s, uid: %[1]s, generation: 1, creationTimestamp: \"2026-01-01T00:00:00Z\"}, spec: {%[2]s}}\n", name, spec)
}

// dbIs waits until db is in some clusters, with a reason and words in the message.
func dbIs(t *testing.T, c *control, shares, reason string, words ...string) {
	t.Helper()
	fakeapi.Eventually(t, "db is in "+shares+" ("+reason+")", func() error {
		u := c.Get(v1alpha1.ResourceBindingResource, "shop", "statefulset.apps-db")
		if u == nil {
			return fmt.Errorf("no binding")
		}
		b := as[v1alpha1.ResourceBinding](t, u)
		condition := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
		if condition == nil || rangesText(b.Spec.Clusters) != shares || condition.Reason != reason || (condition.Status == "True") != (reason == placement.Placed) {
			return fmt.Errorf("%s: %+v", rangesText(b.Spec.Clusters), condition)
		}
		for _, w := range words {
			if !strings.Contains(condition.Message, w) {
				return fmt.Errorf("the message does not contain %q: %s", w, condition.Message)
			}
		}
		return nil
	})
}

// rangesText formats shares: "east 2@0" are the ordinals 0 and 1.
func rangesText(shares []v1alpha1.ClusterShare) string {
	var out []string
	for _, s := range shares {
		text := s.Name
		if s.Replicas != nil {
			text += fmt.Sprint(" ", *s.Replicas)
		}
		if s.OrdinalStart != nil {
			text += fmt.Sprint("@", *s.OrdinalStart)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// runs records that a cluster has db.
func runs(t *testing.T, c *control, cluster string) {
	t.Helper()
	b := as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "shop", "statefulset.apps-db"))
	c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) {
		b.Status.Clusters = append(b.Status.Clusters, v1alpha1.ClusterState{Name: cluster, UID: "in-cluster"})
	})
}

// TestVolumesStay: an object with volumes does not move, whatever names another cluster, and says why. It moves when a
// policy says that the volumes of its class are the same everywhere. A preview shows the same.
func TestVolumesStay(t *testing.T) {
	const label = `{"metadata":{"labels":{"fleet.atoll.dev/cluster":%s}}}`
	for name, tt := range map[string]struct {
		do    func(c *control)
		words []string
		after string // where it is when it may move
	}{
		"a label names another cluster": {
			func(c *control) { c.Merge(statefulSets, "shop", "db", fmt.Sprintf(label, `"west"`)) },
			[]string{"it stays in east with its volumes (StorageClass fast)", "create a VolumePolicy for fast with mode Shared", "delete the object and its claims"}, "west",
		},
		"a policy names another cluster": {
			func(c *control) {
				for _, u := range parse(t, policyOf("p", `clusters: {names: [west]}`)) {
					c.Put(u)
				}
				c.Merge(statefulSets, "shop", "db", fmt.Sprintf(label, "null"))
			},
			[]string{"east keeps its share with its volumes", "its name is not listed"}, "west",
		},
		"the cluster is drained": {
			func(c *control) {
				c.Merge(statefulSets, "shop", "db", fmt.Sprintf(label, "null"))
				c.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"taints":[{"key":"drain","effect":"NoExecute"}]}}`)
			},
			[]string{"east keeps its share with its volumes", "has the taint drain:NoExecute"}, "west",
		},
		"the cluster fails": {
			func(c *control) {
				c.Merge(statefulSets, "shop", "db", fmt.Sprintf(label, "null"))
				c.Merge(v1alpha1.ClusterResource, "", "east", fails)
			},
			[]string{"east keeps its share with its volumes", "unreachable for"}, "west",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, clusters+dbWithVolumes)
			dbIs(t, c, "east", placement.Placed)
			members(t, c, false, "statefulset.apps-db")
			fakeapi.Until(t, "it runs there", func() bool { _, runs := bindingIn(t, c, "statefulset.apps-db").State("east"); return runs })
			tt.do(c)
			dbIs(t, c, "east", ReasonVolumesStay, tt.words...)
			agreesWithPreview(t, c)
			s, err := Load(t.Context(), c.Dynamic(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s.VolumePolicies = append(s.VolumePolicies, as[v1alpha1.VolumePolicy](t, parse(t, volumePolicy("nfs", `storageClasses: [fast], mode: Shared`))[0]))
			if moves := s.Moves(s.Snapshot()); len(moves) != 2 {
				t.Errorf("the preview of a VolumePolicy has the moves %v", moves)
			}
			create(t, c, volumePolicy("other", `storageClasses: [slow], mode: Shared`)+volumePolicy("nfs", `mode: Shared`))
			dbIs(t, c, tt.after, placement.Placed)
		})
	}
}

// TestVolumesStayInPreview: the preview of a label says why nothing moves.
func TestVolumesStayInPreview(t *testing.T) {
	c := begin(t, clusters+dbWithVolumes)
	dbIs(t, c, "east", placement.Placed)
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.Placed[0].Object.SetLabels(map[string]string{v1alpha1.ClusterLabel: "west"})
	moves := s.Moves(s.Snapshot())
	if len(moves) != 1 || moves[0].Reason != ReasonVolumesStay || moves[0].Cluster != "" || !strings.Contains(moves[0].Why, "east keeps its share") {
		t.Errorf("the moves are %+v", moves)
	}
	snap := s.Snapshot()
	p := s.Placed[0]
	a := snap.Schedule(p.Kind, p.Object, s.Binding(p.Kind, "shop", "db"))
	_, verdicts := placement.Explain(a.Request)
	if v := verdicts[0]; !v.Chosen || v.Reason != placement.ReasonKeptVolumes {
		t.Errorf("east: %+v", v)
	}
	if v := verdicts[1]; v.Chosen || v.Reason != ReasonVolumesStay || v.Message != "the cluster has none of its volumes (StorageClass fast), which are in east" {
		t.Errorf("west: %+v", v)
	}
}

// TestFirstPlacementIsFree: volumes keep nothing that was never placed, and claims that are deleted with their object
// keep nothing of its successor.
func TestFirstPlacementIsFree(t *testing.T) {
	c := begin(t, clusters+strings.Replace(dbWithVolumes, "cluster: east", "cluster: west", 1))
	dbIs(t, c, "west", placement.Placed)
	c.Delete(statefulSets, "shop", "db")
	fakeapi.Until(t, "the binding is gone", func() bool {
		return c.Get(v1alpha1.ResourceBindingResource, "shop", "statefulset.apps-db") == nil
	})
	create(t, c, strings.Replace(dbWithVolumes, "uid: db", "uid: db-2", 1))
	dbIs(t, c, "east", placement.Placed)
}

// TestDividedVolumesStay: new replicas may be in new clusters, and those that run do not move.
func TestDividedVolumesStay(t *testing.T) {
	c := begin(t, threeClusters+strings.Replace(dbWithVolumes, "labels: {fleet.atoll.dev/cluster: east}", "labels: {}", 1)+policyOf("p", `mode: Divided, clusters: {names: [east, west]}`))
	dbIs(t, c, "east 2@0, west 1@2", placement.Placed)
	scale := func(n int) { c.Merge(statefulSets, "shop", "db", fmt.Sprintf(`{"spec":{"replicas":%d}}`, n)) }
	policy := func(spec string) {
		t.Helper()
		generation := c.Merge(v1alpha1.PlacementResource, "shop", "p", spec).GetGeneration()
		fakeapi.Until(t, "the policy is in effect", func() bool {
			p := as[v1alpha1.Placement](t, c.Get(v1alpha1.PlacementResource, "shop", "p"))
			accepted := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted)
			return accepted != nil && accepted.ObservedGeneration == generation
		})
	}
	policy(`{"spec":{"clusters":{"names":["east","west","south"]}}}`)
	scale(5)
	dbIs(t, c, "east 2@0, west 1@2, south 2@3", placement.Placed)
	policy(`{"spec":{"clusters":{"names":["east","south"]}}}`)
	dbIs(t, c, "east 2@0, west 1@2, south 2@3", ReasonVolumesStay, "west keeps its share with its volumes")
	scale(6)
	dbIs(t, c, "east 2@0, west 1@2, south 3@3", ReasonVolumesStay)
	scale(2)
	dbIs(t, c, "east 2@0, south 0@3", placement.Placed) // no replica is left that would leave a volume
	agreesWithPreview(t, c)
}

// TestMountedVolumesStay: replicas that share a claim in each cluster do not go where it would be another, empty volume.
func TestMountedVolumesStay(t *testing.T) {
	const claim = "\n---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: files, namespace: shop, uid: c}, spec: {accessModes: [ReadWriteMany], storageClassName: fast}}\n"
	web := strings.Replace(webOfThree, "containers:", "volumes: [{name: v, persistentVolumeClaim: {claimName: files}}], containers:", 1)
	c := begin(t, clusters+claim+web)
	is := func(want string) {
		t.Helper()
		fakeapi.Eventually(t, "web is in "+want, func() error {
			if got := sharesOf(t, c, "shop", "deployment.apps-web"); got != want {
				return fmt.Errorf("%s: %+v", got, scheduledOf(t, c, "web"))
			}
			return nil
		})
	}
	is("east 2, west 1")
	create(t, c, strings.SplitN(threeClusters, "\n---\n", 3)[2])
	c.Merge(deployments, "shop", "web", `{"spec":{"replicas":7}}`)
	is("east 4, west 3")
	fakeapi.Until(t, "web is as its policy asks for", func() bool {
		condition := scheduledOf(t, c, "web")
		return condition != nil && condition.Status == "True"
	})
	c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"taints":[{"key":"drain","effect":"NoExecute"}]}}`)
	fakeapi.Until(t, "web stays in the west", func() bool {
		condition := scheduledOf(t, c, "web")
		return condition != nil && condition.Reason == ReasonVolumesStay && strings.Contains(condition.Message, "west keeps its share with its volumes")
	})
	is("east 4, west 3")
	agreesWithPreview(t, c)
	create(t, c, volumePolicy("nfs", `storageClasses: [fast], mode: Shared`))
	fakeapi.Until(t, "web is in the south instead", func() bool {
		got := sharesOf(t, c, "shop", "deployment.apps-web")
		return strings.Contains(got, "south") && !strings.Contains(got, "west")
	})
}

// TestGroupStaysWithVolumes: an object in the group of one that stays with its volumes stays, too.
func TestGroupStaysWithVolumes(t *testing.T) {
	both := strings.Replace(dbWithVolumes, "cluster: east", "group: g", 1) + strings.Replace(webOfThree, "labels: {app: web}", "labels: {app: web, fleet.atoll.dev/group: g}", 1)
	c := begin(t, clusters+both+policyOf("p", `mode: Single, clusters: {names: [east]}`))
	dbIs(t, c, "east", placement.Placed)
	web := func() string {
		if u := c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web"); u != nil {
			return describe(as[v1alpha1.ResourceBinding](t, u).Spec.Clusters)
		}
		return ""
	}
	fakeapi.Until(t, "web is in the east", func() bool { return web() == "east" })
	c.Merge(v1alpha1.PlacementResource, "shop", "p", `{"spec":{"clusters":{"names":["west"]}}}`)
	dbIs(t, c, "east", ReasonVolumesStay)
	reports(t, c, "shop", "deployment.apps-web", "False", "does not run its group, which stays in east with the volumes of StatefulSet db")
	if got := web(); got != "east" {
		t.Errorf("web is in %s", got)
	}
	agreesWithPreview(t, c)
	create(t, c, volumePolicy("nfs", `mode: Shared`))
	dbIs(t, c, "west", placement.Placed)
	fakeapi.Until(t, "web is in the west", func() bool { return web() == "west" })
}

// TestSharedVolumesMove: pods without a node go to other clusters, and a rebalance moves the object.
func TestSharedVolumesMove(t *testing.T) {
	u := parse(t, dbWithVolumes)[0]
	for mode, moves := range map[v1alpha1.VolumeMode]bool{v1alpha1.VolumesShared: true, v1alpha1.VolumesNone: false} {
		s := &State{VolumePolicies: []*v1alpha1.VolumePolicy{{Spec: v1alpha1.VolumePolicySpec{Mode: mode}}}}
		snap := s.Snapshot()
		k := kindOf(t, u)
		if snap.movesPods(k, u) != moves || snap.staysPut(k, u) == moves {
			t.Errorf("mode %s: pending pods move %v, a rebalance leaves it %v", mode, snap.movesPods(k, u), snap.staysPut(k, u))
		}
	}
}

func kindOf(t *testing.T, u *unstructured.Unstructured) interpret.KindInfo {
	t.Helper()
	k, found := interpret.Find(u.GroupVersionKind().GroupKind())
	if !found {
		t.Fatalf("no kind %s", u.GetKind())
	}
	return k
}

// TestVolumesGoAlong: with mode Reattach a move begins with the volumes of the highest ordinal, and nothing stops until both
// clusters have agreed. Away from a cluster that does not answer, nothing moves.
func TestVolumesGoAlong(t *testing.T) {
	const along = `storageClasses: [fast], mode: Reattach`
	start := func(t *testing.T) *control {
		c := begin(t, clusters+dbWithVolumes+volumePolicy("disks", along))
		dbIs(t, c, "east", placement.Placed)
		members(t, c, false, "statefulset.apps-db")
		fakeapi.Until(t, "it runs there", func() bool { _, runs := bindingIn(t, c, "statefulset.apps-db").State("east"); return runs })
		return c
	}
	t.Run("moves", func(t *testing.T) {
		t.Parallel()
		c := start(t)
		c.Merge(statefulSets, "shop", "db", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`)
		fakeapi.Until(t, "the volume of db-2 is prepared", func() bool {
			b := bindingIn(t, c, "statefulset.apps-db")
			return len(b.Spec.Volumes) == 1 && b.Spec.Volumes[0].Claim == "data-db-2" && b.Spec.Volumes[0].Phase == v1alpha1.VolumePreparing
		})
		dbIs(t, c, "east 3, west 0", placement.Placed)
		fakeapi.Until(t, "it waits for the clusters", func() bool {
			progress := bindingIn(t, c, "statefulset.apps-db").Status.Transition
			return progress != nil && strings.Contains(progress.WaitingFor, "the volume of claim data-db-2 in east to be prepared")
		})
	})
	t.Run("stays", func(t *testing.T) {
		t.Parallel()
		c := start(t)
		c.Merge(statefulSets, "shop", "db", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":null}}}`)
		c.Merge(v1alpha1.ClusterResource, "", "east", fails)
		dbIs(t, c, "east", ReasonVolumesStay, "cluster east does not answer, and may still use them")
	})
}

// TestMountedVolumesGoAlong: with mode Reattach a Deployment takes the claim along that only its pods mount. The claim is
// in the new cluster when a claim that leads to the volume is there, and leaves the other one after that.
func TestMountedVolumesGoAlong(t *testing.T) {
	const claim = "\n---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: files, namespace: shop, uid: c}, spec: {accessModes: [ReadWriteOnce], storageClassName: fast}}\n"
	web := strings.Replace(webOfThree, "containers:", "volumes: [{name: v, persistentVolumeClaim: {claimName: files}}], containers:", 1)
	web = strings.Replace(web, "labels: {app: web}", "labels: {app: web, fleet.atoll.dev/cluster: east}", 1)
	steps := []struct {
		phase          v1alpha1.VolumePhase
		from, to       v1alpha1.VolumeState // that the clusters report, when they have done their part
		object, claims string               // the shares in this phase
	}{
		{v1alpha1.VolumePreparing, v1alpha1.VolumeInUse, v1alpha1.VolumeReady, "east 3, west 0", "east"},
		{v1alpha1.VolumeDetaching, v1alpha1.VolumeDetached, v1alpha1.VolumePending, "east 0, west 0", "east"},
		{v1alpha1.VolumeAttaching, v1alpha1.VolumePending, v1alpha1.VolumeBound, "east 0, west 0", "east"},
		{v1alpha1.VolumeAttached, v1alpha1.VolumePending, v1alpha1.VolumeBound, "east 0, west 3", "east, west"},
		{v1alpha1.VolumeRemoving, v1alpha1.VolumeAbsent, v1alpha1.VolumeBound, "east 0, west 3", "west"},
		{v1alpha1.VolumeSettling, v1alpha1.VolumePending, v1alpha1.VolumeSettled, "east 0, west 3", "west"},
	}
	// start has the clusters run their shares. They do their part of the transfer in so many of the steps.
	start := func(t *testing.T, more string, done *atomic.Int32) *control {
		// The control plane keeps the ReplicaSets of earlier templates: they mount the claim nowhere.
		template := strings.TrimPrefix(strings.TrimSpace(web), "---\n")
		replicaSet := "\n---\n" + strings.NewReplacer("kind: Deployment", "kind: ReplicaSet", "name: web,", "name: web-1, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: web, controller: true}],", "uid: web,", "uid: web-1,").Replace(template) + "\n"
		c := begin(t, clusters+claim+web+replicaSet+volumePolicy("disks", `storageClasses: [fast], mode: Reattach`)+more)
		runsIn(t, c, "deployment.apps-web", "east")
		runsIn(t, c, "persistentvolumeclaim-files", "east")
		playMembers(t, c, func(b *v1alpha1.ResourceBinding) {
			runAtOnce(b, false)
			for _, v := range b.Spec.Volumes {
				for _, step := range steps[:done.Load()] {
					for i := range b.Status.Clusters {
						states := map[string]v1alpha1.VolumeState{v.From: step.from, v.To: step.to}
						if state := states[b.Status.Clusters[i].Name]; v.Phase == step.phase {
							b.Status.Clusters[i].Volumes = []v1alpha1.VolumeReport{{Claim: v.Claim, Revision: v.Revision, State: state}}
						}
					}
				}
			}
			if len(b.Spec.Volumes) > 0 && b.Spec.Volumes[0].Phase == v1alpha1.VolumeAttached && done.Load() < 4 {
				for i := range b.Status.Clusters { // the replicas are not available before the step is done
					setReplicas(&b.Status.Clusters[i], 3, 0)
				}
			}
		}, "deployment.apps-web", "persistentvolumeclaim-files")
		fakeapi.Until(t, "they run there", func() bool {
			_, runs := bindingIn(t, c, "deployment.apps-web").State("east")
			_, has := bindingIn(t, c, "persistentvolumeclaim-files").State("east")
			return runs && has
		})
		return c
	}
	toWest := func(c *control) {
		c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`)
	}
	t.Run("moves", func(t *testing.T) {
		t.Parallel()
		var done atomic.Int32
		c := start(t, "", &done)
		s, err := Load(t.Context(), c.Dynamic(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s.Placed[0].Object.SetLabels(map[string]string{v1alpha1.ClusterLabel: "west"})
		var previewed []string
		for _, m := range s.Moves(s.Snapshot()) {
			previewed = append(previewed, fmt.Sprint(m.Name, " in ", m.Cluster, ": ", m.Before, " to ", m.After))
		}
		if want := []string{"web in east: whole to -", "web in west: - to whole", "files in east: whole to -", "files in west: - to whole"}; !slices.Equal(previewed, want) {
			t.Errorf("the preview has %q, want %q", previewed, want)
		}
		toWest(c)
		fakeapi.Until(t, "the volume is prepared", func() bool {
			v := bindingIn(t, c, "deployment.apps-web").Spec.Volumes
			return len(v) == 1 && v[0].Claim == "files" && v[0].ClaimUID == "c" && v[0].Phase == v1alpha1.VolumePreparing
		})
		for i, step := range steps {
			fakeapi.Eventually(t, "the transfer is "+string(step.phase), func() error {
				b := bindingIn(t, c, "deployment.apps-web")
				if v := b.Spec.Volumes; len(v) != 1 || v[0].Phase != step.phase {
					return fmt.Errorf("%+v, %+v", v, b.Status.Transition)
				}
				return nil
			})
			runsIn(t, c, "deployment.apps-web", step.object)
			runsIn(t, c, "persistentvolumeclaim-files", step.claims)
			done.Store(int32(i + 1))
		}
		runsIn(t, c, "deployment.apps-web", "west")
		runsIn(t, c, "persistentvolumeclaim-files", "west")
		agreesWithPreview(t, c)
	})
	t.Run("another object mounts it", func(t *testing.T) {
		t.Parallel()
		c := start(t, strings.NewReplacer("name: web", "name: admin", "uid: web", "uid: admin", "app: web", "app: admin", "cluster: east", "x: y").Replace(web), new(atomic.Int32))
		toWest(c)
		reports(t, c, "shop", "deployment.apps-web", "False", "lacks the volume of claim files, which is in east")
		runsIn(t, c, "deployment.apps-web", "east")
	})
	t.Run("an autoscaler sets its replicas", func(t *testing.T) {
		t.Parallel()
		c := start(t, "\n---\n{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web, namespace: shop, uid: h}, spec: {minReplicas: 1, maxReplicas: 5, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}\n", new(atomic.Int32))
		toWest(c)
		reports(t, c, "shop", "deployment.apps-web", "False", "HorizontalPodAutoscaler web sets its replicas, which have to stop before its volumes leave")
	})
}

// runsIn waits until a binding has shares.
func runsIn(t *testing.T, c *control, binding, want string) {
	t.Helper()
	fakeapi.Eventually(t, binding+" is in "+want, func() error {
		if c.Get(v1alpha1.ResourceBindingResource, "shop", binding) == nil {
			return fmt.Errorf("no binding")
		}
		if got := describe(bindingIn(t, c, binding).Spec.Clusters); got != want {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}
