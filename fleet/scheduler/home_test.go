package scheduler

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const keptHere = `"managedFields":[{"manager":"widget-controller","operation":"Update","apiVersion":"example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:phase":{}}},"subresource":"status"}]`

// TestCustomResourcesAreAtHome: where the objects of a type that a cluster serves are.
func TestCustomResourcesAreAtHome(t *testing.T) {
	const placed, home = "\nwidget.example.com-one: east\n", "\n"
	kept := strings.Replace(custom, "uid: w1}", "uid: w1, "+strings.NewReplacer(`":`, `": `).Replace(keptHere)+"}", 1)
	two := "---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: two, namespace: shop, uid: w2}\n"
	for name, tt := range map[string]struct{ manifests, want string }{
		"no one keeps its status here":      {custom, placed},
		"a controller keeps its status":     {kept, home},
		"that of a sibling":                 {kept + two, home},
		"a label of the object":             {strings.Replace(kept, "uid: w1,", "uid: w1, labels: {fleet.atoll.dev/home: Members},", 1), placed},
		"a label of the type":               {strings.Replace(custom, "uid: crd", "uid: crd, labels: {fleet.atoll.dev/home: Above}", 1), home},
		"the object's label before that":    {strings.NewReplacer("uid: crd", "uid: crd, labels: {fleet.atoll.dev/home: Above}", "uid: w1", "uid: w1, labels: {fleet.atoll.dev/home: Members}").Replace(custom), placed},
		"a label that says where it has to": {strings.Replace(kept, "uid: w1,", "uid: w1, labels: {fleet.atoll.dev/cluster: east},", 1), placed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The Deployment is decided about last.
			c := begin(t, clusters+tt.manifests+strings.Replace(app, "name: web, namespace: shop, uid: d", "name: web, namespace: late, uid: d", 1))
			fakeapi.Until(t, "the others are placed", func() bool { return clustersOf(t, c, "late", "deployment.apps-web") != "" })
			fakeapi.Eventually(t, "it is decided", func() error {
				got := "\n"
				if in := clustersOf(t, c, "shop", "widget.example.com-one"); in != "" {
					got = "\nwidget.example.com-one: " + in + "\n"
				}
				if got != tt.want || c.Get(v1alpha1.ResourceBindingResource, "shop", "widget.example.com-two") != nil {
					return errorf(got)
				}
				return nil
			})
		})
	}
}

type errorf string

func (e errorf) Error() string { return string(e) }

// TestStatusIsKeptHereLater: a controller that comes later takes an object home on which no cluster has
// worked. If one has, the object stays there, because its data may be there.
func TestStatusIsKeptHereLater(t *testing.T) {
	for name, worked := range map[string]bool{"nothing has worked on it": false, "a cluster has": true} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, clusters+custom)
			decided(t, c, "\nwidget.example.com-one: east\n")
			report(t, c)
			if worked {
				c.Merge(v1alpha1.ResourceBindingResource, "shop", "widget.example.com-one", `{"status":{"clusters":[{"name":"east","uid":"m","status":{"phase":"Ready"}}]}}`)
			}
			caughtUp(t, c)
			c.Merge(widgets, "shop", "one", `{"metadata":{`+keptHere+`}}`)
			if !worked {
				fakeapi.Until(t, "it goes", func() bool {
					u := c.Get(v1alpha1.ResourceBindingResource, "shop", "widget.example.com-one")
					return u == nil || u.GetDeletionTimestamp() != nil
				})
				return
			}
			c.Merge(widgets, "shop", "one", `{"metadata":{"annotations":{"a":"b"}}}`)
			caughtUp(t, c)
			decided(t, c, "\nwidget.example.com-one: east\n")
		})
	}
}

// TestElectedOperatorsAreWhole: replicas that elect a leader run in one cluster, unless a policy divides them
// or they are divided already.
func TestElectedOperatorsAreWhole(t *testing.T) {
	elects := strings.Replace(deployment("a", 4, ""), "image: i}", "image: i, args: [--leader-elect]}", 1)
	policy := "\n---\napiVersion: fleet.atoll.dev/v1alpha1\nkind: Placement\nmetadata: {name: a, namespace: NS, uid: p}\nspec: {selector: {names: [a]}, mode: Divided}"
	bound := inEastAndWest[:strings.LastIndex(inEastAndWest, "\n---\n")]
	several := strings.Replace(policy, "mode: Divided", "clusterCount: {min: 2}", 1)
	operator := strings.Replace(deployment("a", 4, ""), "containers:", "serviceAccountName: operator, containers:", 1)
	const rights = `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: NS, uid: sa}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: operator, uid: cr}
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator, uid: crb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: operator}
subjects: [{kind: ServiceAccount, name: operator, namespace: NS}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: election, namespace: NS, uid: r}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: election, namespace: NS, uid: rb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: election}
subjects: [{kind: ServiceAccount, name: operator}]`
	for name, tt := range map[string]struct {
		manifests string
		clusters  int
	}{"by default": {elects, 1}, "several clusters by a policy": {elects + several, 2}, "by a policy": {elects + policy, 2}, "as it was": {elects + bound, 2},
		"as it was a moment ago":    {elects + strings.Replace(bound, `creationTimestamp: "2026-01-01T00:00:00Z", `, "", 1), 1},
		"by its rights":             {operator + rights, 1},
		"without custom types":      {operator + strings.Replace(rights, "[example.com]", "[apps]", 1), 2},
		"without writing its types": {operator + strings.Replace(rights, "[get, update]", "[get, watch]", 1), 2},
		"of another namespace":      {operator + strings.Replace(rights, "name: operator, namespace: NS}]", "name: operator, namespace: other}]", 1), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, clusters+strings.ReplaceAll(tt.manifests, "NS", "n0"))
			fakeapi.Until(t, "it is scheduled", func() bool { status, _ := scheduledMessage(t, c, "n0", "deployment.apps-a"); return status == "True" })
			if in := strings.Fields(clustersOf(t, c, "n0", "deployment.apps-a")); len(in) != tt.clusters {
				t.Errorf("it is in %v", in)
			}
			_, message := scheduledMessage(t, c, "n0", "deployment.apps-a")
			if strings.Contains(message, "elect a leader") != (tt.clusters == 1) {
				t.Error(message)
			}
			agreesWithPreview(t, c)
		})
	}
}
