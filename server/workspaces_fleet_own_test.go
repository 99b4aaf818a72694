package server_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/server"
)

// definition is a CustomResourceDefinition of a cluster-scoped kind that accepts everything, as a user writes it.
func definition(kind, plural, group string) string {
	return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[2]s.%[3]s}, spec: {group: %[3]s, scope: Cluster, names: {plural: %[2]s, kind: %[1]s},
		versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`, kind, plural, group)
}

// ofEarlierVersion are objects that an earlier version of Atoll has stored in a workspace, by their keys: a definition of the workspace's own Clusters,
// and such a Cluster.
func ofEarlierVersion(withDefinition bool) map[string]string {
	all := map[string]string{"/registry/fleet.atoll.dev/clusters/forged": `{"apiVersion":"fleet.atoll.dev/v1alpha1","kind":"Cluster","metadata":{"name":"forged","uid":"f0000000-0000-4000-8000-000000000001","generation":1,
		"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"kubeconfigSecretRef":{"namespace":"default","name":"east"}}}`}
	if !withDefinition {
		all["/registry/fleet.atoll.dev/clusters/pulled"] = `{"apiVersion":"fleet.atoll.dev/v1alpha1","kind":"Cluster","metadata":{"name":"pulled","uid":"f0000000-0000-4000-8000-000000000002","generation":1,
			"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"mode":"Pull"}}`
		return all
	}
	all["/registry/apiextensions.k8s.io/customresourcedefinitions/clusters.fleet.atoll.dev"] = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"clusters.fleet.atoll.dev",
		"uid":"f0000000-0000-4000-8000-000000000003","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"group":"fleet.atoll.dev","scope":"Cluster","conversion":{"strategy":"None"},
		"names":{"plural":"clusters","singular":"cluster","kind":"Cluster","listKind":"ClusterList"},
		"versions":[{"name":"v1alpha1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]},
		"status":{"acceptedNames":{"plural":"clusters","singular":"cluster","kind":"Cluster","listKind":"ClusterList"},"storedVersions":["v1alpha1"],"conditions":[
		{"type":"NamesAccepted","status":"True","reason":"NoConflicts","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"},
		{"type":"Established","status":"True","reason":"InitialNamesAccepted","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	return all
}

// forge stores objects in the keyspace of a workspace while no server runs.
func forge(t *testing.T, dataDir, uid string, objects map[string]string) {
	t.Helper()
	store, err := server.OpenDatastore(t.Context(), server.SQLiteURL(filepath.Join(dataDir, "atoll.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	in, err := store.ExistingKeyspace(t.Context(), "workspace-"+uid, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for key, value := range objects {
		if _, err := in.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: []byte(value)}}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWorkspaceOwnFleetKinds: a workspace that defined the fleet's kinds itself, with an earlier version of Atoll, keeps them, and the server does
// nothing for its objects. When it deletes its definition, its objects are deleted with it, and the group is the server's. Clusters that were left without
// a definition are what a user could create, and can be deleted. The kinds of plans cannot be defined.
func TestWorkspaceOwnFleetKinds(t *testing.T) {
	cfg := server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers()}
	s := startFleets(t, cfg)
	t.Cleanup(func() { _ = s.stop() })
	uids := map[string]string{}
	for _, name := range []string{"old", "left", "new"} {
		s.createWorkspace(t, name)
		w, err := s.dynamic(t).Resource(tenancy.WorkspaceResource).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids[name] = string(w.GetUID())
	}
	forged, member := measured(t), measured(t)
	old := s.in("old")
	old.joinMember(t, "east", forged.Member())
	old.mustKubectl(t, "", "delete", "cluster", "east", "--timeout=60s")
	s.awaitNoFleet(t, "old")
	s.in("left").mustKubectl(t, "", "get", "clusters")
	secret := old.mustKubectl(t, "", "get", "secrets", "-A", "--field-selector=metadata.name=east", "-o", "jsonpath={.items[0].data.kubeconfig}")
	old.mustKubectl(t, "{apiVersion: v1, kind: Secret, metadata: {name: east, namespace: default}, type: fleet.atoll.dev/kubeconfig, data: {kubeconfig: "+secret+"}}", "create", "-f", "-")
	before := len(forged.Writes())
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	forge(t, cfg.DataDir, uids["old"], ofEarlierVersion(true))
	forge(t, cfg.DataDir, uids["left"], ofEarlierVersion(false))

	s = startFleets(t, cfg)
	old = s.in("old")
	if out := old.mustKubectl(t, "", "get", "clusters.fleet.atoll.dev", "-o", "name"); out != "cluster.fleet.atoll.dev/forged\n" {
		t.Error(out)
	}
	old.mustKubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: anything}, spec: {mode: Pull, word: own}}", "create", "-f", "-")
	if out, err := old.kubectl(t, definition("Plan", "plans", "infra.atoll.dev"), "create", "-f", "-"); err == nil || !strings.Contains(out, "gets the group infra.atoll.dev from the server") {
		t.Errorf("a definition of plans: %v, %s", err, out)
	}
	fresh := s.in("new")
	fresh.joinMember(t, "east", member.Member())
	fresh.mustKubectl(t, "", "create", "deployment", "web", "--image=web")
	fresh.awaitPlaced(t, member, "default", "web") // the server runs fleets
	for _, name := range []string{"clusters.fleet.atoll.dev/forged", "clusters.fleet.atoll.dev/anything"} {
		if out := old.mustKubectl(t, "", "get", name, "-o", "jsonpath={.status}{.metadata.finalizers}"); out != "" {
			t.Errorf("the server has changed %s: %s", name, out)
		}
	}
	if writes := forged.Writes()[before:]; len(writes) > 0 {
		t.Errorf("the server has written to the cluster of a kind that is not its own: %v", writes)
	}

	old.mustKubectl(t, "", "delete", "crd", "clusters.fleet.atoll.dev", "--timeout=60s")
	eventually(t, "the group is the server's", func(context.Context) error {
		out, err := old.kubectl(t, "", "get", "clusters.fleet.atoll.dev", "-o", "name")
		if err != nil || out != "" {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	old.joinMember(t, "west", forged.Member())
	old.mustKubectl(t, "", "create", "deployment", "web", "--image=web")
	old.awaitPlaced(t, forged, "default", "web")

	s.in("left").mustKubectl(t, "", "delete", "clusters", "--all", "--timeout=60s")
	old.mustKubectl(t, "", "delete", "clusters", "--all", "--timeout=60s")
	fresh.mustKubectl(t, "", "delete", "clusters", "--all", "--timeout=60s")
}
