package cli

import (
	"io"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/tunnel"
)

// printedRules returns the rules of all roles that are printed, and the manifest.
func printedRules(t *testing.T, r syncerRoles) (rules []rbacv1.PolicyRule, manifest string) {
	t.Helper()
	manifest, err := r.manifest()
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); err == io.EOF {
			return rules, manifest
		} else if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(u.GetKind(), "Role") {
			continue
		}
		role := &rbacv1.ClusterRole{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, role); err != nil {
			t.Fatal(err)
		}
		if aggregated := role.AggregationRule != nil; u.GetKind() == "ClusterRole" && aggregated == (role.Labels[v1alpha1.AggregateToSyncerLabel] == "true") {
			t.Errorf("ClusterRole %s: aggregates %t, with labels %v", role.Name, aggregated, role.Labels)
		}
		rules = append(rules, role.Rules...)
	}
}

func permits(rules []rbacv1.PolicyRule, group, resource, verb string) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb) && len(r.ResourceNames) == 0
	})
}

// TestSyncerRoleFitsKinds: without further flags and without a tunnel, the printed roles let a syncer write exactly the built-in kinds with a
// namespace except roles, and namespaces. They contain nothing with which it could get more.
func TestSyncerRoleFitsKinds(t *testing.T) {
	rules, _ := printedRules(t, syncerRoles{reach: reachLevel{tunnel.None}})
	writable := map[string]bool{"/namespaces": true}
	for _, k := range interpret.Kinds() {
		want := !k.ClusterScoped && !k.Custom && k.Group != rbacv1.GroupName
		writable[k.Group+"/"+k.Resource] = want
		for _, verb := range syncVerbs {
			read := slices.Contains([]string{"get", "list", "watch"}, verb)
			if is := permits(rules, k.Group, k.Resource, verb); is != want && !(read && !want) {
				t.Errorf("%s %s.%s is permitted: %t, want %t", verb, k.Resource, k.Group, is, want)
			}
		}
	}
	for _, rule := range rules {
		for _, text := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs) {
			if slices.Contains([]string{"*", "escalate", "bind", "impersonate", "approve", "sign", "deletecollection"}, text) || strings.Contains(text, "/") {
				t.Errorf("a rule has %s: %v", text, rule)
			}
		}
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				if slices.Contains([]string{"create", "update", "patch", "delete"}, verb) && len(rule.ResourceNames) == 0 && !writable[rule.APIGroups[0]+"/"+resource] && resource != "leases" {
					t.Errorf("a rule permits to %s %s, which no kind needs: %v", verb, resource, rule)
				}
			}
		}
	}
}

// TestReachRoles: each level permits in the cluster what the syncer passes on, and no other subresource.
func TestReachRoles(t *testing.T) {
	changes := []string{"create pods/exec", "create pods/attach", "create pods/portforward", "create pods/proxy", "create pods/eviction", "patch pods/ephemeralcontainers"}
	for level, want := range map[tunnel.Level][]string{
		tunnel.None: nil, tunnel.Read: {"get pods/log"},
		tunnel.Pods: append(changes, "get pods/log"), tunnel.All: append(changes, "get pods/log"),
	} {
		rules, manifest := printedRules(t, syncerRoles{reach: reachLevel{level}})
		for _, permission := range append(changes, "get pods/log") {
			verb, resource, _ := strings.Cut(permission, " ")
			if is := permits(rules, "", resource, verb); is != slices.Contains(want, permission) {
				t.Errorf("--reach %s permits to %s: %t", level, permission, is)
			}
		}
		if !strings.Contains(manifest, "name: "+syncerReachRole+"\n") {
			t.Errorf("--reach %s: no role replaces a former one", level)
		}
	}
	var flag reachLevel
	if err := flag.Set("some"); err == nil || !strings.Contains(err.Error(), "use none, read, pods or all") {
		t.Errorf("--reach some: %v", err)
	}
}

// TestAllowedResources: each flag adds a role of its own with the label, so that a later one does not replace it.
func TestAllowedResources(t *testing.T) {
	rules, manifest := printedRules(t, syncerRoles{allow: []string{"gadgets.kinds.example.com", "persistentvolumes", "persistentvolumes"}, rbac: true})
	for _, verb := range syncVerbs {
		if !permits(rules, "kinds.example.com", "gadgets", verb) || !permits(rules, "", "persistentvolumes", verb) || !permits(rules, rbacv1.GroupName, "roles", verb) {
			t.Errorf("%s is not permitted", verb)
		}
	}
	if !permits(rules, rbacv1.GroupName, "clusterroles", "escalate") || !permits(rules, rbacv1.GroupName, "clusterroles", "bind") {
		t.Error("--allow-rbac does not permit to grant permissions")
	}
	for _, name := range []string{"atoll-syncer-allow-gadgets.kinds.example.com", "atoll-syncer-allow-persistentvolumes", "atoll-syncer-rbac"} {
		if n := strings.Count(manifest, "name: "+name+"\n"); n != 1 {
			t.Errorf("%d ClusterRoles are named %s", n, name)
		}
	}
	for _, name := range []string{"*", "*.apps", "Gadgets", "pods/exec", "", "gadgets."} {
		if err := (&syncerRoles{allow: []string{name}}).check(); err == nil || !strings.Contains(err.Error(), "RESOURCE.GROUP") {
			t.Errorf("--allow %q: %v", name, err)
		}
	}
}
