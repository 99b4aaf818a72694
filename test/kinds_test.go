package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// operatorManifest is what an operator comes with: its type, its account, what that
// may do, and itself.
const operatorManifest = `
apiVersion: v1
kind: Namespace
metadata:
  name: gadgetry
  labels: {pod-security.kubernetes.io/enforce: baseline, team: gadgets}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.kinds.example.com}
spec:
  group: kinds.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, minimum: 1}}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: gadgetry}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gadget-operator}
rules:
- {apiGroups: [kinds.example.com], resources: [gadgets, gadgets/status], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: gadget-operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gadget-operator}
subjects: [{kind: ServiceAccount, name: operator, namespace: gadgetry}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator, namespace: gadgetry}
spec:
  replicas: 3
  selector: {matchLabels: {app: operator}}
  template:
    metadata: {labels: {app: operator}}
    spec: {serviceAccountName: operator, containers: [{name: operator, image: operator}]}
`

// TestAnOperatorAndItsType: whatever an operator needs goes where it goes, its type
// included; once the members serve that, its objects follow, and their status comes
// back.
func TestAnOperatorAndItsType(t *testing.T) {
	f := whole(t)
	f.apply(t, operatorManifest)
	t.Cleanup(func() {
		for _, args := range [][]string{
			{"delete", "gadgets", "--all", "-n", "gadgetry", "--ignore-not-found"},
			{"delete", "clusterrole/gadget-operator", "clusterrolebinding/gadget-operator", "--ignore-not-found"},
			{"delete", "crd/gadgets.kinds.example.com", "--ignore-not-found"},
			{"delete", "namespace", "gadgetry", "--ignore-not-found"},
		} {
			_, _ = f.tryKubectl(context.Background(), "atoll", "", args...)
		}
	})
	inMembers := func(what string, want string, args ...string) {
		t.Helper()
		eventually(t, 2*settle, what, func(ctx context.Context) error {
			for _, m := range members {
				out, err := f.tryKubectl(ctx, m, "", args...)
				if err != nil || out != want {
					return fmt.Errorf("%s has %q (%v), want %q", m, out, err, want)
				}
			}
			return nil
		})
	}
	gone := func(what string, args ...string) {
		t.Helper()
		inMembers(what, "", append([]string{"get", "--ignore-not-found", "-o", "name"}, args...)...)
	}
	inMembers("the type is there", "True", "get", "crd", "gadgets.kinds.example.com", "-o", `jsonpath={.status.conditions[?(@.type=="Established")].status}`)
	inMembers("the account has the same rights as here", "yes", "auth", "can-i", "update", "gadgets.kinds.example.com", "--as", "system:serviceaccount:gadgetry:operator", "-n", "gadgetry")
	inMembers("the namespace is labelled as here", "baseline gadgets", "get", "namespace", "gadgetry", "-o",
		`jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce} {.metadata.labels.team}`)
	f.kubectl(t, "atoll", "rollout", "status", "deployment/operator", "-n", "gadgetry", "--timeout=60s")
	if out := f.kubectl(t, "atoll", "get", "clusterresourcebindings", "--no-headers"); !strings.Contains(out, "customresourcedefinition.apiextensions.k8s.io-gadgets") {
		t.Errorf("clusterresourcebindings: %s", out)
	}

	f.apply(t, "apiVersion: kinds.example.com/v1\nkind: Gadget\nmetadata: {name: one, namespace: gadgetry}\nspec: {size: 3}")
	inMembers("the object is there", "3", "get", "gadget", "one", "-n", "gadgetry", "-o", "jsonpath={.spec.size}")
	for _, m := range members {
		f.kubectl(t, m, "patch", "gadget", "one", "-n", "gadgetry", "--subresource=status", "--type=merge",
			"-p", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Made","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	}
	eventually(t, settle, "its status comes back", func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "gadget", "one", "-n", "gadgetry", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err != nil || out != "True" {
			return fmt.Errorf("Ready is %q (%v)", out, err)
		}
		return nil
	})

	f.kubectl(t, "atoll", "label", "namespace", "gadgetry", "team=others", "--overwrite")
	inMembers("a label changes there too", "others", "get", "namespace", "gadgetry", "-o", "jsonpath={.metadata.labels.team}")
	f.kubectl(t, "atoll", "label", "namespace", "gadgetry", "team-")
	inMembers("and goes there too", "", "get", "namespace", "gadgetry", "-o", "jsonpath={.metadata.labels.team}")

	f.kubectl(t, "atoll", "patch", "gadget", "one", "-n", "gadgetry", "--type=merge", "-p", `{"spec":{"size":4}}`)
	inMembers("a change of the object arrives", "4", "get", "gadget", "one", "-n", "gadgetry", "-o", "jsonpath={.spec.size}")

	// Objects that are no longer needed are removed, unless they are configuration of a namespace with
	// workloads; a type holds data and stays until it is deleted.
	f.kubectl(t, "atoll", "label", "namespace", "gadgetry", v1alpha1.ConfigurationLabel+"="+string(v1alpha1.WhereNeeded))
	f.kubectl(t, "atoll", "delete", "deployment", "operator", "-n", "gadgetry")
	gone("what only the operator needed goes", "clusterrole,clusterrolebinding", "-l", "fleet.atoll.dev/managed=true")
	inMembers("its objects stay", "4", "get", "gadget", "one", "-n", "gadgetry", "-o", "jsonpath={.spec.size}")
	f.kubectl(t, "atoll", "delete", "gadget", "one", "-n", "gadgetry")
	gone("a deleted object goes", "gadget", "one", "-n", "gadgetry")
	f.kubectl(t, "atoll", "delete", "crd", "gadgets.kinds.example.com")
	gone("a deleted type goes", "crd", "gadgets.kinds.example.com")
	f.kubectl(t, "atoll", "delete", "namespace", "gadgetry")
	gone("and the namespace", "namespace", "gadgetry")
}
