package scheduler

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const shop = `
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: n}
`

// fakeManual is a Manual for all objects, for those with a label, or for none.
type fakeManual struct {
	mu     sync.Mutex
	manual bool
	label  string // "" for all objects
	notify func()
}

func (p *fakeManual) Ready(context.Context) error { return nil }

func (p *fakeManual) Manual(_ string, labels map[string]string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, selected := labels[p.label]
	return p.manual && (p.label == "" || labels == nil || selected)
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

// waitForProposals waits until the proposals have these messages, by binding.
func waitForProposals(t *testing.T, c *control, want map[string]string) map[string]*v1alpha1.BindingProposal {
	t.Helper()
	var all map[string]*v1alpha1.BindingProposal
	fakeapi.Eventually(t, "the proposals", func() error {
		got := map[string]string{}
		all = map[string]*v1alpha1.BindingProposal{}
		for _, b := range c.bindings(t) {
			if p := b.Status.Proposal; p != nil {
				all[b.Name], got[b.Name] = p, p.Message
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("they are\n%v\nwant\n%v", got, want)
		}
		return nil
	})
	return all
}

// approve approves the proposal of a binding.
func approve(c *control, name string, p *v1alpha1.BindingProposal) {
	c.Merge(v1alpha1.ResourceBindingResource, "shop", name, fmt.Sprintf(`{"spec":{"approved":%q}}`, p.Digest))
}

func spec(c *control, name string) v1alpha1.ResourceBindingSpec {
	b := &v1alpha1.ResourceBinding{}
	c.Read(v1alpha1.ResourceBindingResource, "shop", name, b)
	return b.Spec
}

// TestWaitsForPlan: with plans, no object is placed, moved, changed or removed before a plan
// has allowed exactly that. Followers go along.
func TestWaitsForPlan(t *testing.T) {
	p := &fakeManual{manual: true}
	client := beginWith(t, Config{Manual: p}, clusters+shop+app)
	const web = "deployment.apps.web"
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")

	// New: no cluster, and no followers.
	proposals := waitForProposals(t, client, map[string]string{name: "no cluster → east 2, west 1"})
	decided(t, client, name+": no cluster\n")
	if m := spec(client, name).Manual; m == nil || m.Content != "" {
		t.Errorf("%s may be in clusters as %+v before anything was allowed", web, m)
	}

	// Approving another digest has no effect.
	approve(client, name, &v1alpha1.BindingProposal{Digest: "sha256:" + strings.Repeat("0", 64)})
	waitForProposals(t, client, map[string]string{name: "no cluster → east 2, west 1"})
	approve(client, name, proposals[name])
	waitForProposals(t, client, map[string]string{})
	conf := v1alpha1.BindingName(schema.GroupKind{Kind: "ConfigMap"}, "conf")
	service := v1alpha1.BindingName(schema.GroupKind{Kind: "Service"}, "web")
	decided(t, client, conf+": east, west [{ Deployment web} { Namespace shop}]\n"+name+": east 2, west 1\n"+service+": east, west [{ Deployment web} { Namespace shop}]\n")
	allowed := spec(client, name)
	if allowed.Approved != "" || allowed.Manual.Content == "" {
		t.Errorf("after the apply: %+v", allowed)
	}

	// A change of its content, and of a follower.
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":5}}`)
	client.Merge(configMaps, "shop", "conf", `{"data":{"a":"b"}}`)
	proposals = waitForProposals(t, client, map[string]string{name: "east 2, west 1 → east 3, west 2; the object changes", conf: "the object changes"})
	if is := spec(client, name); is.Manual.Content != allowed.Manual.Content || describe(is.Clusters) != "east 2, west 1" {
		t.Errorf("before it was allowed: %+v", is)
	}
	approve(client, conf, proposals[conf])
	approve(client, name, proposals[name])
	waitForProposals(t, client, map[string]string{})

	// Deletion.
	client.Delete(deployments, "shop", "web")
	proposals = waitForProposals(t, client, map[string]string{name: "it was deleted: it would leave east 3, west 2"})
	if spec(client, name).Manual.Removal {
		t.Error("it may leave before the removal was allowed")
	}
	approve(client, name, proposals[name])
	decided(t, client, "")
}

// TestDroppedLabelWaitsForPlan: a change that drops the label by which a policy selects waits for a plan, and so
// does the removal. Afterwards, the object is no longer under the policy.
func TestDroppedLabelWaitsForPlan(t *testing.T) {
	p := &fakeManual{manual: true, label: "tier"}
	client := beginWith(t, Config{Manual: p}, clusters+shop+app)
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")
	fakeapi.Eventually(t, "the object is placed", func() error {
		b := &v1alpha1.ResourceBinding{}
		if !client.Read(v1alpha1.ResourceBindingResource, "shop", name, b) || describe(b.Spec.Clusters) != "east 2, west 1" {
			return fmt.Errorf("the binding has %+v", b.Spec)
		}
		return nil
	})
	client.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"tier":"gold"}}}`)
	fakeapi.Eventually(t, "the object is under the policy", func() error {
		if m := spec(client, name).Manual; m == nil || m.Labels["tier"] != "gold" {
			return fmt.Errorf("the binding has %+v", m)
		}
		return nil
	})
	// An approved change of the labels.
	client.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"tier":"silver","a":"b"}}}`)
	approve(client, name, waitForProposals(t, client, map[string]string{name: "the object changes"})[name])
	waitForProposals(t, client, map[string]string{})
	client.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"tier":null}},"spec":{"replicas":5}}`)
	proposals := waitForProposals(t, client, map[string]string{name: "east 2, west 1 → east 3, west 2; the object changes"})
	if is := spec(client, name); is.Manual == nil || is.Manual.Labels["tier"] != "silver" || is.Manual.Labels["a"] != "b" || describe(is.Clusters) != "east 2, west 1" {
		t.Errorf("before it was allowed: %+v", is)
	}
	approve(client, name, proposals[name])
	waitForProposals(t, client, map[string]string{})
	fakeapi.Eventually(t, "the object is no longer under the policy", func() error {
		if is := spec(client, name); is.Manual != nil || describe(is.Clusters) != "east 3, west 2" {
			return fmt.Errorf("the binding has %+v", is)
		}
		return nil
	})
}

// TestPlansBeginAndEnd: the state that exists when a policy starts to apply is allowed; when it
// ends, pending changes take effect.
func TestPlansBeginAndEnd(t *testing.T) {
	p := &fakeManual{}
	client := beginWith(t, Config{Manual: p}, clusters+shop+app)
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")
	conf := v1alpha1.BindingName(schema.GroupKind{Kind: "ConfigMap"}, "conf")
	service := v1alpha1.BindingName(schema.GroupKind{Kind: "Service"}, "web")
	rest := func(clusters string) string {
		return conf + ": east, west [{ Deployment web} { Namespace shop}]\n" + name + ": " + clusters + "\n" + service + ": east, west [{ Deployment web} { Namespace shop}]\n"
	}
	decided(t, client, rest("east 2, west 1"))
	p.set(true)
	fakeapi.Until(t, "the binding is held to plans", func() bool { return spec(client, name).Manual != nil })
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":4}}`)
	waitForProposals(t, client, map[string]string{name: "east 2, west 1 → east 2, west 2; the object changes"})
	p.set(false)
	decided(t, client, rest("east 2, west 2"))
	waitForProposals(t, client, map[string]string{})
	if is := spec(client, name); is.Manual != nil {
		t.Errorf("it still waits for plans: %+v", is.Manual)
	}
}

// TestAutoscalerWaitsForPlan: an autoscaler waits for the plan that divides its target
// accordingly.
func TestAutoscalerWaitsForPlan(t *testing.T) {
	p := &fakeManual{manual: true}
	client := beginWith(t, Config{Manual: p}, clusters+shop+"---"+onePod)
	name := v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web")
	proposals := waitForProposals(t, client, map[string]string{name: "no cluster → east 1"})
	approve(client, name, proposals[name])
	waitForProposals(t, client, map[string]string{})
	create(t, client, fromSix)
	proposals = waitForProposals(t, client, map[string]string{name: "east 1 → east 3, west 3"})
	decided(t, client, name+": east 1\n")
	approve(client, name, proposals[name])
	decided(t, client, name+": east 3, west 3\nhorizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]\n")
	wantFirstPlacement(t, client, "horizontalpodautoscaler.autoscaling-web", "east 3, west 3")
}
