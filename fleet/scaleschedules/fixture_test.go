package scaleschedules

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	autoscalers = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
)

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d, generation: 1}
spec: {replicas: 3, template: {spec: {containers: [{name: c, image: i}]}}}
`

const office = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ScaleSchedule
metadata: {name: office, namespace: shop, uid: s, generation: 1, creationTimestamp: "2026-02-01T07:00:00Z"}
spec:
  author: {username: ann, groups: [team, "system:authenticated"]}
  target: {apiVersion: apps/v1, kind: Deployment, name: web}
  rules:
  - {name: up, schedule: 0 8 * * *, replicas: 9}
  - {name: down, schedule: 0 20 * * *, replicas: 2}
`

// fixture is a control plane whose Deployments can be scaled. It starts at 7:59.
type fixture struct {
	*fakeapi.Server
	t     *testing.T
	clock *clocktesting.FakeClock

	mu sync.Mutex
	// denied users may not scale.
	denied map[string]bool
	// onPatch replaces the answer to a patch of a scale, unless it returns nil.
	onPatch func() *metav1.Status
	// afterPatch is called once a patch of a scale was stored. If it returns a status, the client gets that.
	afterPatch func() *metav1.Status
	// patches are the stored patches: USER MANAGER BODY.
	patches []string
}

func prepare(t *testing.T, manifests ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 2, 1, 7, 59, 0, 0, time.UTC)), denied: map[string]bool{},
		Server: fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 ConfigMap", "apps/v1 Deployment",
			"autoscaling/v2 HorizontalPodAutoscaler", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)}
	f.ServeSubresource(deployments, "scale", f.serveScale)
	f.put(manifests...)
	return f
}

func (f *fixture) put(manifests ...string) {
	f.t.Helper()
	for _, doc := range manifests {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			f.t.Fatal(err)
		}
		f.Put(u)
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

func status(code int32, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
}

// serveScale serves the subresource scale of Deployments.
func (f *fixture) serveScale(w http.ResponseWriter, r *http.Request, namespace, name string) {
	f.mu.Lock()
	user := r.Header.Get("Impersonate-User")
	denied, onPatch, afterPatch := f.denied[user], f.onPatch, f.afterPatch
	f.mu.Unlock()
	verb := strings.ToLower(r.Method)
	if denied || user == "" {
		answer(w, 403, status(403, metav1.StatusReasonForbidden, fmt.Sprintf(`deployments.apps %q is forbidden: User %q cannot %s resource "deployments/scale" in API group "apps" in the namespace %q`, name, user, verb, namespace)))
		return
	}
	live := f.Get(deployments, namespace, name)
	if live == nil {
		answer(w, 404, status(404, metav1.StatusReasonNotFound, fmt.Sprintf("deployments.apps %q not found", name)))
		return
	}
	if verb == "patch" && r.URL.Query().Get("dryRun") == "" {
		if onPatch != nil {
			if s := onPatch(); s != nil {
				answer(w, int(s.Code), s)
				return
			}
		}
		body, _ := io.ReadAll(r.Body)
		live = f.Merge(deployments, namespace, name, string(body))
		f.mu.Lock()
		f.patches = append(f.patches, user+" "+r.URL.Query().Get("fieldManager")+" "+string(body))
		f.mu.Unlock()
		if afterPatch != nil {
			if s := afterPatch(); s != nil {
				answer(w, int(s.Code), s)
				return
			}
		}
	}
	n, _, _ := unstructured.NestedFieldNoCopy(live.Object, "spec", "replicas")
	spec := map[string]any{"replicas": n}
	if fmt.Sprint(n) == "0" {
		spec = map[string]any{} // as Kubernetes encodes it
	}
	answer(w, 200, map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec})
}

func (f *fixture) set(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
}

// run runs the controller as one leader. stop ends its session.
func (f *fixture) run() (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: f.Config(), Clock: f.clock, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- NewController(f.Config())(ctx, session) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
		session.Wait()
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) at(hour, minute int) {
	f.clock.SetTime(time.Date(2026, 2, 1, hour, minute, 0, 0, time.UTC))
}

func (f *fixture) schedule() *v1alpha1.ScaleSchedule {
	f.t.Helper()
	s := &v1alpha1.ScaleSchedule{}
	if !f.Read(v1alpha1.ScaleScheduleResource, "shop", "office", s) {
		f.t.Fatal("no ScaleSchedule office")
	}
	return s
}

// rule waits until the last run of a rule has a result, and returns its status.
func (f *fixture) rule(name string, result v1alpha1.ScaleResult) (out v1alpha1.ScaleRuleStatus) {
	f.t.Helper()
	fakeapi.Eventually(f.t, fmt.Sprintf("rule %s is %s", name, result), func() error {
		s := f.schedule()
		for _, st := range s.Status.Rules {
			if st.Name == name && st.LastResult == result {
				out = st
				return nil
			}
		}
		return fmt.Errorf("the status is %+v", s.Status)
	})
	return out
}

// retried is rule while time passes.
func (f *fixture) retried(name string, result v1alpha1.ScaleResult) {
	f.t.Helper()
	fakeapi.Until(f.t, fmt.Sprintf("rule %s is %s", name, result), func() bool {
		f.clock.Step(time.Second)
		return slices.ContainsFunc(f.schedule().Status.Rules, func(st v1alpha1.ScaleRuleStatus) bool { return st.Name == name && st.LastResult == result })
	})
}

// ready waits until the condition has a reason, and returns its message.
func (f *fixture) ready(reason string) (message string) {
	f.t.Helper()
	fakeapi.Eventually(f.t, "ready is "+reason, func() error {
		s := f.schedule()
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ScaleScheduleReady)
		if c == nil || c.Reason != reason || c.ObservedGeneration != s.Generation {
			return fmt.Errorf("the status is %+v", s.Status)
		}
		message = c.Message
		return nil
	})
	return message
}

func (f *fixture) replicas(want int64) {
	f.t.Helper()
	if n, _, _ := unstructured.NestedInt64(f.Get(deployments, "shop", "web").Object, "spec", "replicas"); n != want {
		f.t.Errorf("the target has %d replicas, want %d", n, want)
	}
}

func (f *fixture) patched(want ...string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.patches, want) {
		f.t.Errorf("the patches are %q, want %q", f.patches, want)
	}
}

// event waits for an event with these words.
func (f *fixture) event(reason, words string) {
	f.t.Helper()
	fakeapi.Until(f.t, "event "+reason+" "+words, func() bool {
		return slices.ContainsFunc(f.List(corev1.SchemeGroupVersion.WithResource("events")), func(e *unstructured.Unstructured) bool {
			message, _ := e.Object["message"].(string)
			return e.Object["reason"] == reason && strings.Contains(message, words)
		})
	})
}

// change edits the spec of the schedule.
func (f *fixture) change(edit func(spec map[string]any)) {
	f.t.Helper()
	f.Change(v1alpha1.ScaleScheduleResource, "shop", "office", func(u *unstructured.Unstructured) {
		edit(u.Object["spec"].(map[string]any))
		u.SetGeneration(u.GetGeneration() + 1)
	})
}
