package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// gets is an Atoll with clusters below clusters/proxy.
type gets struct {
	twoAPIs
	members map[string]http.Handler
}

func newGets(t *testing.T) *gets {
	g := &gets{twoAPIs: twoAPIs{t: t, atoll: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)}, members: map[string]http.Handler{}}
	front := httptest.NewServer(g)
	t.Cleanup(func() { front.CloseClientConnections(); front.Close() })
	g.kubeconfig = g.file("atoll", strings.ReplaceAll(kubeconfigOf(g.atoll), g.atoll.Config().Host, front.URL))
	return g
}

func (g *gets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const clusters = "/apis/fleet.atoll.dev/v1alpha1/clusters/"
	name, path, proxied := strings.Cut(strings.TrimPrefix(r.URL.Path, clusters), "/proxy")
	if !proxied {
		g.atoll.ServeHTTP(w, r)
		return
	}
	r.URL.Path = path
	g.members[name].ServeHTTP(w, r)
}

// join adds a cluster that serves kinds, and returns its API.
func (g *gets) join(name string, kinds ...fakeapi.Kind) *fakeapi.Server {
	api := fakeapi.New(g.t, append(fakeapi.BuiltIns("v1 ConfigMap", "apps/v1 Deployment", "v1 Namespace"), kinds...)...)
	g.joined(name, api)
	return api
}

func (g *gets) joined(name string, api http.Handler) {
	g.members[name] = api
	g.put(g.atoll, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: `+name+`}, spec: {mode: Pull}}`)
}

func (g *gets) get(line string) (code int, stdout, stderr string) {
	g.t.Helper()
	return run(g.t, append([]string{"atoll", "get"}, append(strings.Fields(line), "--kubeconfig", g.kubeconfig)...)...)
}

// check compares the exit code and the output of a command, except the ages.
func (g *gets) check(line string, code int, stdout, stderr string) {
	g.t.Helper()
	gotCode, gotOut, gotErr := g.get(line)
	if gotCode != code || gotOut != stdout || gotErr != stderr {
		g.t.Errorf("atoll get %s: %d\n%s%swant %d\n%s%s", line, gotCode, gotOut, gotErr, code, stdout, stderr)
	}
}

const configMap = `{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s, labels: {app: %s}, creationTimestamp: null}}`

func widgets() fakeapi.Kind {
	return fakeapi.Custom("Widget", schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
}

func refusing(status *apierrors.StatusError) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		out := status.Status()
		out.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(out.Code))
		_ = json.NewEncoder(w).Encode(out)
	})
}

// printing serves the rows that a cluster prints of its ConfigMaps. Other requests go to its API.
func printing(api http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/configmaps") || !strings.Contains(r.Header.Get("Accept"), "as=Table") {
			api.ServeHTTP(w, r)
			return
		}
		var rows []string
		for _, name := range names {
			rows = append(rows, fmt.Sprintf(`{"cells":[%q,2,null,"several\nlines"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"namespace":"shop"}}}`, name, name))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":[{"name":"Name","type":"string"},{"name":"Data","type":"integer"},{"name":"Owner","type":"string"},{"name":"Note","type":"string","priority":1}],"rows":[%s]}`, strings.Join(rows, ","))
	})
}

// TestGet: the objects of all clusters are in one table, with the columns of the clusters.
func TestGet(t *testing.T) {
	t.Parallel()
	g := newGets(t)
	west, south := g.join("west", widgets()), g.join("south")
	g.joined("east", printing(g.join("east"), "b", "a"))
	g.joined("north", printing(g.join("north"), "a"))
	g.put(west, fmt.Sprintf(configMap, "c", "shop", "c"))
	g.put(west, fmt.Sprintf(configMap, "d", "other", "d"))
	g.put(south, fmt.Sprintf(configMap, "c", "shop", "c"))
	g.put(west, `{apiVersion: example.com/v1, kind: Widget, metadata: {name: w, namespace: shop}}`)
	g.put(west, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)

	g.check("configmaps -n shop --clusters east,north", 0, `CLUSTER   NAMESPACE   NAME   DATA   OWNER
east      shop        a      2      <none>
north     shop        a      2      <none>
east      shop        b      2      <none>
`, "")
	g.check("configmaps -n shop --clusters north -o wide", 0, `CLUSTER   NAMESPACE   NAME   DATA   OWNER    NOTE
north     shop        a      2      <none>   several...
`, "")
	g.check("ConfigMap -A -o name -l app=d", 0, "configmap/a\nconfigmap/a\nconfigmap/b\nconfigmap/d\n", "")
	g.check("widgets.example.com -n shop -o name", 0, "widget.example.com/w\n", "") // which only one cluster serves
	g.check("widgets.v1.example.com/w -A -o name", 0, "widget.example.com/w\n", "")
	g.check("namespaces -o name", 0, "namespace/shop\n", "")
	g.check("deployments -n shop", 0, "", "No resources found in shop namespace\n")
	g.check("deployments -A", 0, "", "No resources found\n")
	g.check("deployments none -n shop", 1, "", "error: deployments \"none\" not found in shop namespace of the 4 clusters\n")

	code, out, notes := g.get("configmaps c -n shop --clusters west,south -o json")
	var list struct {
		Kind  string
		Items []metav1.PartialObjectMetadata
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || notes != "" {
		t.Fatalf("%d %s%s %v", code, out, notes, err)
	}
	if len(list.Items) != 2 || list.Kind != "List" || list.Items[0].Annotations[v1alpha1.ClusterAnnotation] != "south" || list.Items[1].Annotations[v1alpha1.ClusterAnnotation] != "west" {
		t.Errorf("%+v", list)
	}
	if code, out, _ := g.get("deployments -A -o yaml"); code != 0 || out != "apiVersion: v1\nitems: []\nkind: List\n" {
		t.Errorf("%d %s", code, out)
	}
}

// TestGetWithoutSomeClusters: the answers that came are printed, and each cluster without one is named with the reason.
func TestGetWithoutSomeClusters(t *testing.T) {
	t.Parallel()
	g := newGets(t)
	g.put(g.join("west"), fmt.Sprintf(configMap, "c", "shop", "c"))
	g.joined("down", refusing(apierrors.NewServiceUnavailable("cluster down did not answer: it is unreachable: see its condition Ready\nand more")))
	g.joined("hidden", refusing(apierrors.NewForbidden(v1alpha1.ClusterResource.GroupResource(), "hidden", fmt.Errorf("User \"ann\" cannot get resource \"clusters/proxy\""))))
	g.joined("mute", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	const notes = `cluster down: did not answer: it is unreachable: see its condition Ready
cluster hidden: clusters.fleet.atoll.dev "hidden" is forbidden: User "ann" cannot get resource "clusters/proxy"
cluster mute: it did not answer within 1s
error: 3 of 4 clusters did not answer
`
	g.check("configmaps -n shop -o name --timeout 1s", 1, "configmap/c\n", notes)
	g.check("configmaps none -n shop -o name --timeout 1s", 1, "", notes)
	partly := g.join("partly", widgets())
	g.joined("partly", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/example.com/v1" {
			refusing(apierrors.NewServiceUnavailable("no endpoints")).ServeHTTP(w, r)
			return
		}
		partly.ServeHTTP(w, r)
	}))
	g.check("widgets --clusters partly,west", 1, "", "cluster partly: it may have the kind in example.com/v1, which it does not serve now: no endpoints\n"+
		"error: no cluster that answered serves the kind \"widgets\": add its group, as in certificates.cert-manager.io, or list the groups of a cluster with `kubectl get --raw /apis/fleet.atoll.dev/v1alpha1/clusters/west/proxy/apis`\n")
	g.check("configmaps -A --clusters partly", 0, "", "No resources found\n")
	g.check("configmaps -n shop -o name --clusters down", 1, "", "cluster down: did not answer: it is unreachable: see its condition Ready\nerror: 1 of 1 clusters did not answer\n")
}

// TestGetFailures: each error names the flag or the object, and the remedy.
func TestGetFailures(t *testing.T) {
	t.Parallel()
	g := newGets(t)
	g.check("configmaps", 1, "", "error: no cluster has joined: run `atoll join NAME --kubeconfig FILE` first\n")
	g.join("west")
	for line, want := range map[string]string{
		"":                                       "no kind specified",
		"configmaps a b":                         "get one kind",
		"configmaps/a b":                         "KIND/NAME",
		"configmaps,secrets":                     "get one after the other",
		"configmaps -A -n shop":                  "exclude each other",
		"configmaps -o xml":                      "-o must be one of table, wide",
		"configmaps -l a=(":                      "invalid label selector",
		"configmaps --timeout 0s":                "--timeout 0s is not a positive duration",
		"configmaps --clusters all,west":         "--clusters has all and names",
		"configmaps --clusters wets":             `cluster "wets" not found (did you mean west?)`,
		"gadgets":                                "clusters/west/proxy/apis",
		"widgets.example.com --clusters west -A": `no cluster that answered serves the kind "widgets.example.com"`,
	} {
		if code, _, stderr := g.get(line); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("atoll get %s: %d %swant %q", line, code, stderr, want)
		}
	}
}
