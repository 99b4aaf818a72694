package scaleschedules

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const up9, down2 = `ann atoll-schedules {"spec":{"replicas":9}}`, `ann atoll-schedules {"spec":{"replicas":2}}`

// TestScheduleScales: rules scale the target at their times, as the author. A user's change between
// them stays.
func TestScheduleScales(t *testing.T) {
	f := prepare(t, web, office)
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	if s := f.schedule().Status; s.NextRule != "up" || s.NextScheduleTime.UTC().Hour() != 8 {
		t.Errorf("%+v", s)
	}
	f.replicas(3)
	f.at(8, 0)
	if st := f.rule("up", v1alpha1.ScaleSucceeded); st.Message != "set replicas 9" || st.LastSuccessfulTime == nil || st.LastScheduleTime.UTC().Hour() != 8 {
		t.Errorf("%+v", st)
	}
	f.replicas(9)
	f.event(v1alpha1.EventScaled, "rule up, Deployment web, run of 2026-02-01 08:00 UTC: set replicas 9")
	f.Merge(deployments, "shop", "web", `{"spec":{"replicas":5}}`)
	f.at(19, 59)
	f.change(func(spec map[string]any) { spec["timeZone"] = "UTC" }) // the schedule is observed again
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.replicas(5)
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleSucceeded)
	f.replicas(2)
	f.patched(up9, down2)
}

// TestForbidden: without the author's permission nothing changes, and the status names the permission.
func TestForbidden(t *testing.T) {
	f := prepare(t, web, office)
	f.denied["ann"] = true
	f.run()
	const want = `User "ann" cannot get resource "deployments/scale" in API group "apps" in the namespace "shop": grant the author this permission`
	if got := f.ready(v1alpha1.ReasonScaleForbidden); !strings.Contains(got, want) {
		t.Errorf("%s", got)
	}
	f.at(8, 0)
	if st := f.rule("up", v1alpha1.ScaleFailed); !strings.Contains(st.Message, want) || st.LastScheduleTime.UTC().Hour() != 8 {
		t.Errorf("%+v", st)
	}
	f.event(v1alpha1.EventScaleFailed, want)
	f.replicas(3)
	f.set(func() { f.denied["ann"] = false })
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleSucceeded)
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.patched(down2)
	f.change(func(spec map[string]any) { spec["author"] = map[string]any{"username": "atoll:fleet"} })
	if got := f.ready(v1alpha1.ReasonScaleForbidden); !strings.Contains(got, "have a user change the spec") {
		t.Error(got)
	}
	f.change(func(spec map[string]any) { delete(spec, "author") })
	if got := f.ready(v1alpha1.ReasonScaleForbidden); !strings.Contains(got, "spec.author is not set") {
		t.Error(got)
	}
}

// TestRefused: a refusal of the API, such as by a quota, ends the run and is reported.
func TestRefused(t *testing.T) {
	f := prepare(t, web, office)
	f.onPatch = func() *metav1.Status {
		return status(403, metav1.StatusReasonForbidden, `deployments.apps "web" is forbidden: exceeded FleetQuota: team`)
	}
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.at(8, 0)
	if st := f.rule("up", v1alpha1.ScaleFailed); !strings.Contains(st.Message, "exceeded FleetQuota: team") {
		t.Errorf("%+v", st)
	}
	f.ready(v1alpha1.ReasonScaleRefused)
	f.set(func() { f.onPatch = nil })
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleSucceeded)
	f.ready(v1alpha1.ReasonScaleScheduled)
}

// TestErrorsThatMayPass: the run is retried until its deadline.
func TestErrorsThatMayPass(t *testing.T) {
	f := prepare(t, web, office)
	f.onPatch = func() *metav1.Status { return status(500, metav1.StatusReasonInternalError, "the webhook is down") }
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.at(8, 0)
	f.ready(v1alpha1.ReasonScaleRetrying)
	if st := f.rule("up", v1alpha1.ScaleRunning); !strings.Contains(st.Message, "the webhook is down") {
		t.Errorf("%+v", st)
	}
	f.set(func() { f.onPatch = nil })
	f.at(8, 30)
	f.retried("up", v1alpha1.ScaleSucceeded)
	f.patched(up9)
	f.set(func() {
		f.onPatch = func() *metav1.Status { return status(500, metav1.StatusReasonInternalError, "the webhook is down") }
	})
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleRunning)
	f.at(21, 1)
	f.retried("down", v1alpha1.ScaleMissed)
	f.event(v1alpha1.EventScaleMissed, "rule down")
	f.replicas(9)
}

// TestNextLeader: a leader that finds a run which has begun continues it, unless the target shows that
// the write happened, or that another client has written since.
func TestNextLeader(t *testing.T) {
	lost := func() *metav1.Status { return status(500, metav1.StatusReasonInternalError, "the answer is lost") }
	for name, tt := range map[string]struct {
		onPatch, afterPatch func() *metav1.Status
		user                string
		result              v1alpha1.ScaleResult
		replicas            int64
		patches             []string
	}{
		"nothing was written":           {onPatch: lost, result: v1alpha1.ScaleSucceeded, replicas: 9, patches: []string{up9}},
		"it was written":                {afterPatch: lost, result: v1alpha1.ScaleSucceeded, replicas: 9, patches: []string{up9}},
		"a user has written since":      {afterPatch: lost, user: `{"spec":{"replicas":6}}`, result: v1alpha1.ScaleSuperseded, replicas: 6, patches: []string{up9}},
		"a user has written in between": {onPatch: lost, user: `{"spec":{"replicas":0}}`, result: v1alpha1.ScaleSuperseded, replicas: 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := prepare(t, web, office)
			f.onPatch, f.afterPatch = tt.onPatch, tt.afterPatch
			stop := f.run()
			f.ready(v1alpha1.ReasonScaleScheduled)
			// The fake clock stands still, so the first leader does not retry.
			f.at(8, 0)
			f.ready(v1alpha1.ReasonScaleRetrying)
			f.rule("up", v1alpha1.ScaleRunning)
			stop()
			f.set(func() { f.onPatch, f.afterPatch = nil, nil })
			if tt.user != "" {
				f.Merge(deployments, "shop", "web", tt.user)
			}
			f.run()
			f.rule("up", tt.result)
			f.replicas(tt.replicas)
			f.patched(tt.patches...)
		})
	}
}

// TestDowntime: a leader makes up the last time within its deadline, once.
func TestDowntime(t *testing.T) {
	f := prepare(t, web, office)
	stop := f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	stop()
	f.at(8, 59)
	stop = f.run()
	f.rule("up", v1alpha1.ScaleSucceeded)
	stop()
	f.at(21, 30)
	stop = f.run()
	f.rule("down", v1alpha1.ScaleMissed)
	f.event(v1alpha1.EventScaleMissed, "rule down")
	stop()
	f.replicas(9)
	f.patched(up9)
}

// TestEditedDuringRun: the outcome is recorded although the schedule changes at the same time.
func TestEditedDuringRun(t *testing.T) {
	f := prepare(t, web, office)
	f.afterPatch = func() *metav1.Status {
		f.change(func(spec map[string]any) {
			spec["rules"].([]any)[1].(map[string]any)["suspend"] = true
		})
		f.set(func() { f.afterPatch = nil })
		return nil
	}
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.at(8, 0)
	f.rule("up", v1alpha1.ScaleSucceeded)
	f.ready(v1alpha1.ReasonScaleScheduled)
	fakeapi.Until(t, "down has no next time", func() bool {
		s := f.schedule().Status
		return s.ObservedGeneration == 2 && len(s.Rules) == 2 && s.Rules[1].NextScheduleTime == nil
	})
	f.patched(up9)
}

// TestSuspended: a suspended rule does nothing until it is resumed.
func TestSuspended(t *testing.T) {
	f := prepare(t, web, office)
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	suspend := func(is bool) {
		f.change(func(spec map[string]any) { spec["rules"].([]any)[0].(map[string]any)["suspend"] = is })
		f.ready(v1alpha1.ReasonScaleScheduled)
	}
	suspend(true)
	f.at(8, 0)
	suspend(false)
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleSucceeded)
	f.patched(down2)
	f.change(func(spec map[string]any) { spec["suspend"] = true })
	f.ready(v1alpha1.ReasonScaleSuspended)
	if s := f.schedule().Status; s.NextScheduleTime != nil {
		t.Errorf("%+v", s)
	}
	f.change(func(spec map[string]any) { spec["suspend"] = false })
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.clock.SetTime(f.clock.Now().AddDate(0, 0, 1).Add(-12 * 3600e9))
	f.rule("up", v1alpha1.ScaleSucceeded)
	f.patched(down2, up9)
}

// TestTargets: the condition follows the target and what can be scaled.
func TestTargets(t *testing.T) {
	f := prepare(t, office)
	f.run()
	if got := f.ready(v1alpha1.ReasonScaleNotFound); !strings.Contains(got, `"web" not found`) {
		t.Error(got)
	}
	f.put(web)
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.Delete(deployments, "shop", "web")
	f.ready(v1alpha1.ReasonScaleNotFound)
	f.at(8, 0)
	f.rule("up", v1alpha1.ScaleFailed)
	f.change(func(spec map[string]any) {
		spec["target"] = map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "web"}
	})
	if got := f.ready(v1alpha1.ReasonScaleNotScalable); !strings.Contains(got, "ConfigMap v1 has no subresource scale") {
		t.Error(got)
	}
	f.change(func(spec map[string]any) {
		spec["target"] = map[string]any{"apiVersion": "example.com/v1", "kind": "Shop", "name": "web"}
	})
	if got := f.ready(v1alpha1.ReasonScaleNotFound); !strings.Contains(got, "serves no Shop in example.com/v1: correct spec.target") {
		t.Error(got)
	}
	f.change(func(spec map[string]any) { spec["timeZone"] = "Mars/Base" })
	if got := f.ready(v1alpha1.ReasonScaleInvalid); !strings.Contains(got, "spec.timeZone") {
		t.Error(got)
	}
}

// TestAutoscaler: rules set the bounds of an autoscaler, and leave out those that they do not name.
func TestAutoscaler(t *testing.T) {
	const autoscaler = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop}
spec: {minReplicas: 1, maxReplicas: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`
	f := prepare(t, web)
	scaler := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(autoscaler), &scaler.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Dynamic().Resource(autoscalers).Namespace("shop").Create(t.Context(), scaler, metav1.CreateOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	f.put(`
apiVersion: fleet.atoll.dev/v1alpha1
kind: ScaleSchedule
metadata: {name: office, namespace: shop, uid: s, generation: 1, creationTimestamp: "2026-02-01T07:00:00Z"}
spec:
  author: {username: ann}
  target: {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, name: web}
  rules:
  - {name: up, schedule: 0 8 * * *, minReplicas: 5, maxReplicas: 20}
  - {name: down, schedule: 0 20 * * *, minReplicas: 0}
`)
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	bounds := func(low, high int64) {
		t.Helper()
		u := f.Get(autoscalers, "shop", "web")
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "minReplicas"); n != low {
			t.Errorf("minReplicas is %d, want %d", n, low)
		}
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "maxReplicas"); n != high {
			t.Errorf("maxReplicas is %d, want %d", n, high)
		}
	}
	bounds(1, 4)
	f.at(8, 0)
	if st := f.rule("up", v1alpha1.ScaleSucceeded); st.Message != "set minReplicas 5 and maxReplicas 20" {
		t.Errorf("%+v", st)
	}
	bounds(5, 20)
	managed := f.Get(autoscalers, "shop", "web").GetManagedFields()
	if !slices.ContainsFunc(managed, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == FieldManager && strings.Contains(string(m.FieldsV1.Raw), "f:maxReplicas")
	}) {
		t.Errorf("%+v", managed)
	}
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleSucceeded)
	bounds(0, 20)
}

// TestNoRequestWithoutAuthor: a request without an author would have all rights.
func TestNoRequestWithoutAuthor(t *testing.T) {
	f := prepare(t, web)
	authors, err := newAuthors(f.Config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authors.Resource(deployments).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "without an author") {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	for code, want := range map[int32]string{
		http.StatusForbidden: v1alpha1.ReasonScaleRefused, http.StatusUnprocessableEntity: v1alpha1.ReasonScaleRefused, http.StatusBadRequest: v1alpha1.ReasonScaleRefused,
		http.StatusUnauthorized: "", http.StatusConflict: "", http.StatusTooManyRequests: "", http.StatusRequestTimeout: "",
		http.StatusInternalServerError: "", http.StatusServiceUnavailable: "", http.StatusGatewayTimeout: "",
	} {
		s := status(code, "", "no")
		err := refusalOf(&statusError{*s})
		r := refusal{}
		if !errors.As(err, &r) && want != "" || r.reason != want {
			t.Errorf("%d: %q, want %q", code, r.reason, want)
		}
		if (unknown(err) == nil) != (want != "") {
			t.Errorf("%d: the outcome is unknown: %v", code, unknown(err))
		}
	}
	if refusalOf(nil) != nil || unknown(nil) != nil {
		t.Error("success is refused")
	}
}

type statusError struct{ status metav1.Status }

func (s *statusError) Error() string         { return s.status.Message }
func (s *statusError) Status() metav1.Status { return s.status }
