package webhooks_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/fleet/status"
	"github.com/atoll-dev/atoll/fleet/syncer"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/test/fakeapi"
	"github.com/atoll-dev/atoll/test/fakewebhook"
)

var (
	rings   = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "rings"}
	secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

const ringFleet = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rings.example.org, uid: t}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: rings, kind: Ring}
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}}
status: {conditions: [{type: Established, status: "True"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: NegotiatedAPIResource
metadata: {name: rings.v1.example.org}
spec: {groupVersion: {group: example.org, version: v1}, plural: rings, kind: Ring, scope: Namespaced}
status: {conditions: [{type: Enforced, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: n}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: shop, uid: s, labels: {fleet.atoll.dev/configuration: WhereNeeded}}
type: Opaque
`

const ringCluster = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: %[1]s, uid: c-%[1]s, creationTimestamp: "2026-01-01T00:00:00Z"}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: APIResourceImport
metadata: {name: rings.%[1]s.v1.example.org}
spec: {location: %[1]s, groupVersion: {group: example.org, version: v1}, plural: rings, kind: Ring, scope: Namespaced}
status:
  conditions:
  - {type: Available, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: Compatible, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}
`

// ringMembers is a fleet of members with a webhook for the kind Ring.
type ringMembers struct {
	*testing.T
	webhook *fakewebhook.Webhook
	control *fakeapi.Server
	members map[string]*fakeapi.Server
}

func newRingMembers(t *testing.T, names ...string) *ringMembers {
	f := &ringMembers{T: t, webhook: fakewebhook.New(t), members: map[string]*fakeapi.Server{}}
	ring := fakeapi.Custom("Ring", rings)
	builtIn := fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 Secret", "apiextensions.k8s.io/v1 CustomResourceDefinition")
	f.control = fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), append(builtIn, ring)...)...)
	manifests := ringFleet
	for _, name := range names {
		f.members[name] = fakeapi.New(t, append(builtIn, ring)...)
		manifests += "---\n" + fmt.Sprintf(ringCluster, name)
	}
	for _, doc := range strings.Split(manifests, "---\n") {
		f.control.Put(object(t, doc))
	}
	in := interpretation(f.webhook, allOperations...)
	in.APIVersion, in.Kind, in.Spec.Mode = v1alpha1.Group+"/"+v1alpha1.Version, "ResourceInterpretation", "Divided"
	f.control.Put(in)

	nodes := func(r fakewebhook.Request) any {
		return r.Object["spec"].(map[string]any)["size"].(map[string]any)["nodes"]
	}
	f.webhook.On("InterpretReplica", func(r fakewebhook.Request) fakewebhook.Response { return fakewebhook.Response{"replicas": nodes(r)} })
	f.webhook.On("ReviseReplica", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Patch(fakewebhook.Set("/spec/size/nodes", *r.Replicas))
	})
	f.webhook.On("Retain", func(r fakewebhook.Request) fakewebhook.Response {
		if leader := r.ObservedObject["spec"].(map[string]any)["leader"]; leader != nil {
			return fakewebhook.Patch(fakewebhook.Set("/spec/leader", leader))
		}
		return fakewebhook.Response{}
	})
	f.webhook.On("InterpretHealth", func(r fakewebhook.Request) fakewebhook.Response {
		status, _ := r.Object["status"].(map[string]any)
		return fakewebhook.Response{"healthy": status["up"] == nodes(r)}
	})
	f.webhook.On("InterpretStatus", func(r fakewebhook.Request) fakewebhook.Response {
		status, _ := r.Object["status"].(map[string]any)
		return fakewebhook.Response{"rawStatus": map[string]any{"up": status["up"]}}
	})
	f.webhook.On("AggregateStatus", func(r fakewebhook.Request) fakewebhook.Response {
		sum := 0.0
		for _, c := range r.AggregatedStatus {
			up, _ := c.Status["up"].(float64)
			sum += up
		}
		return fakewebhook.Patch(fakewebhook.Set("/status", map[string]any{"up": sum}))
	})
	f.webhook.On("InterpretDependency", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Response{"dependencies": []any{map[string]any{"apiVersion": "v1", "kind": "Secret", "namespace": r.Namespace, "name": "token"}}}
	})
	return f
}

// lead runs the controllers as a new leader would, without any answer, until the returned function is called.
func (f *ringMembers) lead() (end func()) {
	f.Helper()
	ctx, stop := context.WithCancel(f.Context())
	log := slog.New(slog.DiscardHandler)
	caller := webhooks.NewCaller(webhooks.NewMetrics())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: f.control.Config(), Clock: clock.RealClock{}, Log: log,
		Answers: func() fleet.AnswerSource {
			return webhooks.NewCache(webhooks.Config{Ask: caller.Ask, Log: log, MaxPause: 50 * time.Millisecond})
		}})
	if err != nil {
		f.Fatal(err)
	}
	var running sync.WaitGroup
	run := func(what string, do func() error) {
		running.Go(func() {
			if err := do(); err != nil && ctx.Err() == nil {
				f.Errorf("%s: %v", what, err)
			}
		})
	}
	run("scheduler", func() error { return scheduler.NewController(scheduler.Config{})(ctx, session) })
	run("status", func() error { return status.Run(ctx, session) })
	for name, member := range f.members {
		run("syncer", func() error {
			return syncer.Run(ctx, view.NewLocal(session, name), syncer.Options{Cluster: name, Clock: clock.RealClock{}, Log: log, Metrics: syncer.NewMetrics()}, member.Config())
		})
	}
	ended := sync.OnceFunc(func() { stop(); running.Wait(); session.Wait() })
	f.Cleanup(ended)
	return ended
}

func (f *ringMembers) binding(name string) *v1alpha1.ResourceBinding {
	var b v1alpha1.ResourceBinding
	f.control.Read(v1alpha1.ResourceBindingResource, "shop", name, &b)
	return &b
}

// shares returns the decision about the ring and where its Secret is.
func (f *ringMembers) shares() string {
	var parts []string
	for _, c := range f.binding("ring.example.org-red").Spec.Clusters {
		n := int32(-1)
		if c.Replicas != nil {
			n = *c.Replicas
		}
		parts = append(parts, fmt.Sprintf("%s %d", c.Name, n))
	}
	out := strings.Join(parts, ", ") + "; token:"
	for _, c := range f.binding("secret-token").Spec.Clusters {
		out += " " + c.Name
	}
	return out
}

// runs returns what the members run.
func (f *ringMembers) runs() string {
	out := ""
	for _, name := range []string{"east", "west"} {
		out += name + ":"
		if ring := f.members[name].Get(rings, "shop", "red"); ring != nil {
			n, _, _ := unstructured.NestedInt64(ring.Object, "spec", "size", "nodes")
			leader, _, _ := unstructured.NestedString(ring.Object, "spec", "leader")
			out += fmt.Sprintf(" %d%s", n, leader)
		}
		if f.members[name].Get(secrets, "shop", "token") != nil {
			out += " token"
		}
		out += "; "
	}
	return out
}

func (f *ringMembers) until(what string, get func() string, want string) {
	f.Helper()
	fakeapi.Eventually(f, what, func() error {
		if got := get(); got != want {
			return fmt.Errorf("got  %s\nwant %s", got, want)
		}
		return nil
	})
}

func (f *ringMembers) scheduled() string {
	c := meta.FindStatusCondition(f.binding("ring.example.org-red").Status.Conditions, v1alpha1.BindingScheduled)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func (f *ringMembers) health() string {
	out := ""
	for _, name := range []string{"east", "west"} {
		state, _ := f.binding("ring.example.org-red").State(name)
		out += fmt.Sprintf("%s %s %s; ", name, state.Health, state.Reason)
	}
	return out
}

// TestWebhookInterpretsAKind: a webhook counts, divides, judges and summarizes a kind, names its dependencies, and
// knows the field that each cluster sets.
func TestWebhookInterpretsAKind(t *testing.T) {
	f := newRingMembers(t, "east", "west")
	f.lead()
	f.control.Put(object(t, `{apiVersion: example.org/v1, kind: Ring, metadata: {name: red, namespace: shop, uid: r}, spec: {size: {nodes: 6}}}`))
	f.until("divided", f.shares, "east 3, west 3; token: east west")
	f.until("revised", f.runs, "east: 3 token; west: 3 token; ")
	f.until("judged", f.health, "east Progressing ; west Progressing ; ")

	// Each cluster elects a leader and reports its nodes.
	for name, member := range f.members {
		member.Change(rings, "shop", "red", func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(u.Object, "-node-of-"+name, "spec", "leader")
			u.Object["status"] = map[string]any{"up": int64(3), "noise": "x"}
		})
	}
	f.until("healthy", f.health, "east Healthy ; west Healthy ; ")
	f.until("summarized", func() string {
		return fmt.Sprint(f.control.Get(rings, "shop", "red").Object["status"])
	}, "map[up:6]")

	f.control.Change(rings, "shop", "red", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, int64(8), "spec", "size", "nodes")
	})
	f.until("divided again, and the leaders retained", f.runs, "east: 4-node-of-east token; west: 4-node-of-west token; ")
}

// TestNothingMovesWithoutAnswers: while the webhook is down, a new leader, which has no answers, moves and removes
// nothing, and an edit changes nothing. When the webhook is back, all of it happens.
func TestNothingMovesWithoutAnswers(t *testing.T) {
	f := newRingMembers(t, "east", "west")
	end := f.lead()
	f.control.Put(object(t, `{apiVersion: example.org/v1, kind: Ring, metadata: {name: red, namespace: shop, uid: r, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {size: {nodes: 6}}}`))
	f.until("revised", f.runs, "east: 3 token; west: 3 token; ")
	f.until("judged", f.health, "east Progressing ; west Progressing ; ")
	end()

	f.webhook.Down(true)
	end = f.lead()
	f.until("the leader waits for the webhook", f.scheduled, "False WaitingForWebhook")
	f.until("health is unknown", f.health, "east Unknown ApplyFailed; west Unknown ApplyFailed; ")
	unmoved := func() {
		t.Helper()
		if got := f.shares() + " / " + f.runs(); got != "east 3, west 3; token: east west / east: 3 token; west: 3 token; " {
			t.Errorf("something moved: %s", got)
		}
	}
	unmoved()
	asked := f.webhook.Requests("InterpretReplica")
	f.control.Change(rings, "shop", "red", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, int64(8), "spec", "size", "nodes")
	})
	fakeapi.Until(t, "asked about the edited object", func() bool { return f.webhook.Requests("InterpretReplica") > asked })
	unmoved()
	end()
	f.lead() // one more leader
	fakeapi.Until(t, "the next leader asks, too", func() bool { return f.webhook.Requests("InterpretReplica") > asked+1 })
	unmoved()

	f.webhook.Down(false)
	f.until("the edit takes effect", f.runs, "east: 4 token; west: 4 token; ")
	f.until("scheduled", f.scheduled, "True Placed")
	var c *metav1.Condition
	if c = meta.FindStatusCondition(f.binding("ring.example.org-red").Status.Conditions, v1alpha1.BindingScheduled); time.Since(c.LastTransitionTime.Time) > time.Hour {
		t.Errorf("the condition has not changed: %v", c)
	}
}
