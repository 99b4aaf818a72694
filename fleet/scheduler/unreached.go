package scheduler

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Unreached is a Service that has no endpoints in clusters where one of its callers runs.
type Unreached struct {
	Service string `json:"service"`
	// Clusters are those without endpoints, Elsewhere those with the Service's pods.
	Clusters  []string `json:"clusters"`
	Elsewhere []string `json:"elsewhere"`
}

// Unreached returns the Services that an object names in its spec, and that have no pods in some clusters
// where the object is. Programs find Services by name: in variables, arguments and URLs.
func (s *State) Unreached(obj *unstructured.Unstructured, clusters []string) (out []Unreached) {
	var words map[string]bool
	for _, b := range s.bindings {
		if b.Namespace != obj.GetNamespace() || b.Spec.Resource.Kind != "Service" || b.Spec.Resource.APIVersion != "v1" {
			continue
		}
		without, with := endpoints(b)
		without = slices.DeleteFunc(without, func(c string) bool { return !slices.Contains(clusters, c) })
		if len(without) == 0 || len(with) == 0 {
			continue
		}
		if words == nil {
			words = map[string]bool{}
			collectNames(obj.Object["spec"], words)
		}
		if name := b.Spec.Resource.Name; words[name] {
			out = append(out, Unreached{Service: name, Clusters: without, Elsewhere: with})
		}
	}
	slices.SortFunc(out, func(a, b Unreached) int { return strings.Compare(a.Service, b.Service) })
	return out
}

// endpoints divides the clusters of a Service into those where only other workloads of its namespace are,
// and those with its own pods.
func endpoints(b *v1alpha1.ResourceBinding) (without, with []string) {
	for _, c := range b.Spec.Clusters {
		if c.Reason == ReasonConfiguration {
			without = append(without, c.Name)
		} else {
			with = append(with, c.Name)
		}
	}
	slices.Sort(without)
	slices.Sort(with)
	return without, with
}

// collectNames adds everything in the texts of a value that may be an object's name, such as db in
// http://db:5432.
func collectNames(in any, out map[string]bool) {
	switch in := in.(type) {
	case string:
		for _, word := range strings.FieldsFunc(in, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
			out[word] = true
		}
	case map[string]any:
		for _, value := range in {
			collectNames(value, out)
		}
	case []any:
		for _, value := range in {
			collectNames(value, out)
		}
	}
}
