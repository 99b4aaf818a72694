package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const shop = `
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: n}
`

// fakeManual is a Manual for all objects or none.
type fakeManual struct {
	mu     sync.Mutex
	manual bool
	notify func()
	wait   map[string]*v1alpha1.BindingProposal
}

func (p *fakeManual) Ready(context.Context) error { return nil }

func (p *fakeManual) Manual(string, map[string]string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.manual
}

func (p *fakeManual) OnChange(notify func()) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = notify
	return func() {}
}

func (p *fakeManual) set(manual bool) {
	p.mu.Lock()
	p.manual = manual
	notify := p.notify
	p.mu.Unlock()
	notify()
}

func (p *fakeManual) applied(binding string, patch []byte) {
	var is v1alpha1.ResourceBinding
	if json.Unmarshal(patch, &is) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait[binding] = is.Status.Proposal
}

// waitForProposals waits until the proposals have these messages, by binding.
func (p *fakeManual) waitForProposals(t *testing.T, want map[string]string) map[string]*v1alpha1.BindingProposal {
	t.Helper()
	var got map[string]string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		all := maps.Clone(p.wait)
		p.mu.Unlock()
		got = map[string]string{}
		for name, is := range all {
			if is != nil {
				got[name] = is.Message
			}
		}
		if maps.Equal(got, want) {
			return all
		}
	}
	t.Fatalf("the proposals are\n%v\nwant\n%v", got, want)
	return nil
}

// approve approves the proposal of a binding.
func approve(t *testing.T, client *dynamicfake.FakeDynamicClient, name string, p *v1alpha1.BindingProposal) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"approved":%q}}`, p.Digest)
	if _, err := client.Resource(v1alpha1.ResourceBindingResource).Namespace("shop").
		Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func spec(t *testing.T, client *dynamicfake.FakeDynamicClient, name string) v1alpha1.ResourceBindingSpec {
	t.Helper()
	u, err := client.Resource(v1alpha1.ResourceBindingResource).Namespace("shop").Get(t.Context(), name, metav1.GetOptions{})
	b, err := fromUnstructured(u, err, "read", name)
	if err != nil {
		t.Fatal(err)
	}
	return b.Spec
}

// TestWaitsForPlan: with plans, no object is placed, moved, changed or removed before a plan
// has allowed exactly that. Followers go along.
func TestWaitsForPlan(t *testing.T) {
	p := &fakeManual{manual: true, wait: map[string]*v1alpha1.BindingProposal{}}
	client := beginManual(t, nil, p, p.applied, clusters+shop+app)
	const web = "deployment.apps.web"
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")

	// New: no cluster, and no followers.
	proposals := p.waitForProposals(t, map[string]string{name: "no cluster → east 2, west 1"})
	decided(t, client, name+": no cluster\n")
	if m := spec(t, client, name).Manual; m == nil || m.Content != "" {
		t.Errorf("%s may be in clusters as %+v before anything was allowed", web, m)
	}

	// Approving another digest has no effect.
	approve(t, client, name, &v1alpha1.BindingProposal{Digest: "sha256:" + strings.Repeat("0", 64)})
	p.waitForProposals(t, map[string]string{name: "no cluster → east 2, west 1"})
	approve(t, client, name, proposals[name])
	p.waitForProposals(t, map[string]string{})
	conf := v1alpha1.BindingName(schema.GroupKind{Kind: "ConfigMap"}, "conf")
	service := v1alpha1.BindingName(schema.GroupKind{Kind: "Service"}, "web")
	decided(t, client, conf+": east, west [{ Deployment web}]\n"+name+": east 2, west 1\n"+service+": east, west [{ Deployment web}]\n")
	allowed := spec(t, client, name)
	if allowed.Approved != "" || allowed.Manual.Content == "" {
		t.Errorf("after the apply: %+v", allowed)
	}

	// A change of its content, and of a follower.
	edit(t, client, deployments(), "web", func(u *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(u.Object, int64(5), "spec", "replicas"); err != nil {
			t.Fatal(err)
		}
	})
	edit(t, client, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "conf", func(u *unstructured.Unstructured) {
		u.Object["data"] = map[string]any{"a": "b"}
	})
	proposals = p.waitForProposals(t, map[string]string{name: "east 2, west 1 → east 3, west 2; the object changes", conf: "the object changes"})
	if is := spec(t, client, name); is.Manual.Content != allowed.Manual.Content || describe(is.Clusters) != "east 2, west 1" {
		t.Errorf("before it was allowed: %+v", is)
	}
	approve(t, client, conf, proposals[conf])
	approve(t, client, name, proposals[name])
	p.waitForProposals(t, map[string]string{})

	// Deletion.
	if err := client.Resource(deployments()).Namespace("shop").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	proposals = p.waitForProposals(t, map[string]string{name: "it was deleted: it would leave east 3, west 2"})
	if spec(t, client, name).Manual.Removal {
		t.Error("it may leave before the removal was allowed")
	}
	approve(t, client, name, proposals[name])
	decided(t, client, "")
}

// TestPlansBeginAndEnd: the state that exists when a policy starts to apply is allowed; when it
// ends, pending changes take effect.
func TestPlansBeginAndEnd(t *testing.T) {
	p := &fakeManual{wait: map[string]*v1alpha1.BindingProposal{}}
	client := beginManual(t, nil, p, p.applied, clusters+shop+app)
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")
	conf := v1alpha1.BindingName(schema.GroupKind{Kind: "ConfigMap"}, "conf")
	service := v1alpha1.BindingName(schema.GroupKind{Kind: "Service"}, "web")
	rest := func(clusters string) string {
		return conf + ": east, west [{ Deployment web}]\n" + name + ": " + clusters + "\n" + service + ": east, west [{ Deployment web}]\n"
	}
	decided(t, client, rest("east 2, west 1"))
	p.set(true)
	until(t, "the binding is held to plans", func() bool { return spec(t, client, name).Manual != nil })
	edit(t, client, deployments(), "web", func(u *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(u.Object, int64(4), "spec", "replicas"); err != nil {
			t.Fatal(err)
		}
	})
	p.waitForProposals(t, map[string]string{name: "east 2, west 1 → east 2, west 2; the object changes"})
	p.set(false)
	decided(t, client, rest("east 2, west 2"))
	p.waitForProposals(t, map[string]string{})
	if is := spec(t, client, name); is.Manual != nil {
		t.Errorf("it still waits for plans: %+v", is.Manual)
	}
}

// TestAutoscalerWaitsForPlan: an autoscaler waits for the plan that divides its target
// accordingly.
func TestAutoscalerWaitsForPlan(t *testing.T) {
	p := &fakeManual{manual: true, wait: map[string]*v1alpha1.BindingProposal{}}
	client := beginManual(t, nil, p, p.applied, clusters+shop+"---"+onePod)
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")
	proposals := p.waitForProposals(t, map[string]string{name: "no cluster → east 1"})
	approve(t, client, name, proposals[name])
	p.waitForProposals(t, map[string]string{})
	create(t, client, autoscalers(), fromSix)
	proposals = p.waitForProposals(t, map[string]string{name: "east 1 → east 3, west 3"})
	decided(t, client, name+": east 1\n")
	approve(t, client, name, proposals[name])
	decided(t, client, name+": east 3, west 3\nhorizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]\n")
	wantFirstPlacement(t, client, "horizontalpodautoscaler.autoscaling-web", "east 3, west 3")
}

func edit(t *testing.T, client *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, name string, change func(*unstructured.Unstructured)) {
	t.Helper()
	u, err := client.Resource(gvr).Namespace("shop").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u = u.DeepCopy()
	change(u)
	u.SetGeneration(u.GetGeneration() + 1)
	if _, err := client.Resource(gvr).Namespace("shop").Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
