package test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

const namespacePolicies = `
apiVersion: v1
kind: Namespace
metadata:
  name: vacant
  labels: {team: vacancies}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: vacant}
spec:
  selector: {kinds: [Namespace], names: [vacant]}
  clusters: {names: [east, west]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: vacant-security}
spec:
  selector: {kinds: [Namespace], names: [vacant]}
  overrides:
  - clusters: {names: [west]}
    jsonPatch: [{op: add, path: /metadata/labels/pod-security.kubernetes.io~1enforce, value: restricted}]
`

// TestNamespacesByPolicy: a ClusterPlacement places a namespace without objects, another one overrides a label of it, and
// it goes where it is empty and not placed any more.
func TestNamespacesByPolicy(t *testing.T) {
	f := whole(t)
	f.apply(t, namespacePolicies)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "clusterplacement/vacant", "clusterplacement/vacant-security", "namespace/vacant", "--ignore-not-found")
	})
	in := func(what, member, want string) {
		t.Helper()
		eventually(t, 2*settle, what, func(ctx context.Context) error {
			out, err := f.tryKubectl(ctx, member, "", "get", "namespace", "vacant", "--ignore-not-found", "-o",
				`jsonpath={.metadata.labels.team} {.metadata.labels.pod-security\.kubernetes\.io/enforce}`)
			if err != nil || strings.TrimSpace(out) != want {
				return fmt.Errorf("%s has %q (%v), want %q", member, out, err, want)
			}
			return nil
		})
	}
	in("the empty namespace is there", "east", "vacancies")
	in("it has the override", "west", "vacancies restricted")
	f.kubectl(t, "atoll", "wait", "clusterresourcebinding/namespace-vacant", "--for=condition=Healthy", "--timeout=30s")
	if out := f.kubectl(t, "atoll", "get", "namespace", "vacant", "-o", "jsonpath={.status.phase}"); out != "Active" {
		t.Errorf("the namespace of the control plane is %q", out)
	}

	// The namespace stays where it has objects of others, without the override.
	f.kubectl(t, "west", "create", "configmap", "theirs", "-n", "vacant")
	f.kubectl(t, "atoll", "patch", "clusterplacement", "vacant", "--type=merge", "-p", `{"spec":{"clusters":{"names":["north"]}}}`)
	in("it appears where it is placed now", "north", "vacancies")
	in("the empty one goes", "east", "")
	in("the other one loses the override", "west", "vacancies")
	eventually(t, settle, "the binding says why it stays", func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "clusterresourcebinding", "namespace-vacant", "-o", `jsonpath={.status.clusters[?(@.name=="west")].message}`)
		if err != nil || !strings.Contains(out, "ConfigMap theirs") {
			return fmt.Errorf("%q (%v)", out, err)
		}
		return nil
	})
	f.kubectl(t, "west", "delete", "configmap", "theirs", "-n", "vacant")
	in("it goes when it is empty", "west", "")

	f.kubectl(t, "atoll", "delete", "namespace", "vacant", "--timeout=60s")
	in("a deleted namespace goes", "north", "")
	eventually(t, settle, "its binding is gone", func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "clusterresourcebinding", "namespace-vacant", "--ignore-not-found", "-o", "name")
		if err != nil || out != "" {
			return fmt.Errorf("%q (%v)", out, err)
		}
		return nil
	})
}
