package join

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

func parsed(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestComparesWithTheCluster: an object whose pods Atoll would change is refused, and another change is noted.
// Neither message has a value.
func TestComparesWithTheCluster(t *testing.T) {
	const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {replicas: 2, minReadySeconds: 3,
		template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: secret-1, env: [{name: A, value: secret-2}]}]}}}}`
	k, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	one := Copy{Name: Name{k.GroupKind(), types.NamespacedName{Namespace: "shop", Name: "web"}}, kind: k, Object: parsed(t, deployment)}
	for name, tc := range map[string]struct{ from, to, refused, noted string }{
		"the same":          {"", "", "", ""},
		"identity":          {"name: web, namespace: shop", "name: web, namespace: shop, uid: u, generation: 7", "", ""},
		"an image":          {"secret-1", "secret-9", "spec.template.spec.containers.0.image", ""},
		"a container":       {"]}]}}", "]}, {name: more}]}}", "spec.template.spec.containers", ""},
		"a label of pods":   {"{app: web}", "{app: web, more: secret}", "spec.template.metadata.labels.more", ""},
		"outside of pods":   {"minReadySeconds: 3", "minReadySeconds: 4, paused: true", "", "minReadySeconds, spec.paused"},
		"a field is absent": {"minReadySeconds: 3,", "", "", "spec.minReadySeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := &CopyPlan{Cluster: "east"}
			err := plan.compare(one, parsed(t, strings.Replace(deployment, tc.from, tc.to, 1)))
			message := ""
			if err != nil {
				message = err.Error()
			}
			notes := strings.Join(plan.Notes, "\n")
			if (err != nil) != (tc.refused != "") || !strings.Contains(message, tc.refused) || (notes != "") != (tc.noted != "") || !strings.Contains(notes, tc.noted) {
				t.Errorf("refused: %s; noted: %s", message, notes)
			}
			if strings.Contains(message+notes, "secret") {
				t.Errorf("a value is in %s%s", message, notes)
			}
		})
	}
}

// TestMemberID: objects are copied only from the cluster that joined under the name.
func TestMemberID(t *testing.T) {
	for name, tc := range map[string]struct {
		known, id string
		own       bool
		want      string
	}{
		"the cluster":                               {"1", "1", true, ""},
		"another one":                               {"1", "2", false, "another cluster than east"},
		"an ID that may not be read":                {"1", "", true, "use one that may"},
		"a Cluster that was not probed":             {"", "1", false, "wait until"},
		"no ID, reached by a kubeconfig of a user":  {"", "", true, "wait until"},
		"no ID, reached by the kubeconfig in Atoll": {"", "", false, ""},
	} {
		cluster := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
		cluster.Status.ID = tc.known
		err := checkMemberID(cluster, tc.id, tc.own)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
