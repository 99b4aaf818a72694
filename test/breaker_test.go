package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// many is more objects than a cluster may lose at once, in addition to those of other tests.
const many = 40

// TestTheBreaker: a change of decisions does not remove many objects at once. Objects that a user deletes are
// removed at once, together with the objects that only they needed.
func TestTheBreaker(t *testing.T) {
	f := whole(t)
	f.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: waves}}")
	t.Cleanup(func() {
		for _, args := range [][]string{{"delete", "crd", "waves.breaker.example.com", "--ignore-not-found"}, {"delete", "namespace", "waves", "--ignore-not-found"}} {
			_, _ = f.tryKubectl(context.Background(), "atoll", "", args...)
		}
	})
	inEast := func(kind string, want int) {
		t.Helper()
		eventually(t, 2*settle, fmt.Sprintf("east has %d of the %s", want, kind), func(ctx context.Context) error {
			out, err := f.tryKubectl(ctx, "east", "", "get", kind, "-n", "waves", "-l", v1alpha1.ManagedLabel, "-o", "name")
			if have := len(strings.Fields(out)); err != nil || have != want {
				return fmt.Errorf("it has %d (%v)", have, err)
			}
			return nil
		})
	}
	settings := func(label string) string {
		var out strings.Builder
		for i := range many {
			fmt.Fprintf(&out, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: setting-%d, namespace: waves, labels: {%s}}, data: {a: b}}\n", i, label)
		}
		return out.String()
	}

	t.Run("a user is deleted", func(t *testing.T) {
		var from []string
		for i := range many {
			from = append(from, fmt.Sprintf("{configMapRef: {name: setting-%d}}", i))
		}
		f.apply(t, settings("")+`---
apiVersion: batch/v1
kind: CronJob
metadata: {name: user, namespace: waves, labels: {fleet.atoll.dev/cluster: east}}
spec:
  suspend: true
  schedule: "0 0 1 1 *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, envFrom: [`+strings.Join(from, ", ")+`]}]}}}}
`)
		inEast("configmaps", many)
		before := f.haltings(t)
		f.kubectl(t, "atoll", "delete", "cronjob", "user", "-n", "waves")
		inEast("configmaps", 0)
		if after := f.haltings(t); after != before {
			t.Errorf("what only a deleted object needed was held: %s (was: %s)", after, before)
		}
	})

	t.Run("a type is deleted", func(t *testing.T) {
		f.apply(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: waves.breaker.example.com, labels: {fleet.atoll.dev/cluster: east}}
spec:
  group: breaker.example.com
  scope: Namespaced
  names: {plural: waves, singular: wave, kind: Wave}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`)
		eventually(t, settle, "objects of the type can be made", func(ctx context.Context) error {
			var objects strings.Builder
			for i := range many {
				fmt.Fprintf(&objects, "---\n{apiVersion: breaker.example.com/v1, kind: Wave, metadata: {name: wave-%d, namespace: waves}}\n", i)
			}
			_, err := f.tryKubectl(ctx, "atoll", objects.String(), "apply", "-f", "-")
			return err
		})
		inEast("waves.breaker.example.com", many)
		before := f.haltings(t)
		f.kubectl(t, "atoll", "delete", "crd", "waves.breaker.example.com")
		eventually(t, 2*settle, "the type is gone from east", func(ctx context.Context) error {
			out, err := f.tryKubectl(ctx, "east", "", "get", "crd", "waves.breaker.example.com", "--ignore-not-found", "-o", "name")
			if err != nil || out != "" {
				return fmt.Errorf("it has %q (%v)", out, err)
			}
			return nil
		})
		if after := f.haltings(t); after != before {
			t.Errorf("the objects of a deleted type were held: %s (was: %s)", after, before)
		}
	})

	t.Run("labels change", func(t *testing.T) {
		f.apply(t, settings("fleet.atoll.dev/cluster: east"))
		inEast("configmaps", many)
		f.kubectl(t, "atoll", "label", "configmaps", "--all", "-n", "waves", "--overwrite", v1alpha1.ClusterLabel+"=west")
		f.eastHalted(t, "True")
		// kubectl labels them one after the other, so that a few may go before it is a wave: no
		// more than may at any time.
		most, left := f.mayLeaveEast(t), len(strings.Fields(f.kubectl(t, "east", "get", "configmaps", "-n", "waves", "-l", v1alpha1.ManagedLabel, "-o", "name")))
		if left < many-most {
			t.Errorf("%d of %d went, and no more than %d may", many-left, many, most)
		}
		// Who deletes them asks for just that.
		f.kubectl(t, "atoll", "delete", "configmaps", "--all", "-n", "waves", "--wait=false")
		inEast("configmaps", 0)
		f.eastHalted(t, "False")
	})
}

// mayLeaveEast returns how many objects may leave the cluster east, according to its condition while removals
// are halted.
func (f *fixture) mayLeaveEast(t *testing.T) int {
	t.Helper()
	message := f.kubectl(t, "atoll", "get", "cluster", "east", "-o", `jsonpath={.status.conditions[?(@.type=="`+v1alpha1.ClusterDeletionsHalted+`")].message}`)
	var waiting, kept int
	if _, err := fmt.Sscanf(message, "%d of the %d objects in the cluster would be removed", &waiting, &kept); err != nil {
		t.Fatalf("%q: %v", message, err)
	}
	return max(v1alpha1.MinDeletions, kept*v1alpha1.DefaultMaxDeletePercent/100)
}

// eastHalted waits until the Cluster east says, or no longer says, that removals are
// halted.
func (f *fixture) eastHalted(t *testing.T, want string) {
	t.Helper()
	eventually(t, settle, "east says "+v1alpha1.ClusterDeletionsHalted+" "+want, func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "cluster", "east", "-o", `jsonpath={.status.conditions[?(@.type=="`+v1alpha1.ClusterDeletionsHalted+`")].status}`)
		if err != nil || out != want {
			return fmt.Errorf("it says %q (%v)", out, err)
		}
		reason := v1alpha1.EventDeletionsResumed
		if want == "True" {
			reason = v1alpha1.EventDeletionsHalted
		}
		events, err := f.tryKubectl(ctx, "atoll", "", "get", "events", "-n", "default", "--field-selector", "involvedObject.kind=Cluster,involvedObject.name=east,reason="+reason, "-o", "name")
		if err != nil || events == "" {
			return fmt.Errorf("no event %s: %q (%v)", reason, events, err)
		}
		return nil
	})
}
