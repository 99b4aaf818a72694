package cli_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// spec returns a field of a Cluster's spec as text.
func (m *moves) spec(cluster string, field ...string) string {
	m.t.Helper()
	value, has, err := unstructured.NestedFieldNoCopy(m.api.Get(v1alpha1.ClusterResource, "", cluster).Object, append([]string{"spec"}, field...)...)
	if err != nil {
		m.t.Fatal(err)
	}
	if !has {
		return "none"
	}
	return fmt.Sprint(value)
}

// draining plays the engine: at each read of a drained Cluster, its condition Draining gets the next reason and message.
func (m *moves) draining(cluster string, steps ...string) {
	m.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb != "get" || r.Resource != v1alpha1.ClusterResource || r.Name != cluster || len(steps) == 0 || m.spec(cluster, "drain") == "none" {
			return nil
		}
		reason, message, _ := strings.Cut(steps[0], ": ")
		steps = steps[1:]
		m.api.Change(v1alpha1.ClusterResource, "", cluster, func(u *unstructured.Unstructured) {
			if err := unstructured.SetNestedSlice(u.Object, []any{
				map[string]any{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "ok", "lastTransitionTime": "2026-01-01T00:00:00Z"},
				map[string]any{"type": "Draining", "status": "True", "reason": reason, "message": message, "observedGeneration": u.GetGeneration(), "lastTransitionTime": "2026-01-01T00:00:00Z"},
			}, "status", "conditions"); err != nil {
				m.t.Error(err)
			}
		})
		return nil
	})
}

// TestCordon: as in kubectl, it reports the outcome, also if there was nothing to do.
func TestCordon(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.check("cordon", 1, "no cluster specified")
	m.check("cordon estt", 1, `cluster "estt" not found`, "did you mean east?")
	m.check("cordon east --dry-run", 0, "cluster/east cordoned (server dry run)")
	if got := m.spec("east", "unschedulable"); got != "none" {
		t.Errorf("a dry run sets spec.unschedulable to %s", got)
	}
	m.check("cordon east west", 0, "cluster/east cordoned\n", "cluster/west cordoned\n")
	m.check("cordon east", 0, "cluster/east already cordoned\n")
	if got := m.spec("east", "unschedulable"); got != "true" {
		t.Errorf("spec.unschedulable is %s", got)
	}
	m.check("uncordon east none west", 1, "cluster/east uncordoned\n", "cluster/west uncordoned\n", `cluster "none" not found`)
	m.check("uncordon east", 0, "cluster/east already uncordoned\n")
	if got := m.spec("east", "unschedulable"); got != "none" {
		t.Errorf("spec.unschedulable is still %s", got)
	}
}

// TestDrain: it prints what moves, and follows the cluster's condition until nothing is left.
func TestDrain(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.check("drain east --dry-run", 0, "Deployment shop/web   east      3        -       the cluster is drained", "Deployment shop/web   full      -        1", "Deployment shop/web   west      -        2", "cluster/east is drained (server dry run)")
	if got := m.spec("east", "drain"); got != "none" {
		t.Errorf("a dry run sets spec.drain to %s", got)
	}
	for line, words := range map[string][]string{
		"drain":                         {"no cluster specified"},
		"drain estt":                    {`cluster "estt" not found`, "did you mean east?"},
		"drain east --rate 0":           {"--rate 0 is less than 1", "--pause"},
		"drain east --max-in-flight -1": {"--max-in-flight -1 is less than 1"},
		"drain east --pause --resume":   {"mutually exclusive"},
		"drain east --pause":            {"cluster east is not drained"},
		"drain east --resume":           {"cluster east is not drained"},
	} {
		m.check(line, 1, words...)
	}
	m.check("drain east --rate 3 --wait=false", 0, "cluster/east is drained\n")
	m.check("drain east --max-in-flight 2 --wait=false", 0, "cluster/east is drained already\n")
	m.check("drain east --pause", 0, "cluster/east drain paused\n")
	if got := m.spec("east", "drain"); got != "map[maxInFlight:2 paused:true rate:3]" {
		t.Errorf("spec.drain is %s", got)
	}
	m.check("drain east", 1, "the drain of cluster east is paused", "`atoll drain east --resume`")
	m.check("drain east --resume --timeout 1ms", 1, "not done after 1ms", "The drain goes on", "`atoll uncordon east` ends it")
	m.draining("east", "Paused: ", "Draining: 1 object left", "Draining: 1 object left", "Drained: nothing is left")
	m.check("drain east", 0, "cluster east: 1 object left\n", "cluster/east drained\n")
	m.check("cordon east --dry-run", 0, "cluster/east cordoned")
	m.check("uncordon east", 0, "cluster/east uncordoned, its drain is ended\n")
	if got := m.spec("east", "drain"); got != "none" {
		t.Errorf("spec.drain is still %s", got)
	}
}

// TestDrainIsBlocked: objects that no other cluster takes are named beforehand, and end the wait with the remedies.
func TestDrainIsBlocked(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.api.Merge(deploymentResource, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"east"}}}`)
	m.check("drain east --dry-run", 0, "No other cluster takes these objects:\nOBJECT                WHY\nDeployment shop/web   full, west: the label fleet.atoll.dev/cluster sets cluster east\n")
	m.check("preview drain east", 0, "Nothing would move.", "Deployment shop/web   full, west: the label")
	m.draining("east", "Draining: 1 object left", "Blocked: Deployment shop/web is labelled for east")
	m.check("drain east", 1, "No other cluster takes these objects", "cluster east cannot be drained completely: Deployment shop/web is labelled for east",
		"These objects keep running there", "atoll uncordon east")
	if got := m.spec("east", "drain"); got == "none" {
		t.Error("the drain is ended")
	}
}

// TestDrainOfOlderServers: servers whose Clusters have no spec.drain drop it, and the command does not wait for them.
func TestDrainOfOlderServers(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.api.OnStore(func(u *unstructured.Unstructured) {
		if u.GetKind() == "Cluster" {
			unstructured.RemoveNestedField(u.Object, "spec", "drain")
		}
	})
	m.check("drain east", 1, "this Atoll does not support drains")
}

// TestDrainDuringATransition: an object that already leaves the cluster does not count as one that stays.
func TestDrainDuringATransition(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.api.Merge(deploymentResource, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`)
	m.binding("web", inTransition, waitsInWest)
	code, stdout, stderr := m.atoll("drain east --dry-run")
	if code != 0 || !strings.HasPrefix(stdout, "Nothing would move.\ncluster/east is drained") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}
