package cli

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/tunnel"
)

// syncerAccount is the syncer's ServiceAccount in its cluster, with its roles, except for the kinds that it syncs.
//
//go:embed syncer_account.yaml
var syncerAccount string

// Names of the ClusterRoles with the kinds that a syncer syncs. An allowed resource has one of its own, so that allowing
// another one later does not take it away.
const (
	syncerKindsRole   = "atoll-syncer-kinds"
	syncerAllowPrefix = "atoll-syncer-allow-"
	syncerRBACRole    = "atoll-syncer-rbac"
	syncerReachRole   = "atoll-syncer-reach"
)

// syncVerbs are what the syncer does with objects that are placed in its cluster.
var syncVerbs = []string{"get", "list", "watch", "create", "patch", "delete"}

// syncerRoles are the permissions of a syncer in its cluster, as the cluster's owner wants them.
type syncerRoles struct {
	allow []string
	rbac  bool
	only  bool
	reach reachLevel
}

// reachLevel is the flag for what a syncer passes on to its cluster.
type reachLevel struct{ tunnel.Level }

// Set implements pflag.Value.
func (l *reachLevel) Set(name string) (err error) {
	l.Level, err = tunnel.ParseLevel(name)
	return err
}

// String implements pflag.Value.
func (l *reachLevel) String() string { return string(l.Level) }

// Type implements pflag.Value.
func (l *reachLevel) Type() string { return "string" }

// add adds the flag. mode says when it applies.
func (l *reachLevel) add(flags *pflag.FlagSet, mode string) {
	l.Level = tunnel.Pods
	flags.Var(l, "reach", "What users of Atoll can do in the cluster with kubectl, through a tunnel that the syncer opens: "+
		"none; read (get pods, logs, events, nodes, metrics); pods (also exec, attach, port-forward, and changes of pods); "+
		"all (every request that the syncer's role permits)."+mode)
}

func (r *syncerRoles) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&r.allow, "allow", nil, "Resources that the syncer may sync besides the built-in kinds with a namespace, as RESOURCE.GROUP (RESOURCE in the core group): custom resources and kinds without a namespace. Can be repeated. (--mode pull)")
	flags.BoolVar(&r.rbac, "allow-rbac", false, "Let the syncer sync roles and their bindings with any permissions (verbs escalate and bind). With this, it can do everything in its cluster. (--mode pull)")
	r.reach.add(flags, " (--mode pull)")
	flags.BoolVar(&r.only, "roles-only", false, "Print only the syncer's account and roles, and do not connect to Atoll. (--mode pull)")
}

// allowedResource matches a resource that --allow may name: neither all of them nor subresources.
var allowedResource = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func (r *syncerRoles) check() error {
	for _, name := range r.allow {
		if !allowedResource.MatchString(name) {
			return fmt.Errorf("invalid --allow %q: use RESOURCE.GROUP with the plural name, such as gadgets.kinds.example.com, or RESOURCE in the core group, such as persistentvolumes", name)
		}
	}
	return nil
}

// manifest returns the account and the roles as YAML.
func (r *syncerRoles) manifest() (string, error) {
	var out strings.Builder
	out.WriteString(syncerAccount)
	for _, role := range r.clusterRoles() {
		data, err := yaml.Marshal(role)
		if err != nil {
			return "", fmt.Errorf("encode ClusterRole %s: %w", role.Name, err)
		}
		out.WriteString("---\n")
		out.Write(data)
	}
	return out.String(), nil
}

// clusterRoles returns the roles with the kinds that the syncer syncs.
func (r *syncerRoles) clusterRoles() []rbacv1.ClusterRole {
	// The role of the tunnel is printed without rules, too: applied again, it takes away what a former one had.
	out := []rbacv1.ClusterRole{syncerRole(syncerKindsRole, builtInRules()...), syncerRole(syncerReachRole, reachRules(r.reach.Level)...)}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(r.allow))) {
		resource := schema.ParseGroupResource(name)
		out = append(out, syncerRole(syncerAllowPrefix+name, rbacv1.PolicyRule{APIGroups: []string{resource.Group}, Resources: []string{resource.Resource}, Verbs: syncVerbs}))
	}
	if r.rbac {
		out = append(out, syncerRole(syncerRBACRole, rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName},
			Resources: []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"}, Verbs: append(slices.Clone(syncVerbs), "escalate", "bind")}))
	}
	return out
}

func syncerRole(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.AggregateToSyncerLabel: "true"}}, Rules: rules}
}

// reachRules permits what a syncer passes on at a level.
func reachRules(level tunnel.Level) (out []rbacv1.PolicyRule) {
	read := []string{"get", "list", "watch"}
	core := func(verbs []string, resources ...string) {
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: resources, Verbs: verbs})
	}
	if level == tunnel.None {
		return nil
	}
	core(read, "pods", "replicationcontrollers")
	core([]string{"get"}, "pods/log")
	out = append(out, rbacv1.PolicyRule{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list"}})
	// What pods belong to.
	out = append(out, rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"replicasets", "statefulsets", "daemonsets", "deployments"}, Verbs: read},
		rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs", "cronjobs"}, Verbs: read})
	if level == tunnel.Read {
		return out
	}
	core([]string{"delete", "patch"}, "pods")
	core([]string{"get", "create"}, "pods/exec", "pods/attach", "pods/portforward")
	core([]string{"get", "create", "update", "patch", "delete"}, "pods/proxy", "services/proxy")
	core([]string{"create"}, "pods/eviction")
	core([]string{"get", "patch"}, "pods/ephemeralcontainers", "pods/resize")
	return out
}

// builtInRules permits the kinds that a syncer syncs unless the cluster's owner says otherwise.
func builtInRules() []rbacv1.PolicyRule {
	resources := map[string][]string{}
	for _, k := range interpret.Kinds() {
		if syncedByDefault(k) {
			resources[k.Group] = append(resources[k.Group], k.Resource)
		}
	}
	var out []rbacv1.PolicyRule
	for _, group := range slices.Sorted(maps.Keys(resources)) {
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: slices.Sorted(slices.Values(resources[group])), Verbs: syncVerbs})
	}
	return out
}

// syncedByDefault reports whether a syncer may write a kind unless the cluster's owner says otherwise. Kinds without a
// namespace concern the whole cluster, and roles give permissions to others.
func syncedByDefault(k interpret.KindInfo) bool {
	return !k.ClusterScoped && !k.Custom && k.Group != rbacv1.GroupName
}
