package test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What TestOrdinaryApps calls the same, and what not.
func TestTheRefereeOfApps(t *testing.T) {
	deployment := func(ready string) string {
		return "{kind: Deployment, status: {replicas: " + ready + ", readyReplicas: " + ready + "}}"
	}
	for _, tc := range []struct {
		name, direct, own string
		copies            map[string]string
		want              string // part of the complaint; empty for none
	}{
		{"shares add up", deployment("3"), deployment("3"), map[string]string{"east": deployment("2"), "west": deployment("1")}, ""},
		{"too few", deployment("3"), deployment("2"), map[string]string{"east": deployment("2")}, "in all members it is map[readyReplicas:2 replicas:2]"},
		{"whole in each", deployment("3"), deployment("6"), map[string]string{"east": deployment("3"), "west": deployment("3")}, "in all members"},
		{"a summary that is wrong", deployment("3"), deployment("2"), map[string]string{"east": deployment("3")}, "summarised as"},
		{"nodes of each member", "{kind: DaemonSet, status: {numberReady: 3}}", "{kind: DaemonSet, status: {numberReady: 6}}",
			map[string]string{"east": "{kind: DaemonSet, status: {numberReady: 3}}", "west": "{kind: DaemonSet, status: {numberReady: 3}}"}, ""},
		{"work that is done twice", "{kind: CronJob}", "{kind: CronJob}", map[string]string{"east": "{kind: CronJob}", "west": "{kind: CronJob}"}, "runs in 2 members: east, west"},
		{"a phase", "{kind: PersistentVolumeClaim, status: {phase: Bound}}", "{kind: PersistentVolumeClaim, status: {phase: Bound}}",
			map[string]string{"east": "{kind: PersistentVolumeClaim, status: {phase: Pending}}"}, `in east it is "Pending"`},
		{"a condition", "{kind: Backup, status: {conditions: [{type: Done, status: 'True'}]}}", "{kind: Backup}",
			map[string]string{"east": "{kind: Backup, status: {conditions: [{type: Done, status: 'True'}]}}"}, `in Atoll it is summarised as ""`},
	} {
		copies := map[string]*unstructured.Unstructured{}
		for m, text := range tc.copies {
			copies[m] = parseOne(t, text)
		}
		got := compareStates(parseOne(t, tc.direct), parseOne(t, tc.own), copies)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	for _, tc := range []struct{ name, direct, copied, want string }{
		{"what a cluster allocates", "{kind: Service, spec: {clusterIP: 10.0.0.1, ports: [{port: 80, nodePort: 30001}]}}",
			"{kind: Service, spec: {clusterIP: 10.9.0.1, ports: [{port: 80, nodePort: 30002}]}}", ""},
		{"a headless Service", "{kind: Service, spec: {clusterIP: None}}", "{kind: Service, spec: {clusterIP: 10.9.0.1}}", "spec.clusterIP"},
		{"a field that is missing", "{kind: Pod, spec: {hostNetwork: true}}", "{kind: Pod, spec: {}}", "spec.hostNetwork is <nil>, directly true"},
		{"a field that is new", "{kind: ConfigMap}", "{kind: ConfigMap, data: {a: b}}", "data is map[a:b]"},
		{"an element", "{kind: X, spec: {list: [a, b]}}", "{kind: X, spec: {list: [a, c]}}", "spec.list[1] is c, directly b"},
		{"the fleet's marks", "{kind: X, metadata: {labels: {a: b}}}", "{kind: X, metadata: {labels: {a: b, fleet.atoll.dev/managed: 'true'}}}", ""},
		{"a label that is lost", "{kind: X, metadata: {labels: {a: b}}}", "{kind: X}", "metadata.labels.a"},
	} {
		if got := differs(parseOne(t, tc.direct), parseOne(t, tc.copied)); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func parseOne(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	objects, err := parseManifest(text)
	if err != nil || len(objects) != 1 {
		t.Fatalf("%s: %d objects, %v", text, len(objects), err)
	}
	return objects[0]
}
