package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// statusError returns an API server's error with the given message.
func statusError(code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) error {
	status := metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}
	if len(causes) > 0 {
		status.Details = &metav1.StatusDetails{Causes: causes}
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// TestExplain covers the errors of a member: each explanation contains the member's message and
// the remedy for this error, and no other remedy.
func TestExplain(t *testing.T) {
	configMap, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
	tests := []struct {
		name string
		err  error
		says []string
		not  string
	}{
		{"missing permission to write", statusError(403, metav1.StatusReasonForbidden, `jobs.batch "j" is forbidden: User "atoll" cannot patch resource "jobs" in API group "batch" in the namespace "shop"`),
			[]string{`cannot patch resource "jobs"`, "grant that"}, ""},
		{"quota", statusError(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1`),
			[]string{"exceeded quota: small", "raise the ResourceQuota"}, "grant"},
		{"quota that requires requests", statusError(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: failed quota: small: must specify cpu for: c`),
			[]string{"must specify cpu", "ResourceQuota"}, "grant"},
		{"terminating namespace", statusError(403, metav1.StatusReasonForbidden, `unable to create new content in namespace shop because it is being terminated`,
			metav1.StatusCause{Type: corev1.NamespaceTerminatingCause, Message: "namespace shop is being terminated"}),
			[]string{"being terminated", "recreated once the namespace is gone", "kubectl describe namespace"}, "grant"},
		{"pod security", statusError(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged`),
			[]string{"PodSecurity", "change the object, or the rule"}, "grant"},
		{"webhook that denies", statusError(403, metav1.StatusReasonForbidden, `admission webhook "no.example.org" denied the request: no`),
			[]string{"no.example.org", "change the object, or the rule"}, "grant"},
		{"webhook that denies without a code", statusError(400, "", `admission webhook "no.example.org" denied the request: no`), []string{"no.example.org", "the rule in the cluster"}, ""},
		{"unavailable webhook", statusError(500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "slow.example.org": failed to call webhook: Post "https://slow": context deadline exceeded`),
			[]string{"slow.example.org", "repair the webhook"}, "see its log"},
		{"webhook that exceeds the timeout", fmt.Errorf("apply: %w", context.DeadlineExceeded), []string{"did not respond within", "validatingwebhookconfigurations"}, ""},
		{"etcd's quota", statusError(500, "", "etcdserver: mvcc: database space exceeded"), []string{"database space exceeded", "compact and defragment"}, "see its log"},
		{"a full disk", statusError(500, metav1.StatusReasonInternalError, "Internal error occurred: write /var/lib/etcd: no space left on device"), []string{"no space left", "free space"}, "see its log"},
		{"insufficient storage", apierrors.NewGenericServerResponse(http.StatusInsufficientStorage, "post", schema.GroupResource{Resource: "configmaps"}, "c", "full", 0, true),
			[]string{"free space"}, "see its log"},
		{"a failing API server", statusError(500, metav1.StatusReasonInternalError, "Internal error occurred: panic"), []string{"panic", "see its log"}, ""},
		{"an overloaded API server", statusError(429, metav1.StatusReasonTooManyRequests, "too many requests"), []string{"overloaded"}, ""},
		{"an object that is too large", statusError(413, metav1.StatusReasonRequestEntityTooLarge, "limit is 3145728"), []string{"make the object smaller"}, ""},
		{"an invalid object", statusError(422, metav1.StatusReasonInvalid, "spec.x: field is immutable"), []string{"immutable", "delete and recreate it"}, ""},
		{"credentials", statusError(401, metav1.StatusReasonUnauthorized, "Unauthorized"), []string{"atoll join"}, ""},
		{"no such type", unservedError{configMap}, []string{"install the type there", "place the object elsewhere"}, ""},
		{"no network", errors.New("dial tcp 192.0.2.1:6443: connection refused"), []string{"does not respond", "conditions of the Cluster"}, "192.0.2.1"},
	}
	for _, tt := range tests {
		got := explain(tt.err)
		for _, words := range tt.says {
			if !strings.Contains(got, words) {
				t.Errorf("%s: %q does not contain %q", tt.name, got, words)
			}
		}
		if tt.not != "" && strings.Contains(got, tt.not) {
			t.Errorf("%s: %q contains the remedy for another error", tt.name, got)
		}
	}
}

func TestOwnersOf(t *testing.T) {
	entry := func(manager, owned string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: &metav1.FieldsV1{Raw: []byte(owned)}}
	}
	owners := []metav1.ManagedFieldsEntry{
		entry(FieldManager, `{"f:spec":{"f:replicas":{}}}`),
		entry("scaler", `{"f:spec":{"f:replicas":{}}}`),
		entry("injector", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:image":{}}}}}}}`),
		entry("labeller", `{"f:metadata":{"f:labels":{"f:example.org/tier":{}}}}`),
		entry("kubelet", `{"f:status":{"f:replicas":{}}}`),
	}
	for fields, want := range map[string]string{
		"spec.replicas":                                            "scaler",
		"spec.template.spec.containers[0].image":                   "injector",
		"metadata.labels[example.org/tier], spec.replicas":         "scaler, labeller",
		"spec.paused":                                              "",
		"spec.template.spec.containers, metadata.annotations[x/y]": "injector",
	} {
		if got := ownersOf(fields, owners); got != want {
			t.Errorf("%s: %q, want %q", fields, got, want)
		}
	}
}
