package scheduler

import (
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// ineffectiveKinds says which of the kinds that a policy selects no object is placed of by it, or "". all reports
// whether that is true of each, so that the policy has no effect. The type of a custom resource may come
// later.
func ineffectiveKinds(selected []string, known []interpret.KindInfo, namespaced bool) (message string, all bool) {
	var said []string
	for _, want := range selected {
		name, group, qualified := strings.Cut(want, ".")
		found, scoped := false, false
		var all []string
		for _, k := range known {
			kind := k.GroupVersionKind.Kind
			all = append(all, kind)
			if kind == name && (!qualified || k.Group == group) {
				found = found || !namespaced || !k.ClusterScoped
				scoped = true
			}
		}
		switch {
		case found:
		case scoped:
			said = append(said, fmt.Sprintf("%s is cluster-scoped: use a ClusterPlacement", want))
		default:
			said = append(said, fmt.Sprintf("objects of kind %s are not placed on clusters%s", want, names.DidYouMean(name, all)))
		}
	}
	return strings.Join(said, "; "), len(said) > 0 && len(said) == len(selected)
}

// reservedNamespaces says which of the Namespaces that a policy selects are never placed, or "". all reports whether it
// selects no others, and nothing else.
func reservedNamespaces(spec *v1alpha1.PlacementSpec) (message string, all bool) {
	if !placement.NamesNamespaces(spec.Selector.Kinds) {
		return "", false
	}
	if len(spec.Selector.Names) == 0 {
		if spec.Selector.LabelSelector != nil {
			return "", false
		}
		return "the Namespaces of Kubernetes and Atoll are not placed: default, kube-… and atoll-…", false
	}
	var said []string
	for _, name := range spec.Selector.Names {
		if why := interpret.ReservedNamespace(name); why != "" {
			said = append(said, fmt.Sprintf("Namespace %s is not placed: %s", name, why))
		}
	}
	return strings.Join(said, "; "), len(said) == len(spec.Selector.Names) && len(spec.Selector.Kinds) == 1
}
