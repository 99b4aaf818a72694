package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestScaleSchedule: a run has the author's rights and quotas, whatever the request says about the author.
func TestScaleSchedule(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	for _, args := range [][]string{
		{"create", "role", "scheduler", "--verb=*", "--resource=scaleschedules.fleet.atoll.dev"},
		{"create", "rolebinding", "schedulers", "--role=scheduler", "--user=ann", "--user=bob"},
		{"create", "role", "scaler", "--verb=get,patch", "--resource=deployments.apps/scale"},
		{"create", "rolebinding", "scalers", "--role=scaler", "--user=ann"},
	} {
		s.mustKubectl(t, "", append(args, "-n", ns)...)
	}
	s.mustKubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: FleetQuota, metadata: {name: team, namespace: "+ns+"}, spec: {hard: {pods: 5}}}", "apply", "-f", "-")
	s.mustKubectl(t, "", "wait", "fleetquota/team", "-n", ns, "--for=condition=Valid", "--timeout=60s")
	deployments := s.client(t).AppsV1().Deployments(ns)
	if _, err := deployments.Create(t.Context(), limited("web", 1), metav1.CreateOptions{FieldManager: "setup"}); err != nil {
		t.Fatal(err)
	}
	passed := time.Now().UTC().Add(-time.Minute)
	apply := func(user string, replicas int) string {
		return s.mustKubectl(t, fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ScaleSchedule, metadata: {name: web, namespace: %s},
  spec: {author: {username: admin, groups: ["system:masters"]}, target: {apiVersion: apps/v1, kind: Deployment, name: web},
    rules: [{name: r%d, schedule: "%d %d * * *", replicas: %d}]}}`, ns, replicas, passed.Minute(), passed.Hour(), replicas), "apply", "--server-side", "--force-conflicts", "-f", "-", "--as", user)
	}
	wait := func(path, value string) {
		t.Helper()
		s.mustKubectl(t, "", "wait", "scaleschedule/web", "-n", ns, "--for=jsonpath={"+path+"}="+value, "--timeout=60s")
	}
	// rewind lets a rule have existed for longer, so that its time passed a minute ago.
	rewind := func() {
		t.Helper()
		s.mustKubectl(t, "", "patch", "scaleschedule", "web", "-n", ns, "--subresource=status", "--type=json",
			"-p", `[{"op":"replace","path":"/status/rules/0/activeSince","value":"`+passed.Add(-10*time.Minute).Format(time.RFC3339)+`"}]`)
	}
	scaled := func(want int32) {
		t.Helper()
		d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || *d.Spec.Replicas != want {
			t.Errorf("replicas %v, want %d, %v", *d.Spec.Replicas, want, err)
		}
	}

	apply("ann", 3)
	wait(".spec.author.username", "ann")
	wait(".status.conditions[0].reason", "Scheduled")
	rewind()
	wait(".status.rules[0].lastResult", "Succeeded")
	scaled(3)
	out, err := s.kubectl(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: "+ns+"}, spec: {replicas: 2}}", "apply", "--server-side", "-f", "-")
	if err == nil || !strings.Contains(out, `conflict with "atoll-schedules"`) || !strings.Contains(out, ".spec.replicas") {
		t.Errorf("%v %s", err, out)
	}
	if out := s.mustKubectl(t, "", "get", "scaleschedule", "web", "-n", ns); !strings.Contains(out, "Deployment") || !strings.Contains(out, "r3") || !strings.Contains(out, "True") {
		t.Error(out)
	}

	apply("ann", 9)
	wait(".status.rules[0].name", "r9")
	rewind()
	wait(".status.rules[0].lastResult", "Failed")
	wait(".status.conditions[0].reason", "Refused")
	if out := s.mustKubectl(t, "", "get", "scaleschedule", "web", "-n", ns, "-o", "jsonpath={.status.rules[0].message}"); !strings.Contains(out, "exceeded FleetQuota: team, requested: pods=6, used: pods=3, limited: pods=5") {
		t.Error(out)
	}
	scaled(3)

	s.mustKubectl(t, "", "label", "scaleschedule", "web", "-n", ns, "team=a")
	wait(".spec.author.username", "ann")
	apply("bob", 4)
	wait(".spec.author.username", "bob")
	wait(".status.conditions[0].reason", "Forbidden")
	rewind()
	wait(".status.rules[0].lastResult", "Failed")
	if out := s.mustKubectl(t, "", "get", "scaleschedule", "web", "-n", ns, "-o", "jsonpath={.status.rules[0].message}"); !strings.Contains(out, `User "bob" cannot get resource "deployments/scale" in API group "apps"`) {
		t.Error(out)
	}
	scaled(3)
}

// TestInvalidScaleSchedule: an error names the field and the remedy.
func TestInvalidScaleSchedule(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	const web, hpa = "target: {apiVersion: apps/v1, kind: Deployment, name: web}", "target: {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, name: web}"
	for spec, want := range map[string]string{
		web + `, rules: [{name: a, schedule: "0 8 * *", replicas: 1}]`:                               "spec.rules[0].schedule: Invalid value: \"0 8 * *\": not a cron schedule",
		web + `, rules: [{name: a, schedule: "0 8 30 2 *", replicas: 1}]`:                            "there is no such day",
		web + `, timeZone: Mars/Base, rules: [{name: a, schedule: "0 8 * * *", replicas: 1}]`:        "spec.timeZone: Invalid value: \"Mars/Base\": unknown time zone",
		web + `, rules: [{name: a, schedule: "0 8 * * *", timeZone: Mars/Base, replicas: 1}]`:        "spec.rules[0].timeZone",
		web + `, rules: [{name: a, schedule: "0 8 * * *"}]`:                                          "set replicas for a workload, or minReplicas or maxReplicas",
		hpa + `, rules: [{name: a, schedule: "0 8 * * *", replicas: 1, minReplicas: 1}]`:             "replicas excludes minReplicas and maxReplicas",
		hpa + `, rules: [{name: a, schedule: "0 8 * * *", minReplicas: 3, maxReplicas: 2}]`:          "lower minReplicas, or raise maxReplicas",
		hpa + `, rules: [{name: a, schedule: "0 8 * * *", replicas: 3}]`:                             "set minReplicas and maxReplicas instead of replicas",
		web + `, rules: [{name: a, schedule: "0 8 * * *", maxReplicas: 3}]`:                          "set replicas instead, or name the autoscaler in target",
		web + `, rules: [{name: a, schedule: "0 8 * * *", replicas: -3}]`:                            "spec.rules[0].replicas",
		web + `, rules: [{name: a, schedule: "0 8 * * *", replicas: 3, startingDeadlineSeconds: 1}]`: "spec.rules[0].startingDeadlineSeconds",
		web + `, rules: []`: "spec.rules",
		web + `, rules: [{name: a, schedule: "@daily", replicas: 3}, {name: a, schedule: "@daily", replicas: 3}]`:                             "Duplicate value",
		`target: {apiVersion: fleet.atoll.dev/v1alpha1, kind: ScaleSchedule, name: web}, rules: [{name: a, schedule: "@daily", replicas: 3}]`: "a ScaleSchedule cannot scale a ScaleSchedule",
		`target: {apiVersion: "apps/v1/x", kind: Deployment, name: web}, rules: [{name: a, schedule: "@daily", replicas: 3}]`:                 "an API version is GROUP/VERSION",
		`target: {apiVersion: apps/v1, kind: Deployment, name: ../web}, rules: [{name: a, schedule: "@daily", replicas: 3}]`:                  "write the name of the object alone",
	} {
		out, err := s.kubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: ScaleSchedule, metadata: {name: bad, namespace: "+ns+"}, spec: {"+spec+"}}", "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s", spec, err, out)
		}
	}
	for _, good := range []string{web + `, rules: [{name: a, schedule: "@daily", replicas: 0}]`, hpa + `, timeZone: Europe/Berlin, rules: [{name: a, schedule: "0 8 * * mon-fri", maxReplicas: 3}]`} {
		s.mustKubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: ScaleSchedule, metadata: {name: good, namespace: "+ns+"}, spec: {"+good+"}}", "create", "--dry-run=server", "-f", "-")
	}
}
