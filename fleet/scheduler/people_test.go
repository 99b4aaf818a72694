package scheduler

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestPermissionsOfPeople: an administrator places people's permissions with a ClusterPlacement. A Placement, which
// people of the namespace may write, does not suffice.
func TestPermissionsOfPeople(t *testing.T) {
	const people = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: developer, namespace: shop, uid: role}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: developers, namespace: shop, uid: binding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: developer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: developers}]
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: mine, namespace: elsewhere, uid: mine}
spec: {selector: {kinds: [RoleBinding]}, clusters: {names: [west]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: others, namespace: elsewhere, uid: others}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: developer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}]
`
	c := begin(t, clusters+app+people)
	const developers = "rolebinding.rbac.authorization.k8s.io-developers"
	fakeapi.Until(t, "the workload is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-web") != "" })
	create(t, c, `apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: people, uid: people}
spec: {selector: {kinds: [RoleBinding]}, clusters: {names: [west]}}
`)
	fakeapi.Until(t, "the binding is placed with its role", func() bool {
		return clustersOf(t, c, "shop", developers) == "west" && strings.Contains(clustersOf(t, c, "shop", "role.rbac.authorization.k8s.io-developer"), "west")
	})
	if in := clustersOf(t, c, "elsewhere", "rolebinding.rbac.authorization.k8s.io-others"); in != "" {
		t.Errorf("a Placement has placed permissions of people in %s", in)
	}
	c.Delete(v1alpha1.ClusterPlacementResource, "", "people")
	fakeapi.Until(t, "it leaves", func() bool { return clustersOf(t, c, "shop", developers) == "" })
}
