package test

import (
	"context"
	"strings"
	"testing"
)

// TestObjectsOfAllClusters: a user finds and changes objects that Atoll did not place, with the rights on clusters/proxy, and
// only in the clusters that they name.
func TestObjectsOfAllClusters(t *testing.T) {
	t.Parallel()
	f := whole(t)
	const namespace, proxies = "searched", "/apis/fleet.atoll.dev/v1alpha1/clusters/"
	for _, member := range []string{"east", "west"} {
		f.kubectl(t, member, "create", "namespace", namespace)
		f.kubectl(t, member, "create", "configmap", "conf", "-n", namespace, "--from-literal=of="+member)
		t.Cleanup(func() {
			_, _ = f.tryKubectl(context.Background(), member, "", "delete", "namespace", namespace, "--wait=false")
		})
	}
	get := func(line string) (string, error) {
		return f.run(t.Context(), "atoll", f.kubeconfig("atoll"), "", append([]string{"get", "--timeout", "1m", "-n", namespace}, strings.Fields(line)...)...)
	}
	eventually(t, settle, "the objects are in one table", func(context.Context) error {
		out, err := get("cm conf")
		if err == nil && !strings.HasPrefix(out, "CLUSTER") {
			t.Errorf("atoll get prints\n%s", out)
		}
		return err
	})
	out, err := get("cm conf")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 3 || !strings.Contains(lines[0], "DATA") || !strings.HasPrefix(lines[1], "east ") || !strings.HasPrefix(lines[2], "west ") {
		t.Errorf("atoll get prints\n%s\n%v", out, err)
	}
	if out, err := get("configmaps conf -o yaml --clusters west"); err != nil || !strings.Contains(out, "of: west") || !strings.Contains(out, "fleet.atoll.dev/cluster: west") {
		t.Errorf("-o yaml prints\n%s\n%v", out, err)
	}

	if out := f.kubectl(t, "atoll", "get", "--raw", proxies+"east/proxy/api/v1/namespaces/"+namespace+"/configmaps/conf"); !strings.Contains(out, `"of":"east"`) {
		t.Errorf("get --raw prints %s", out)
	}
	through := func(member string, args ...string) (string, error) {
		return f.tryKubectl(t.Context(), "atoll", "", append(args, "-n", namespace, "--server", f.rest(t, "atoll").Host+proxies+member+"/proxy")...)
	}
	if out, err := through("east", "create", "configmap", "made"); err != nil {
		t.Errorf("create through the proxy: %s %v", out, err)
	}
	if out := f.kubectl(t, "east", "get", "configmap", "made", "-n", namespace, "-o", "name"); !strings.Contains(out, "configmap/made") {
		t.Errorf("in east: %s", out)
	}
	if out, err := through("east", "label", "configmap", "made", "a=b"); err != nil {
		t.Errorf("label through the proxy: %s %v", out, err)
	}
	if out, err := through("east", "wait", "configmap", "made", "--for=jsonpath={.metadata.labels.a}=b", "--timeout=60s"); err != nil {
		t.Errorf("watch through the proxy: %s %v", out, err)
	}
	if out, err := f.tryKubectl(t.Context(), "atoll", "", "get", "--raw", proxies+"none/proxy/api"); err == nil || !strings.Contains(err.Error(), `clusters.fleet.atoll.dev "none" not found`) {
		t.Errorf("a cluster that has not joined: %s %v", out, err)
	}

	f.kubectl(t, "atoll", "create", "clusterrole", "searcher", "--verb=get", "--resource=clusters.fleet.atoll.dev/proxy", "--resource-name=east")
	f.kubectl(t, "atoll", "create", "clusterrolebinding", "searcher", "--clusterrole=searcher", "--user=searcher")
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "clusterrolebinding,clusterrole", "searcher")
	})
	eventually(t, settle, "the searcher may read east", func(context.Context) error {
		_, err := get("cm conf --clusters east --as searcher")
		return err
	})
	for _, tt := range []struct{ line, want string }{
		{"cm --as stranger --clusters east", `cluster east: clusters.fleet.atoll.dev "east" is forbidden: User "stranger" cannot get resource "clusters/proxy"`},
		{"cm --as searcher --clusters east,west", `cluster west: clusters.fleet.atoll.dev "west" is forbidden: User "searcher"`},
		{"cm --as searcher", "name those on which you have rights with --clusters"},
		{"gadgets", `serves the kind "gadgets"`},
		{"cm none", `cm "none" not found in ` + namespace + ` namespace of the`},
	} {
		if out, err := get(tt.line); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("atoll get %s: %s%v, want %q", tt.line, out, err, tt.want)
		}
	}
	if out, err := through("east", "delete", "configmap", "made", "--as=searcher"); err == nil || !strings.Contains(err.Error(), `cannot delete resource "clusters/proxy"`) {
		t.Errorf("a deletion by the searcher: %s %v", out, err)
	}
}
