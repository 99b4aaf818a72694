package moving

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/programs"
)

// drained is a kind of object that leaves a drained cluster.
type drained struct {
	kind     string
	manifest string // with NAME and SPACE in place of its name and namespace
	replicas int    // ready Pods; 0 if it has none
	// floor is how many of its Pods always have to be ready.
	floor int
	// once: it must never run in two clusters at the same time.
	once bool
}

// podTemplate is the part that kinds with Pods have in common.
const podTemplate = `{metadata: {labels: {app: NAME}, annotations: {pod-complete.stage.kwok.x-k8s.io/delay: 1h}}, spec: {containers: [{name: main, image: nginx}]}}`

// selector selects the Pods of podTemplate.
const selector = `{matchLabels: {app: NAME}}`

// budgetFor requires one Pod of podTemplate.
const budgetFor = `
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: NAME, namespace: SPACE}
spec: {minAvailable: 1, selector: ` + selector + `}
`

// drainedKinds are the kinds of TestDrain.
var drainedKinds = []drained{
	{kind: "Deployment", replicas: 2, floor: 2, manifest: `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: SPACE}
spec: {replicas: 2, selector: ` + selector + `, template: ` + podTemplate + `}` + budgetFor},
	{kind: "StatefulSet", replicas: 2, floor: 1, manifest: `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: NAME, namespace: SPACE}
spec: {replicas: 2, serviceName: NAME, selector: ` + selector + `, template: ` + podTemplate + `}` + budgetFor},
	{kind: "ReplicaSet", replicas: 2, floor: 2, manifest: `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: NAME, namespace: SPACE}
spec: {replicas: 2, selector: ` + selector + `, template: ` + podTemplate + `}` + budgetFor},
	{kind: "ReplicationController", replicas: 2, floor: 2, manifest: `
apiVersion: v1
kind: ReplicationController
metadata: {name: NAME, namespace: SPACE}
spec: {replicas: 2, selector: {app: NAME}, template: ` + podTemplate + `}` + budgetFor},
	{kind: "DaemonSet", replicas: 3, floor: 3, manifest: `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: NAME, namespace: SPACE}
spec: {selector: ` + selector + `, template: ` + podTemplate + `}`},
	{kind: "Job", replicas: 1, once: true, manifest: `
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, namespace: SPACE}
spec: {template: {metadata: {labels: {app: NAME}, annotations: {pod-complete.stage.kwok.x-k8s.io/delay: 1h}}, spec: {restartPolicy: Never, containers: [{name: main, image: nginx}]}}}`},
	{kind: "Pod", replicas: 1, once: true, manifest: `
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: SPACE, labels: {app: NAME}}
spec: {containers: [{name: main, image: nginx}]}`},
	{kind: "CronJob", manifest: `
apiVersion: batch/v1
kind: CronJob
metadata: {name: NAME, namespace: SPACE}
spec: {schedule: "0 0 29 2 *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: nginx}]}}}}}`},
	{kind: "Widget", manifest: `
apiVersion: moving.test.atoll.dev/v1
kind: Widget
metadata: {name: NAME, namespace: SPACE}
spec: {size: 3}`},
	{kind: "Deployment", replicas: 2, floor: 2, manifest: `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: SPACE}
spec:
  replicas: 2
  selector: ` + selector + `
  template:
    metadata: {labels: {app: NAME}}
    spec: {containers: [{name: main, image: nginx, envFrom: [{configMapRef: {name: NAME}}, {secretRef: {name: NAME}}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: NAME, namespace: SPACE}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: NAME, namespace: SPACE}
stringData: {password: swordfish}` + budgetFor},
}

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.moving.test.atoll.dev}
spec:
  group: moving.test.atoll.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// A cluster with many objects of ten kinds is drained. Meanwhile the drain is paused, and the leading server
// killed. What moves is what the preview shows, no Pods fall below their floor, and what must not run twice does not.
func TestDrain(t *testing.T) {
	s := whole(t)
	apps := s.applyKinds(t, "drain", *workloads)
	guards := map[*guard]drained{}
	before := s.settled(t, "drain")
	for a, kind := range apps {
		guards[s.witness.guard(a, kind.floor)] = kind
	}
	preview := s.previewDrain(t, east, "drain")
	if len(preview) < *workloads {
		t.Errorf("the preview of %d objects has %d lines", *workloads, len(preview))
	}

	began := time.Now()
	atOnce := fmt.Sprint(max(4, *workloads/20))
	s.atoll(t, "drain", east, "--rate", atOnce, "--max-in-flight", atOnce, "--wait=false")
	t.Cleanup(func() { s.uncordon(t, east) })
	s.awaitLeft(t, before, len(before)/4)
	s.atoll(t, "drain", east, "--pause")
	s.awaitCondition(t, east, v1alpha1.ClusterDraining, "", v1alpha1.ReasonDrainPaused)
	paused := s.settled(t, "drain")
	if left := leftOf(paused); left == 0 {
		t.Error("everything had left before the pause")
	}
	s.unmovedFor(t, "drain", paused, 3*time.Second)
	s.atoll(t, "drain", east, "--resume", "--wait=false")
	s.awaitLeft(t, before, len(before)/2)
	killed := s.killLeader(t)
	s.atoll(t, "drain", east)
	s.awaitCondition(t, east, v1alpha1.ClusterDraining, metav1.ConditionFalse, v1alpha1.ReasonDrained)
	took := time.Since(began)
	after := s.settled(t, "drain")
	if left := leftOf(after); left > 0 {
		t.Errorf("%d objects are still in east", left)
	}
	if outcome := changes(before, after); !slices.Equal(preview, outcome) {
		t.Errorf("the preview was\n  %s\nand this moved\n  %s", strings.Join(preview, "\n  "), strings.Join(outcome, "\n  "))
	}
	for g, kind := range guards {
		if _, most := g.end(t); kind.once && most > kind.replicas {
			t.Errorf("%s had %d ready Pods in all members together, more than %d", g.app, most, kind.replicas)
		}
	}
	t.Logf("%d objects with %d bindings left in %s, with a pause and without %s for a while", len(apps), len(before), took.Round(100*time.Millisecond), s.Servers()[killed])
	s.restart(t, killed)
	s.neverHalted(t)
}

// applyKinds creates a namespace with so many objects of all kinds, which run in east, and waits until their Pods are ready.
func (s *stage) applyKinds(t *testing.T, namespace string, count int) map[app]drained {
	t.Helper()
	s.namespace(t, namespace)
	s.apply(t, widgets)
	s.prefer(t, namespace, "")
	var manifests []string
	apps := map[app]drained{}
	for i := range count {
		kind := drainedKinds[i%len(drainedKinds)]
		name := fmt.Sprintf("%s-%d", strings.ToLower(kind.kind), i)
		manifests = append(manifests, strings.NewReplacer("NAME", name, "SPACE", namespace).Replace(kind.manifest))
		apps[app{namespace, name}] = kind
	}
	eventually(t, "the objects are accepted", func(ctx context.Context) error {
		_, err := programs.Run(ctx, s.dir, "kubectl", s.running(), strings.Join(manifests, "\n---\n"), "apply", "-f", "-")
		return err
	})
	for a, kind := range apps {
		s.awaitReady(t, a, kind.replicas)
	}
	return apps
}

// uncordon ends a drain.
func (s *stage) uncordon(t *testing.T, cluster string) {
	t.Helper()
	if _, err := programs.Run(context.Background(), s.dir, "atoll", s.running(), "", "uncordon", cluster); err != nil {
		t.Error(err)
	}
}

// settled waits until nothing in a namespace is in transition, and every binding's reports are from its clusters. It
// returns the bindings.
func (s *stage) settled(t *testing.T, namespace string) (bindings map[string]*v1alpha1.ResourceBinding) {
	t.Helper()
	eventually(t, "nothing is in transition", func(ctx context.Context) (err error) {
		if bindings, err = s.bindings(ctx, t, namespace); err != nil {
			return err
		}
		for _, b := range bindings {
			if err := restsIn(b, inEffect(b)...); err != nil {
				return err
			}
		}
		return nil
	})
	return bindings
}

// leftOf counts the bindings with a copy in east.
func leftOf(bindings map[string]*v1alpha1.ResourceBinding) (count int) {
	for _, b := range bindings {
		if _, has := b.State(east); has {
			count++
		}
	}
	return count
}

// awaitLeft waits until so many of the objects have left east.
func (s *stage) awaitLeft(t *testing.T, before map[string]*v1alpha1.ResourceBinding, count int) {
	t.Helper()
	all := leftOf(before)
	eventually(t, fmt.Sprintf("%d of %d have left", count, all), func(ctx context.Context) error {
		now, err := s.bindings(ctx, t, "drain")
		if err != nil {
			return err
		}
		if left := all - leftOf(now); left < count {
			return fmt.Errorf("%d have left", left)
		}
		return nil
	})
}

// unmovedFor checks for some time that nothing moves.
func (s *stage) unmovedFor(t *testing.T, namespace string, before map[string]*v1alpha1.ResourceBinding, limit time.Duration) {
	t.Helper()
	awaitNothing(t, time.Now().Add(limit), "nothing moves", func(ctx context.Context) error {
		after, err := s.bindings(ctx, t, namespace)
		if err != nil {
			return err
		}
		return sameIn(before, after)
	})
}

// previewDrain returns the changes that the preview of a drain shows for a namespace.
func (s *stage) previewDrain(t *testing.T, cluster, namespace string) (out []string) {
	t.Helper()
	var preview struct {
		Moves []struct{ Kind, Namespace, Name, Cluster, Before, After string } `json:"moves"`
	}
	if err := json.Unmarshal([]byte(s.atoll(t, "preview", "drain", cluster, "-o", "json")), &preview); err != nil {
		t.Fatal(err)
	}
	for _, m := range preview.Moves {
		if m.Namespace == namespace {
			out = append(out, fmt.Sprintf("%s %s in %s: %s -> %s", m.Kind, m.Name, m.Cluster, m.Before, m.After))
		}
	}
	slices.Sort(out)
	return out
}

// changes returns the differences between bindings in the form of previewDrain.
func changes(before, after map[string]*v1alpha1.ResourceBinding) (out []string) {
	for name, was := range before {
		is := after[name]
		for _, cluster := range members {
			from, to := shareText(was, cluster), "-"
			if is != nil {
				to = shareText(is, cluster)
			}
			if from != to {
				out = append(out, fmt.Sprintf("%s in %s: %s -> %s", name, cluster, from, to))
			}
		}
	}
	slices.Sort(out)
	return out
}

// shareText describes a share as previews do.
func shareText(b *v1alpha1.ResourceBinding, cluster string) string {
	share, has := b.Share(cluster)
	switch {
	case !has:
		return "-"
	case share.Replicas == nil:
		return "whole"
	}
	return fmt.Sprint(*share.Replicas)
}
