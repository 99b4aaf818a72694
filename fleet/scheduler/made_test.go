package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// readsSecret is a Deployment whose pods read a Secret that does not exist.
const readsSecret = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d-web, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {replicas: 4, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, envFrom: [{secretRef: {name: one-credentials}}]}]}}}
`

// TestSecretsOfOperatorsAreReadWhereTheyAre: a workload that reads what an operator makes in a cluster goes
// there, whichever of the two comes first. If the object exists here, it is not bound to the cluster.
func TestSecretsOfOperatorsAreReadWhereTheyAre(t *testing.T) {
	secret := "---\napiVersion: v1\nkind: Secret\nmetadata: {name: one-credentials, namespace: shop, uid: s}\n"
	other := strings.Replace(custom, "name: one,", "name: two,", 1)
	named := strings.Replace(other, "uid: w1}", "uid: w1}\nspec: {access: {secretName: one-credentials}}", 1)
	for name, tt := range map[string]struct{ manifests, want, message string }{
		"made for a resource":     {custom + readsSecret, "east", ""},
		"named by a resource":     {named + readsSecret, "east", ""},
		"made for none":           {other + readsSecret, "east west", "need Secret one-credentials, which is not in Atoll"},
		"it exists here":          {custom + secret + readsSecret, "east west", ""},
		"it is optional":          {custom + strings.Replace(readsSecret, "one-credentials}", "one-credentials, optional: true}", 1), "east west", ""},
		"without custom resource": {readsSecret, "east west", "need Secret one-credentials, which is not in Atoll"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, clusters+tt.manifests)
			fakeapi.Eventually(t, "it is placed", func() error {
				in := clustersOf(t, c, "shop", "deployment.apps-web")
				_, message := scheduledMessage(t, c, "shop", "deployment.apps-web")
				if in != tt.want || strings.Contains(message, "not in Atoll") != (tt.message != "") || !strings.Contains(message, tt.message) {
					return errorf(in + ": " + message)
				}
				return nil
			})
		})
	}
}

// TestContentComesWithItsReader: people apply a workload before its Secret, too. It does not go to the cluster
// of a resource for which the Secret might be made.
func TestContentComesWithItsReader(t *testing.T) {
	c := begin(t, clusters+custom)
	fakeapi.Until(t, "the resource is placed", func() bool { return clustersOf(t, c, "shop", "widget.example.com-one") != "" })
	for _, obj := range parse(t, strings.Replace(readsSecret, `, creationTimestamp: "2026-01-01T00:00:00Z"`, "", 1)+
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: one-credentials, namespace: shop, uid: s}\n") {
		c.Put(obj)
	}
	fakeapi.Until(t, "it is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-web") != "" })
	if in := clustersOf(t, c, "shop", "deployment.apps-web"); in != "east west" {
		t.Errorf("it is in %s", in)
	}
}

// TestReadersFollowWhatIsMadeLater: pods that could not start go to the cluster of the resource for which
// their Secret is made. Running pods stay.
func TestReadersFollowWhatIsMadeLater(t *testing.T) {
	for name, health := range map[string]string{"they do not start": "Progressing", "they run": "Healthy"} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, clusters+strings.Replace(custom, "name: one,", "name: first,", 1)+readsSecret)
			fakeapi.Until(t, "it is in both", func() bool { return clustersOf(t, c, "shop", "deployment.apps-web") == "east west" })
			c.Merge(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web",
				fmt.Sprintf(`{"status":{"clusters":[{"name":"east","uid":"e","generation":9,"replicas":%[2]d,"health":%[1]q,"status":{"replicas":%[2]d,"updatedReplicas":%[2]d,"availableReplicas":%[4]d}},`+
					`{"name":"west","uid":"w","generation":9,"replicas":%[3]d,"health":%[1]q,"status":{"replicas":%[3]d,"updatedReplicas":%[3]d,"availableReplicas":%[4]d}}]}}`, health, 2, 2, map[string]int{"Healthy": 2}[health]))
			caughtUp(t, c)
			c.Merge(widgets, "shop", "first", `{"status":{"credentials":"one-credentials"}}`)
			if health == "Healthy" {
				caughtUp(t, c)
				if in := clustersOf(t, c, "shop", "deployment.apps-web"); in != "east west" {
					t.Errorf("it is in %s", in)
				}
				return
			}
			fakeapi.Until(t, "it goes there", func() bool { return clustersOf(t, c, "shop", "deployment.apps-web") == "east" })
			agreesWithPreview(t, c)
		})
	}
}
