package scheduler

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const database = `
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop, uid: db}
spec:
  replicas: 4
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: db, namespace: shop, uid: p-db}
spec:
  selector: {names: [db]}
  mode: Divided
  overrides: [{clusters: {names: [west]}, env: [{name: REGION, value: w}]}]
`

const north = `apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: north, uid: nn, creationTimestamp: "2026-01-03T00:00:00Z"}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}`

const webInWest = `apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p-web}
spec: {selector: {names: [web]}, clusters: {names: [west]}}`

// placed returns what each cluster has of each object, in the format of Moves.
func placed(t *testing.T, c *control) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, b := range c.bindings(t) {
		for name, share := range shareTexts(b, nil) {
			out[b.Namespace+"/"+b.Spec.Resource.Kind+" "+b.Spec.Resource.Name+" "+name] = share.text()
		}
	}
	return out
}

func as[T any](t *testing.T, u *unstructured.Unstructured) *T {
	t.Helper()
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPreviewMatchesScheduler: the preview of a change matches the scheduler's decisions after
// the same change.
func TestPreviewMatchesScheduler(t *testing.T) {
	const drain = `{"spec":{"taints":[{"key":"drain","effect":"NoExecute"}]}}`
	const leave = `{"metadata":{"deletionTimestamp":"2026-01-03T00:00:00Z","finalizers":["fleet.atoll.dev/leave"]}}`
	east := func(s *State) *v1alpha1.Cluster {
		return s.Clusters[slices.IndexFunc(s.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == "east" })]
	}
	for name, tt := range map[string]struct {
		change func(*testing.T, *State)
		do     func(*testing.T, *control)
		some   string // an expected move
	}{
		"a drain": {
			func(_ *testing.T, s *State) {
				east(s).Spec.Taints = []v1alpha1.Taint{{Key: "drain", Effect: v1alpha1.TaintNoExecute}}
			},
			func(t *testing.T, c *control) {
				c.Merge(v1alpha1.ClusterResource, "", "east", drain)
			},
			"shop/StatefulSet db west",
		},
		"a drain by its field": {
			func(_ *testing.T, s *State) { east(s).Spec.Drain = &v1alpha1.ClusterDrain{} },
			func(t *testing.T, c *control) {
				c.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"drain":{}}}`)
			},
			"shop/StatefulSet db west",
		},
		"a departure": {
			func(_ *testing.T, s *State) { now := metav1.Now(); east(s).DeletionTimestamp = &now },
			func(t *testing.T, c *control) {
				c.Merge(v1alpha1.ClusterResource, "", "east", leave)
			},
			"shop/ConfigMap conf east",
		},
		"an arrival": {
			func(t *testing.T, s *State) {
				s.Clusters = append(s.Clusters, as[v1alpha1.Cluster](t, parse(t, north)[0]))
			},
			func(t *testing.T, c *control) { create(t, c, north) },
			"shop/Deployment web north",
		},
		"a policy": {
			func(t *testing.T, s *State) {
				s.Placements = append(s.Placements, as[v1alpha1.Placement](t, parse(t, webInWest)[0]))
			},
			func(t *testing.T, c *control) { create(t, c, webInWest) },
			"shop/Deployment web east",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := begin(t, clusters+app+operator+database)
			fakeapi.Until(t, "all is placed", func() bool { return len(placed(t, client)) == 20 })
			s, err := Load(t.Context(), client.Dynamic(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if moves := s.Moves(s.Snapshot()); len(moves) > 0 {
				t.Fatalf("without any change there are the moves %v", moves)
			}
			tt.change(t, s)
			want := applyMoves(t, placed(t, client), s.Moves(s.Snapshot()))
			if before := placed(t, client); before[tt.some] == want[tt.some] {
				t.Errorf("%s is expected to change: %s", tt.some, want[tt.some])
			}
			tt.do(t, client)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("foretold\n%v\nbecame\n%v", want, placed(t, client))
				}
			})
			fakeapi.Until(t, "it happens as foretold", func() bool { return maps.Equal(placed(t, client), want) })
		})
	}
}

// applyMoves returns the placement after the moves.
func applyMoves(t *testing.T, there map[string]string, moves []Move) map[string]string {
	t.Helper()
	for _, m := range moves {
		place := m.Namespace + "/" + m.Kind + " " + m.Name + " " + m.Cluster
		if before, ok := there[place]; ok && before != m.Before || !ok && m.Before != NoShare {
			t.Errorf("%s is %s according to the move, but %q", place, m.Before, before)
		}
		if m.Reason == "" || m.Why == "" {
			t.Errorf("move without a reason: %+v", m)
		}
		there[place] = m.After
		if m.After == NoShare {
			delete(there, place)
		}
	}
	return there
}

// TestMovesReportProblems: moves report an object without a suitable cluster, and one with a
// suspended policy.
func TestMovesReportProblems(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	for name, tt := range map[string]struct {
		policy string
		bound  bool // an object with a binding keeps its clusters
		want   string
	}{
		"no suitable cluster": {`{selector: {names: [web]}, clusters: {names: [nowhere]}}`, false, "Deployment web : "},
		"a suspended policy":  {`{selector: {names: [web]}, clusters: {names: [west]}, suspend: true}`, true, "suspended by the policy until suspend is removed"},
		"an invalid policy":   {`{selector: {names: [web]}, clusters: {expression: "cluster.("}}`, false, "Deployment web : PolicyInvalid: Placement web is invalid"},
		"invalid, but placed": {`{selector: {names: [web]}, clusters: {expression: "cluster.("}}`, true, ""},
	} {
		s, err := Load(t.Context(), client.Dynamic(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		policy := "apiVersion: fleet.atoll.dev/v1alpha1\nkind: Placement\nmetadata: {name: web, namespace: shop}\nspec: " + tt.policy
		s.Placements = append(s.Placements, as[v1alpha1.Placement](t, parse(t, policy)[0]))
		if !tt.bound {
			delete(s.bindings, s.Placed[0].Key())
		}
		said := ""
		for _, m := range s.Moves(s.Snapshot()) {
			said += m.Kind + " " + m.Name + " " + m.Cluster + ": " + m.Reason + ": " + m.Why + "\n"
		}
		if !strings.Contains(said, tt.want) || tt.want == "" && said != "" {
			t.Errorf("%s:\n%s\nwant %q", name, said, tt.want)
		}
	}
}

// TestStateKnowsCustomKinds: a State knows custom kinds from their bindings, and which clusters
// accept them.
func TestStateKnowsCustomKinds(t *testing.T) {
	client := begin(t, clusters+strings.Replace(custom, "storage: true}", "storage: true, subresources: {scale: {specReplicasPath: .spec.size}}}", 1))
	decided(t, client, "\nwidget.example.com-one: east\n")
	s, err := Load(t.Context(), client.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	k, known := s.Kind(widgets.GroupVersion().WithKind("Widget").GroupKind())
	if !known || !k.Divided || len(s.Placed) != 1 || s.Binding(k, "shop", "one") == nil || s.StaysHome(s.Placed[0].Object) != "" {
		t.Fatalf("known: %v, as %+v; %d placed objects", known, k, len(s.Placed))
	}
	obstacles := s.Snapshot().Obstacles(k, s.Placed[0].Object, nil)
	if _, east := obstacles["east"]; east || !strings.Contains(obstacles["west"].Message, "does not serve Widget.example.com") {
		t.Errorf("obstacles: %v", obstacles)
	}
	for _, i := range s.imports {
		i.Status.Conditions[1].Status = metav1.ConditionFalse
	}
	if why := s.Snapshot().Obstacles(k, s.Placed[0].Object, nil)["east"].Message; !strings.Contains(why, "type Widget.example.com of the cluster is not Compatible") {
		t.Errorf("obstacle in east: %s", why)
	}
}

func TestLoadErrorNamesResource(t *testing.T) {
	c := newControl(t, "")
	var failing atomic.Value
	c.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource.Resource == failing.Load() {
			return &apierrors.NewInternalError(errors.New("no")).ErrStatus
		}
		return nil
	})
	for _, resource := range []string{"clusters", "placements", "clusterplacements", "namespaces", "apiresourceimports", "resourceinterpretations", "resourcebindings", "clusterresourcebindings", "deployments"} {
		failing.Store(resource)
		if _, err := Load(t.Context(), c.Dynamic(), time.Now()); err == nil || !strings.HasPrefix(err.Error(), "list "+resource) {
			t.Errorf("%s: %v", resource, err)
		}
	}
}
