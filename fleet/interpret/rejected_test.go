package interpret

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRejectedPods: the latest event about the creation of pods decides, and the message is the API server's.
func TestRejectedPods(t *testing.T) {
	const forbidden = `pods "web-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0`
	type event struct{ reason, message string }
	for name, tt := range map[string]struct {
		events []event
		want   string
	}{
		"none":          {nil, ""},
		"a StatefulSet": {[]event{{"FailedCreate", "create Pod web-0 in StatefulSet web failed error: " + forbidden}}, forbidden},
		"a claim of it": {[]event{{"FailedCreate", `create Claim data-web-0 for Pod web-0 in StatefulSet web failed error: persistentvolumeclaims "data-web-0" is forbidden: no`}},
			`persistentvolumeclaims "data-web-0" is forbidden: no`},
		"a Job":                  {[]event{{"FailedCreate", "Error creating: " + forbidden}}, forbidden},
		"many events in one":     {[]event{{"FailedCreate", "(combined from similar events): Error creating: " + forbidden}}, forbidden},
		"created since":          {[]event{{"FailedCreate", "Error creating: " + forbidden}, {"SuccessfulCreate", "Created pod: web-abcde"}}, ""},
		"rejected since":         {[]event{{"SuccessfulCreate", "Created pod: web-abcde"}, {"FailedCreate", "Error creating: " + forbidden}}, forbidden},
		"events of other causes": {[]event{{"FailedCreate", "Error creating: " + forbidden}, {"Completed", "Job completed"}}, forbidden},
		"another text":           {[]event{{"FailedCreate", "the webhook says no"}}, "the webhook says no"},
	} {
		for _, reversed := range []bool{false, true} {
			var events []corev1.Event
			for i, e := range tt.events {
				// 9 and 10: versions are numbers.
				one := corev1.Event{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(9 + i)}, Reason: e.reason, Message: e.message}
				if reversed {
					events = append([]corev1.Event{one}, events...)
				} else {
					events = append(events, one)
				}
			}
			if got := RejectedPods(events); got != tt.want {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
}

// TestLacksPods: an object lacks pods while its controller is to create more.
func TestLacksPods(t *testing.T) {
	for _, tt := range []struct {
		group, kind, manifest string
		lacks                 bool
	}{
		{"apps", "StatefulSet", "{spec: {replicas: 3}, status: {replicas: 2}}", true},
		{"apps", "StatefulSet", "{spec: {replicas: 3}, status: {replicas: 3, readyReplicas: 1}}", false},
		{"apps", "StatefulSet", "{status: {replicas: 0}}", true},
		{"apps", "StatefulSet", "{spec: {replicas: wrong}}", false},
		{"apps", "DaemonSet", "{status: {desiredNumberScheduled: 3, currentNumberScheduled: 2}}", true},
		{"apps", "DaemonSet", "{status: {desiredNumberScheduled: 3, currentNumberScheduled: 3, numberAvailable: 1}}", false},
		{"batch", "Job", "{spec: {parallelism: 2, completions: 5}, status: {active: 1, succeeded: 1}}", true},
		{"batch", "Job", "{spec: {parallelism: 2, completions: 5}, status: {active: 1, succeeded: 4}}", false},
		{"batch", "Job", "{spec: {}, status: {}}", true},
		{"batch", "Job", "{spec: {parallelism: 2}, status: {active: 1, succeeded: 1}}", false},
		{"batch", "Job", "{spec: {suspend: true}, status: {}}", false},
		{"batch", "Job", `{spec: {completions: 1}, status: {conditions: [{type: Failed, status: "True"}]}}`, false},
		{"apps", "Deployment", "{spec: {replicas: 3}, status: {replicas: 0}}", false}, // it has a condition
	} {
		k, _ := Find(schema.GroupKind{Group: tt.group, Kind: tt.kind})
		if got := k.LacksPods(parse(t, tt.manifest)); got != tt.lacks {
			t.Errorf("%s %s: %v", tt.kind, tt.manifest, got)
		}
	}
}
