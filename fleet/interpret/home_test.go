package interpret

import "testing"

// TestMayStayHome: users are warned of objects that they may expect in members, and not of others.
func TestMayStayHome(t *testing.T) {
	for manifest, want := range map[string]bool{
		"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: a, namespace: atoll-system}":                                                     true,
		"kind: ConfigMap\nmetadata: {name: a, namespace: kube-public}":                                                                            true,
		"kind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {name: a, namespace: shop}":                                           true,
		"kind: RoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: a, namespace: shop}\nsubjects: [{kind: User, name: jane}]": true,
		"kind: ClusterRoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: a}\nsubjects: [{kind: Group, name: developers}]":    true,
		"kind: ValidatingAdmissionPolicy\napiVersion: admissionregistration.k8s.io/v1\nmetadata: {name: a}\nspec: {paramKind: {kind: Limit}}":     true,
		"kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {name: a, namespace: shop}":                                              false,
		"kind: Lease\napiVersion: coordination.k8s.io/v1\nmetadata: {name: a, namespace: kube-system}":                                            false,
		"kind: Event\nmetadata: {name: a, namespace: kube-system}":                                                                                false,
		"kind: ReplicaSet\napiVersion: apps/v1\nmetadata: {name: a, namespace: shop, labels: {fleet.atoll.dev/revision: \"1\"}}":                  false,
	} {
		obj := parse(t, manifest)
		warned := MayStayHome(obj.GroupVersionKind().GroupKind(), obj.GetNamespace()) && StaysHome(obj) != ""
		if warned != want {
			t.Errorf("warned is %v:\n%s", warned, manifest)
		}
	}
}
