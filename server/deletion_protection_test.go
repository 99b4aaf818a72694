package server_test

import (
	"strings"
	"testing"
)

// protectedType is a type with one object, which is protected.
const protectedType = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: vaults.protection.example.com}
spec:
  group: protection.example.com
  scope: Namespaced
  names: {plural: vaults, kind: Vault}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// TestDeletionProtected: a protected object, its namespace and its type cannot be deleted, in any way, until the
// label is removed.
func TestDeletionProtected(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	refused := func(want string, args ...string) {
		t.Helper()
		if out, err := s.kubectl(t, "", args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	label := "fleet.atoll.dev/deletion-protected"
	s.mustKubectl(t, "", "create", "configmap", "plain", "-n", ns)
	s.mustKubectl(t, "", "create", "deployment", "web", "--image=busybox", "-n", ns)
	s.mustKubectl(t, "", "label", "deployment/web", label+"=true", "-n", ns)
	protected := "it is protected from deletion: to delete it, remove the label " + label + " first"
	refused(protected, "delete", "deployment/web", "-n", ns)
	refused(protected, "delete", "deployment/web", "-n", ns, "--dry-run=server")
	refused(protected, "delete", "deployment/web", "-n", ns, "--force", "--grace-period=0")
	refused(protected, "delete", "deployments", "--all", "-n", ns)
	refused("deployments.apps "+ns+"/web is protected from deletion and would be deleted with it", "delete", "namespace", ns)
	s.mustKubectl(t, "", "delete", "configmap/plain", "-n", ns)

	s.mustKubectl(t, protectedType, "apply", "-f", "-")
	s.mustKubectl(t, "", "wait", "crd/vaults.protection.example.com", "--for=condition=Established", "--timeout=60s")
	s.mustKubectl(t, "{apiVersion: protection.example.com/v1, kind: Vault, metadata: {name: v, namespace: "+ns+", labels: {"+label+": 'true'}}}", "apply", "-f", "-")
	refused(protected, "delete", "vaults.protection.example.com/v", "-n", ns)
	refused("vaults.protection.example.com "+ns+"/v is protected", "delete", "crd/vaults.protection.example.com")

	other := s.namespace(t)
	s.mustKubectl(t, "", "label", "namespace", other, label+"=true")
	refused(protected, "delete", "namespace", other)
	s.mustKubectl(t, "", "label", "namespace", other, label+"-")
	s.mustKubectl(t, "", "delete", "namespace", other)

	if out := s.mustKubectl(t, "", "label", "deployment/web", label+"=yes", "--overwrite", "-n", ns); !strings.Contains(out, `"yes" has no effect: use true or false`) {
		t.Errorf("no warning: %s", out)
	}
	s.mustKubectl(t, "", "delete", "deployment/web", "-n", ns)
	s.mustKubectl(t, "", "label", "vaults.protection.example.com/v", label+"-", "-n", ns)
	s.mustKubectl(t, "", "delete", "crd/vaults.protection.example.com")
	s.mustKubectl(t, "", "delete", "namespace", ns)
}
