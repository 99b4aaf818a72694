package scheduler

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestComponentsFitTogether: an object of several components is in one cluster, which has room for all of
// them, and limits count them all.
func TestComponentsFitTogether(t *testing.T) {
	east := custom[strings.Index(custom, "---\napiVersion: fleet.atoll.dev/v1alpha1\nkind: APIResourceImport"):strings.Index(custom, "---\napiVersion: example.com")]
	widget := custom[strings.Index(custom, "---\napiVersion: example.com"):]
	manifests := strings.TrimSuffix(custom, widget) + strings.ReplaceAll(east, "east", "west") + `---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceInterpretation
metadata: {name: widgets, uid: ri}
spec:
  target: {apiVersion: example.com/v1, kind: Widget}
  components: "[{'name': 'head', 'requests': {'cpu': '1'}}, {'name': 'worker', 'replicas': self.spec.size, 'requests': {'cpu': '1'}}]"
`
	sized := func(name, n string) string {
		return strings.NewReplacer("name: one", "name: "+name, "uid: w1}", "uid: w-"+name+"}\nspec: {size: "+n+"}").Replace(widget)
	}
	c := newControl(t, clusters+manifests+sized("a", "4")+sized("b", "8"))
	c.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"limits":{"cpu":"5"}}}`)
	c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"limits":{"cpu":"10"}}}`)
	c.start(t, Config{})
	fakeapi.Until(t, "the small one is in east, and the large one in west", func() bool {
		b := clustersOf(t, c, "shop", "widget.example.com-b")
		a := clustersOf(t, c, "shop", "widget.example.com-a")
		return a != "" && !strings.Contains(a, " ") && (b == "west" || a == "west" && b == "")
	})
	put(t, c, sized("c", "20"), "shop")
	reports(t, c, "shop", "widget.example.com-c", "False", "CPU is allocated, and 21000m is requested")
	agreesWithPreview(t, c)
}
