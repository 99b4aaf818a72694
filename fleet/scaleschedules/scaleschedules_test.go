package scaleschedules

import (
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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

// TestTwoLeaders: a leader whose run another one has recorded meanwhile does not write the target.
func TestTwoLeaders(t *testing.T) {
	f := prepare(t, web, office)
	other := sync.OnceFunc(func() {
		f.Change(v1alpha1.ScaleScheduleResource, "shop", "office", func(u *unstructured.Unstructured) {
			up := u.Object["status"].(map[string]any)["rules"].([]any)[0].(map[string]any)
			up["lastScheduleTime"], up["lastResult"], up["message"] = "2026-02-01T08:00:00Z", "Succeeded", "by the other leader"
		})
	})
	f.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if _, begins, _ := unstructured.NestedMap(r.Object, "status", "run"); r.Subresource == "status" && begins {
			other()
		}
		return nil
	})
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.at(8, 0)
	if st := f.rule("up", v1alpha1.ScaleSucceeded); st.Message != "by the other leader" {
		t.Errorf("%+v", st)
	}
	f.at(20, 0)
	f.retried("down", v1alpha1.ScaleSucceeded)
	f.patched(down2)
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
