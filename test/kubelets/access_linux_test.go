package kubelets_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/test/programs"
)

// TestPodsAreGuarded: users see the pods, logs and shells that RBAC of Atoll grants them, and no others. A pod that a cluster made by
// itself, in the same namespace, does not exist in Atoll, and survives when the namespace is deleted there.
func TestPodsAreGuarded(t *testing.T) {
	s := whole(t)
	const granted, other = "guarded", "guarded-other"
	s.namespace(t, granted)
	pods := s.shells(t, "atoll", granted)
	s.namespace(t, other)
	if _, err := s.kubectl(t.Context(), "east", "", "run", "foreign", "--image="+node.Image, "-n", granted); err != nil {
		t.Fatal(err)
	}
	programs.Eventually(t, settle, "the foreign pod runs", func(ctx context.Context) error {
		out, err := s.kubectl(ctx, "east", "", "get", "pod", "foreign", "-n", granted, "-o", "jsonpath={.status.phase} {.status.conditions[*].message} {.status.containerStatuses[*].state}")
		if err == nil && !strings.HasPrefix(out, "Running") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	t.Cleanup(func() { // before the namespace is deleted in Atoll, which the cluster's own pod holds in the cluster
		uid := s.foreign(t, granted)
		t.Cleanup(func() {
			if after := s.foreign(t, granted); after != uid {
				t.Errorf("the foreign pod was %s and is %s", uid, after)
			}
			if _, err := s.kubectl(context.Background(), "east", "", "delete", "namespace", granted, "--timeout=60s"); err != nil {
				t.Error(err)
			}
		})
	})
	s.must(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: debug}
rules:
- {apiGroups: [""], resources: [pods, pods/log], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: look}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: debug}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: debug}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: debugger}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: look}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: look}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]
`, "apply", "-n", granted, "-f", "-")
	pod := pods["east"]
	programs.Eventually(t, settle, "the grants are effective", func(ctx context.Context) error {
		for _, user := range []string{"debugger", "viewer"} {
			if _, err := s.kubectl(ctx, "atoll", "", "get", "pod", pod, "-n", granted, "--as="+user); err != nil {
				return err
			}
		}
		return nil
	})
	for _, attempt := range []struct {
		want string // of the output, or of the error
		args []string
	}{
		{"hello", []string{"exec", pod, "-c", "shell", "-n", granted, "--as=debugger", "--", "echo", "hello"}},
		{"ready", []string{"logs", pod, "-c", "shell", "-n", granted, "--as=debugger"}},
		{"cannot create resource \"pods/exec\"", []string{"exec", pod, "-c", "shell", "-n", granted, "--as=viewer", "--", "echo", "hello"}},
		{"cannot get resource \"pods/log\"", []string{"logs", pod, "-c", "shell", "-n", granted, "--as=viewer"}},
		{"cannot create resource \"pods/portforward\"", []string{"port-forward", pod, ":80", "-n", granted, "--as=debugger"}},
		{"cannot create resource \"pods/attach\"", []string{"attach", pod, "-c", "shell", "-n", granted, "--as=debugger"}},
		{"cannot list resource \"pods\"", []string{"get", "pods", "-n", other, "--as=debugger"}},
		{"cannot list resource \"pods\"", []string{"get", "pods", "-A", "--as=debugger"}},
		{"cannot get resource \"pods\"", []string{"get", "pod", pod, "-n", granted, "--as=stranger"}},
		// For the administrator, too.
		{`pods "foreign" not found`, []string{"get", "pod", "foreign", "-n", granted}},
		{`pods "foreign" not found`, []string{"logs", "foreign", "-n", granted}},
		{`pods "foreign" not found`, []string{"exec", "foreign", "-n", granted, "--", "echo", "hello"}},
		{`pods "foreign" not found`, []string{"delete", "pod", "foreign", "-n", granted}},
	} {
		out, err := s.kubectl(t.Context(), "atoll", "", attempt.args...)
		if err != nil {
			out = err.Error()
		}
		if !strings.Contains(out, attempt.want) {
			t.Errorf("kubectl %s: %s\nwant %s", strings.Join(attempt.args, " "), out, attempt.want)
		}
	}
	if out := s.must(t, "", "get", "pods", "-n", granted, "-o", "name"); strings.Contains(out, "foreign") || strings.Count(out, "pod/") != len(members) {
		t.Errorf("the pods of the namespace: %s", out)
	}
}

// foreign returns the UID of the foreign pod, if it runs.
func (s *stage) foreign(t *testing.T, namespace string) string {
	t.Helper()
	out, err := s.kubectl(context.Background(), "east", "", "get", "pod", "foreign", "-n", namespace, "-o", "jsonpath={.metadata.uid} {.status.phase} {.metadata.deletionTimestamp}")
	if err != nil || !strings.HasSuffix(out, " Running") {
		t.Errorf("the foreign pod: %q %v", out, err)
	}
	return out
}
