package webhooks_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/test/fakewebhook"
)

var allOperations = []v1alpha1.InterpretationOperation{v1alpha1.InterpretReplica, v1alpha1.ReviseReplica, v1alpha1.Retain,
	v1alpha1.AggregateStatus, v1alpha1.InterpretHealth, v1alpha1.InterpretStatus, v1alpha1.InterpretDependency}

const manifest = `
apiVersion: example.org/v1
kind: Ring
metadata: {name: red, namespace: shop, uid: u1, resourceVersion: "7", generation: 3, managedFields: [{manager: kubectl}]}
spec: {size: {nodes: 6}, secret: token}
status: {phase: Old}
`

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func interpretation(w *fakewebhook.Webhook, operations ...v1alpha1.InterpretationOperation) *v1alpha1.ResourceInterpretation {
	in := &v1alpha1.ResourceInterpretation{}
	in.Name, in.UID, in.Generation = "rings", "i1", 1
	in.Spec.Target = v1alpha1.InterpretationTarget{APIVersion: "example.org/v1", Kind: "Ring"}
	in.Spec.Webhook = &v1alpha1.InterpretationWebhook{URL: w.URL, CABundle: w.CABundle, TimeoutSeconds: ptr.To[int32](5), Operations: operations}
	return in
}

// kind returns the kind Ring as the webhook interprets it, asked at once.
func kind(t *testing.T, w *fakewebhook.Webhook, operations ...v1alpha1.InterpretationOperation) interpret.KindInfo {
	t.Helper()
	c, err := interpret.ParseCustomization(interpretation(w, operations...))
	if err != nil {
		t.Fatal(err)
	}
	ring := interpret.Generic(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Ring"}, "rings", false, nil)
	k, _ := interpret.BuiltIn().AnsweredBy(webhooks.NewDirect(t.Context(), webhooks.NewCaller(webhooks.NewMetrics()).Ask)).WithCustomizations(c).With(ring).Find(ring.GroupKind())
	return k
}

func answer(r fakewebhook.Response) func(fakewebhook.Request) fakewebhook.Response {
	return func(fakewebhook.Request) fakewebhook.Response { return r }
}

// TestOperations asks a webhook each question.
func TestOperations(t *testing.T) {
	w := fakewebhook.New(t)
	obj := object(t, manifest)
	k := kind(t, w, allOperations...)

	w.On("InterpretReplica", func(r fakewebhook.Request) fakewebhook.Response {
		meta := r.Object["metadata"].(map[string]any)
		if r.Name != "red" || r.Namespace != "shop" || r.Kind["kind"] != "Ring" || r.Object["status"] != nil || meta["managedFields"] != nil || meta["resourceVersion"] != nil {
			return fakewebhook.Refuse(fmt.Sprintf("unexpected request %v", r))
		}
		nodes := r.Object["spec"].(map[string]any)["size"].(map[string]any)["nodes"]
		return fakewebhook.Response{"replicas": nodes, "replicaRequirements": map[string]any{
			"resourceRequest": map[string]any{"cpu": "500m", "memory": "1Gi"},
			"nodeClaim":       map[string]any{"nodeSelector": map[string]any{"disk": "fast"}}}}
	})
	if n, ok := k.Replicas(obj); n != 6 || !ok || !k.Divided || k.Unanswered(obj) != nil {
		t.Errorf("counted %d, %v: %v", n, ok, k.Unanswered(obj))
	}
	pods, _ := k.Pods(obj)
	if len(pods) != 1 || pods[0].Pod["nodeSelector"].(map[string]any)["disk"] != "fast" {
		t.Errorf("pods %v", pods)
	}

	w.On("ReviseReplica", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Patch(fakewebhook.Set("/spec/size/nodes", *r.Replicas))
	})
	share := interpret.Share{Cluster: "east", Replicas: ptr.To[int32](4)}
	revised, err := k.Revise(obj, share)
	if err != nil {
		t.Fatal(err)
	}
	prepared := k.PrepareShare(revised, share)
	if n, _, _ := unstructured.NestedInt64(prepared.Object, "spec", "size", "nodes"); n != 4 {
		t.Errorf("the share is %v", prepared.Object)
	}
	if _, found, _ := unstructured.NestedFieldNoCopy(prepared.Object, "spec", "replicas"); found {
		t.Error("spec.replicas was written, which the webhook did not ask for")
	}

	w.On("Retain", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Patch(fakewebhook.Set("/spec/leader", r.ObservedObject["spec"].(map[string]any)["leader"]))
	})
	live := object(t, manifest)
	_ = unstructured.SetNestedField(live.Object, "node-2", "spec", "leader")
	kept, retained, err := k.Retain(prepared, live)
	if leader, _, _ := unstructured.NestedString(kept.Object, "spec", "leader"); err != nil || !retained || leader != "node-2" {
		t.Errorf("retained %v, %v: %v", retained, kept, err)
	}

	w.On("InterpretHealth", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Response{"healthy": r.Object["status"].(map[string]any)["phase"] == "Up"}
	})
	if health, why := k.Health(obj); health != v1alpha1.Progressing || why == "" {
		t.Errorf("health %s: %s", health, why)
	}
	_ = unstructured.SetNestedField(live.Object, "Up", "status", "phase")
	if health, why := k.Health(live); health != v1alpha1.Healthy {
		t.Errorf("health %s: %s", health, why)
	}

	w.On("InterpretStatus", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Response{"rawStatus": map[string]any{"state": r.Object["status"].(map[string]any)["phase"], "count": 3}}
	})
	if status, err := k.CollectedStatus(live); err != nil || !reflect.DeepEqual(status, map[string]any{"state": "Up", "count": int64(3)}) {
		t.Errorf("collected %v: %v", status, err)
	}

	w.On("AggregateStatus", func(r fakewebhook.Request) fakewebhook.Response {
		sum := 0.0
		for _, c := range r.AggregatedStatus {
			sum += c.Status["count"].(float64)
		}
		if len(r.AggregatedStatus) != 2 || r.AggregatedStatus[0].Health != "Healthy" || r.AggregatedStatus[1].Health != "Unknown" || !r.AggregatedStatus[0].Applied {
			return fakewebhook.Refuse(fmt.Sprintf("unexpected statuses %v", r.AggregatedStatus))
		}
		return fakewebhook.Patch(fakewebhook.Set("/status/count", sum))
	})
	status, ok, err := k.Aggregate(obj, []interpret.MemberStatus{
		{Cluster: "east", Generation: 3, Health: v1alpha1.Healthy, Status: map[string]any{"count": int64(3)}},
		{Cluster: "west", Generation: 3, Health: v1alpha1.Healthy, Stale: "does not answer", Status: map[string]any{"count": int64(4)}}})
	if err != nil || !ok || !reflect.DeepEqual(status, map[string]any{"phase": "Old", "count": int64(7)}) {
		t.Errorf("summary %v: %v", status, err)
	}

	w.On("InterpretDependency", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Response{"dependencies": []any{map[string]any{"apiVersion": "v1", "kind": "Secret", "namespace": "shop", "name": r.Object["spec"].(map[string]any)["secret"]}}}
	})
	needs, err := k.Needs(obj)
	want := interpret.Reference{GroupKind: schema.GroupKind{Kind: "Secret"}, Namespace: "shop", Name: "token"}
	if err != nil || len(needs) != 1 || needs[0] != want {
		t.Errorf("needs %v: %v", needs, err)
	}
}

func TestComponents(t *testing.T) {
	w := fakewebhook.New(t)
	w.On("InterpretComponent", answer(fakewebhook.Response{"components": []any{
		map[string]any{"name": "head", "replicas": 1},
		map[string]any{"name": "worker", "replicas": 4, "replicaRequirements": map[string]any{"resourceRequest": map[string]any{"cpu": "2"}}}}}))
	k := kind(t, w, v1alpha1.InterpretComponent)
	parts, err := k.Components(object(t, manifest))
	if err != nil || len(parts) != 2 || parts[0].Pod != nil || parts[1].Replicas != 4 || parts[1].Pod == nil || k.DefaultMode != interpret.Single {
		t.Errorf("components %v, mode %s: %v", parts, k.DefaultMode, err)
	}
}

// TestNoTrust: an answer that turns the object into another, or is out of bounds, is not used.
func TestNoTrust(t *testing.T) {
	copies := []map[string]any{fakewebhook.Set("/spec/a", strings.Repeat("x", 1000))}
	for i := range 30 {
		copies = append(copies, map[string]any{"op": "copy", "from": "/spec", "path": fmt.Sprintf("/spec/c%d", i)})
	}
	for name, tt := range map[string]struct {
		operation v1alpha1.InterpretationOperation
		response  fakewebhook.Response
		want      string
	}{
		"another name":      {v1alpha1.ReviseReplica, fakewebhook.Patch(fakewebhook.Set("/metadata/name", "blue")), "the patch changes metadata.name"},
		"another namespace": {v1alpha1.ReviseReplica, fakewebhook.Patch(fakewebhook.Set("/metadata/namespace", "kube-system")), "the patch changes metadata.namespace"},
		"another kind":      {v1alpha1.ReviseReplica, fakewebhook.Patch(fakewebhook.Set("/kind", "Secret"), fakewebhook.Set("/apiVersion", "v1")), "the patch changes apiVersion, kind"},
		"another uid":       {v1alpha1.Retain, fakewebhook.Patch(fakewebhook.Set("/metadata/uid", "u2")), "the patch changes metadata.uid"},
		"an owner":          {v1alpha1.Retain, fakewebhook.Patch(fakewebhook.Set("/metadata/ownerReferences", []any{})), "the patch changes metadata.ownerReferences"},
		"the fleet's marks": {v1alpha1.Retain, fakewebhook.Patch(fakewebhook.Set("/metadata/annotations", map[string]any{v1alpha1.AdoptAnnotation: "true"})), "the patch changes labels or annotations of fleet.atoll.dev"},
		"no object":         {v1alpha1.AggregateStatus, fakewebhook.Patch(fakewebhook.Set("", nil)), "the patch does not match the object"},
		"no such field":     {v1alpha1.ReviseReplica, fakewebhook.Patch(map[string]any{"op": "replace", "path": "/spec/x/y", "value": 1}), "the patch does not match the object"},
		"another patch":     {v1alpha1.ReviseReplica, fakewebhook.Response{"patchType": "Merge", "patch": "e30="}, "patchType is not JSONPatch"},
		"a growing object":  {v1alpha1.ReviseReplica, fakewebhook.Patch(copies...), "is larger than"},
		"a wrong share":     {v1alpha1.ReviseReplica, fakewebhook.Patch(fakewebhook.Set("/spec/size/nodes", 5)), "the share is 4 replicas, and the webhook counts 5"},
		"a negative count":  {v1alpha1.InterpretReplica, fakewebhook.Response{"replicas": -1}, "want 0 to"},
		"a huge count":      {v1alpha1.InterpretReplica, fakewebhook.Response{"replicas": 1 << 31}, "want 0 to"},
		"no count":          {v1alpha1.InterpretReplica, fakewebhook.Response{}, "the response has no replicas"},
		"no verdict":        {v1alpha1.InterpretHealth, fakewebhook.Response{}, "the response does not have healthy"},
		"no status":         {v1alpha1.InterpretStatus, fakewebhook.Response{}, "no rawStatus"},
		"a nameless need":   {v1alpha1.InterpretDependency, fakewebhook.Response{"dependencies": []any{map[string]any{"apiVersion": "v1", "kind": "Secret"}}}, "lacks apiVersion, kind or name"},
		"another request":   {v1alpha1.InterpretHealth, fakewebhook.Response{"uid": "x", "healthy": true}, "another uid"},
		"a refusal":         {v1alpha1.InterpretHealth, fakewebhook.Refuse("not a ring"), "not a ring (code 400)"},
		"a refusal, no why": {v1alpha1.InterpretHealth, fakewebhook.Response{"successful": false}, "gives no reason"},
	} {
		t.Run(name, func(t *testing.T) {
			w := fakewebhook.New(t)
			w.On("InterpretReplica", func(r fakewebhook.Request) fakewebhook.Response {
				return fakewebhook.Response{"replicas": r.Object["spec"].(map[string]any)["size"].(map[string]any)["nodes"]}
			})
			w.On(string(tt.operation), answer(tt.response))
			k, obj := kind(t, w, allOperations...), object(t, manifest)
			var err error
			switch tt.operation {
			case v1alpha1.InterpretReplica:
				err = k.Unanswered(obj)
			case v1alpha1.ReviseReplica:
				_, err = k.Revise(obj, interpret.Share{Replicas: ptr.To[int32](4)})
			case v1alpha1.Retain:
				_, _, err = k.Retain(obj, obj)
			case v1alpha1.AggregateStatus:
				_, _, err = k.Aggregate(obj, []interpret.MemberStatus{{Cluster: "east"}})
			case v1alpha1.InterpretHealth:
				health, why := k.Health(obj)
				if err = fmt.Errorf("%s", why); health != v1alpha1.Unknown {
					t.Errorf("health %s", health)
				}
			case v1alpha1.InterpretStatus:
				_, err = k.CollectedStatus(obj)
			case v1alpha1.InterpretDependency:
				_, err = k.Needs(obj)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || interpret.IsPending(err) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-path") {
				t.Errorf("the message has the path of the URL: %v", err)
			}
		})
	}
}

// TestUnreachable: the error has the host and the cause, and nothing else of the URL.
func TestUnreachable(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		want   string
	}{
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, "it responded 307"},
		"fails":         {func(w http.ResponseWriter, r *http.Request) { http.Error(w, "x", http.StatusBadGateway) }, "it responded 502 Bad Gateway"},
		"no JSON":       {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }, "not JSON"},
		"too much":      {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, strings.Repeat(" ", 5<<20)) }, "larger than"},
		"hangs":         {func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }, "no response within 1s"},
		"another thing": {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{}`) }, "has no response"},
	} {
		t.Run(name, func(t *testing.T) {
			w := fakewebhook.New(t)
			w.Handle(tt.handle)
			in := interpretation(w, v1alpha1.InterpretHealth)
			if in.Spec.Webhook.TimeoutSeconds = ptr.To[int32](30); name == "hangs" {
				in.Spec.Webhook.TimeoutSeconds = ptr.To[int32](1)
			}
			_, err := webhooks.NewCaller(nil).Ask(t.Context(), interpret.Question{Webhook: in.Spec.Webhook, Operation: v1alpha1.InterpretHealth})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret-path") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	w := fakewebhook.New(t)
	k := kind(t, fakewebhookWithOtherCA(t, w), v1alpha1.InterpretHealth)
	if _, why := k.Health(object(t, manifest)); !strings.Contains(why, "ResourceInterpretation rings at 127.0.0.1:") || !strings.Contains(why, "certificate") || strings.Contains(why, "secret-path") {
		t.Error(why)
	}
}

// fakewebhookWithOtherCA returns a webhook with the CA of another.
func fakewebhookWithOtherCA(t *testing.T, w *fakewebhook.Webhook) *fakewebhook.Webhook {
	return &fakewebhook.Webhook{URL: w.URL, CABundle: otherCA(t)}
}
