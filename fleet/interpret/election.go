package interpret

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Rights are what a ServiceAccount may do in its cluster, as far as placement depends on it.
type Rights struct {
	// Elects: it may write Leases. Works: it may write objects of custom types.
	Elects, Works bool
}

// Plus returns the rights of both.
func (r Rights) Plus(other Rights) Rights {
	return Rights{Elects: r.Elects || other.Elects, Works: r.Works || other.Works}
}

// RightsOf returns the rights that a Role or ClusterRole grants. A rule for all groups ("*") counts for
// nothing: most programs that have one are no operators.
func RightsOf(role *unstructured.Unstructured) (out Rights) {
	for _, rule := range items(role.Object, "rules") {
		if !mayWrite(rule) {
			continue
		}
		for _, group := range texts(rule, "apiGroups") {
			switch {
			case group == "coordination.k8s.io":
				resources := texts(rule, "resources")
				out.Elects = out.Elects || slices.Contains(resources, "leases") || slices.Contains(resources, "*")
			case isCustomGroup(group) && !isBuiltInGroup(group):
				out.Works = true
			}
		}
	}
	return out
}

// isBuiltInGroup reports whether a group is Kubernetes' own. Other groups under k8s.io have custom types, as
// gateway.networking.k8s.io does.
func isBuiltInGroup(group string) bool {
	switch group {
	case crdGroup, rbacGroup, admissionGroup, schedulingGroup, "apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
		"certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "flowcontrol.apiserver.k8s.io",
		"internal.apiserver.k8s.io", "metrics.k8s.io", "networking.k8s.io", "node.k8s.io", "resource.k8s.io", "storage.k8s.io", "storagemigration.k8s.io":
		return true
	}
	return false
}

// AccountOf returns the ServiceAccount of a pod.
func AccountOf(pod map[string]any) string {
	if name := text(pod, "serviceAccountName"); name != "" {
		return name
	}
	return DefaultServiceAccount
}

// Grants returns the ServiceAccounts to which a RoleBinding or ClusterRoleBinding grants its role. One
// without a name stands for all of its namespace.
func Grants(binding *unstructured.Unstructured) (accounts []Reference) {
	for _, subject := range items(binding.Object, "subjects") {
		if namespace, name := accountOf(binding, subject); namespace != "" {
			accounts = append(accounts, refer("", "ServiceAccount", namespace, name))
		}
	}
	return accounts
}

// ElectsLeader reports whether the containers of a pod elect a leader. The Lease is one of their own cluster,
// so each cluster would have a leader. Many programs elect one unless a flag forbids it; then the rights of
// their account tell: one that may write Leases and objects of custom types is an operator's.
func ElectsLeader(pod map[string]any, rights func() Rights) bool {
	said := silent
	for _, setting := range settings(pod) {
		said = max(said, asksForLeader(setting))
	}
	if said != silent {
		return said == asked
	}
	r := rights()
	return r.Elects && r.Works
}

// settings returns the arguments of a pod's containers, and their variables as NAME=value.
func settings(pod map[string]any) (out []string) {
	for _, container := range items(pod, "containers") {
		out = append(append(out, texts(container, "command")...), texts(container, "args")...)
		for _, e := range items(container, "env") {
			if value := text(e, "value"); value != "" {
				out = append(out, text(e, "name")+"="+value)
			}
		}
	}
	return out
}

// election is what a setting says about it. The later one counts: a refusal beside the election's other
// settings.
type election int

const (
	silent election = iota
	asked
	refused
)

// asksForLeader returns whether an argument, or a variable with its value, asks for an election:
// --leader-elect, --enable-leader-election=true, LEADER_ELECTION=1.
func asksForLeader(s string) election {
	name, value, _ := strings.Cut(s, "=")
	name = strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(name))
	no := slices.Contains([]string{"false", "0", "no", "off", "disabled"}, strings.ToLower(value))
	switch {
	case !strings.Contains(name, "leaderelect"):
		return silent
	case strings.Contains(name, "disable") != no: // --disable-leader-election, --leader-elect=false
		return refused
	}
	return asked
}
