package v1alpha1

import (
	"slices"
	"strings"
)

// Adopts reports whether a value of AdoptAnnotation is for a cluster: "true" is for all, and otherwise it has the names of
// clusters, separated by commas.
func Adopts(value, cluster string) bool {
	return value == "true" || cluster != "" && slices.Contains(strings.Split(value, ","), cluster)
}

// WithAdopted returns the value of AdoptAnnotation for the clusters of a value and others.
func WithAdopted(value string, clusters ...string) string {
	if value == "false" {
		value = ""
	}
	names := slices.DeleteFunc(append(strings.Split(value, ","), clusters...), func(name string) bool { return name == "" })
	if slices.Contains(names, "true") {
		return "true"
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// NamespaceConflict returns the beginning of the message of a Conflict that is about the namespace of an object.
func NamespaceConflict(namespace string) string {
	return "namespace " + namespace + " already exists in cluster "
}

// OfNamespace reports whether an object is not in the cluster because its namespace there does not belong to the fleet.
func (s ClusterState) OfNamespace(namespace string) bool {
	return s.Reason == StateConflict && namespace != "" && strings.HasPrefix(s.Message, NamespaceConflict(namespace))
}
