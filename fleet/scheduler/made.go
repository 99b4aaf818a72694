package scheduler

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// What an operator makes in a member, a Secret of credentials, does not exist in the control plane. A
// workload that reads it goes to the clusters of the custom resource that it is made for.

// ReasonMadeElsewhere means that an operator makes what the object's pods read in another cluster.
const ReasonMadeElsewhere = "MadeElsewhere"

// isContent reports whether pods read objects of a kind.
func isContent(gk schema.GroupKind) bool {
	return gk == secretKind() || gk == schema.GroupKind{Kind: "ConfigMap"}
}

// missing is an object that pods read and that is not in the control plane.
type missing struct {
	interpret.Reference
	// maker is the custom resource that it is made for, "" if none is known.
	maker string
	// in are the clusters of the makers.
	in []string
}

// maker is a custom resource of a namespace with its clusters.
type maker struct {
	object   *unstructured.Unstructured
	clusters []string
}

// whoMakes looks for the makers of an object.
func whoMakes(ref interpret.Reference, makers []maker) missing {
	m := missing{Reference: ref}
	for _, candidate := range makers {
		if len(candidate.clusters) == 0 || !interpret.Makes(candidate.object, ref.Name) {
			continue
		}
		if m.maker == "" {
			m.maker = candidate.object.GetKind() + " " + candidate.object.GetName()
		}
		for _, name := range candidate.clusters {
			if !slices.Contains(m.in, name) {
				m.in = append(m.in, name)
			}
		}
	}
	slices.Sort(m.in)
	return m
}

// madeElsewhere adds obstacles in the clusters where an object is not made that the pods of a workload
// read. A cluster where they run well has it.
func madeElsewhere(out map[string]placement.Obstacle, of []missing, clusters *placement.Fleet, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle {
	for _, m := range of {
		if m.maker == "" {
			continue
		}
		for _, name := range clusters.Names() {
			if _, obstructed := out[name]; obstructed || slices.Contains(m.in, name) {
				continue
			}
			if out == nil {
				out = map[string]placement.Obstacle{}
			}
			out[name] = placement.Obstacle{Reason: ReasonMadeElsewhere, Keeps: isHealthy(b, name),
				Message: fmt.Sprintf("lacks %s %s, which is made for %s in %s", m.Kind, m.Name, m.maker, names.List(m.in))}
		}
	}
	return out
}

func isHealthy(b *v1alpha1.ResourceBinding, cluster string) bool {
	if b == nil {
		return false
	}
	state, reported := b.State(cluster)
	return reported && state.Health == v1alpha1.Healthy
}

// missingMessage names in a binding what pods read and nothing known makes.
func missingMessage(of []missing) string {
	for _, m := range of {
		if m.maker == "" {
			return fmt.Sprintf("; its pods need %s %s, which is not in Atoll: create it here, or, if an operator makes it in a cluster, name that cluster with the label %s",
				m.Kind, m.Name, v1alpha1.ClusterLabel)
		}
	}
	return ""
}

// missingOf returns what the pods of a workload read and the control plane does not have.
func (s *scheduler) missingOf(k interpret.KindInfo, obj *unstructured.Unstructured) (out []missing) {
	o := refOf(k.GroupKind(), obj)
	lacks := func(ref object) bool {
		_, exists := s.Objects.Metadata(ref.GroupKind, ref.NamespacedName)
		return isContent(ref.GroupKind) && !exists
	}
	if slices.ContainsFunc(s.needs.named(o), lacks) {
		var makers []maker
		for _, ref := range k.Reads(obj) {
			if !lacks(objectOfRef(ref)) {
				continue
			}
			if out == nil {
				makers = s.makersIn(obj.GetNamespace())
			}
			out = append(out, whoMakes(ref, makers))
		}
	}
	s.trackMissing(o, len(out) > 0)
	return out
}

// contentDelay is how long a new workload waits for what its pods read if it may be made in a cluster. People
// apply their own Secrets and ConfigMaps together with the workload, in any order.
const contentDelay = 5 * time.Second

// awaitsContent reports whether the first decision about a workload is to wait for what its pods read, or for
// their account.
func (s *scheduler) awaitsContent(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	rest := contentDelay - s.Clock.Since(obj.GetCreationTimestamp().Time)
	if b != nil || rest <= 0 || !k.MakesPods() {
		return false
	}
	if slices.ContainsFunc(s.missingOf(k, obj), func(m missing) bool { return m.maker != "" }) {
		s.queue.AddAfter(refOf(k.GroupKind(), obj), rest)
		return true
	}
	if unknown := min(rest, s.rightsUnknown(obj)); unknown > 0 {
		s.queue.AddAfter(refOf(k.GroupKind(), obj), unknown)
		return true
	}
	return false
}

// makersIn returns the custom resources of a namespace that clusters have.
func (s *scheduler) makersIn(namespace string) (out []maker) {
	for _, b := range s.Bindings.In(namespace) {
		o := boundBy(b)
		if fleet.Native(o.GroupKind) || b.DeletionTimestamp != nil {
			continue
		}
		if obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName); exists {
			out = append(out, maker{obj, clusterNames(b.Spec.Clusters)})
		}
	}
	slices.SortFunc(out, func(a, b maker) int { return compareNames(a.object, b.object) })
	return out
}

func compareNames(a, b *unstructured.Unstructured) int {
	return slices.Compare([]string{a.GetKind(), a.GetName()}, []string{b.GetKind(), b.GetName()})
}

// trackMissing records whether the control plane lacks something that an object's pods read.
func (s *scheduler) trackMissing(o object, something bool) {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	if something {
		member(s.cache.missing, o, true)
	} else if s.cache.missing[o.Namespace] != nil {
		member(s.cache.missing, o, false)
	}
}

// requeueMissing queues the objects of a namespace whose pods read something that the control plane lacks.
func (s *scheduler) requeueMissing(namespace string) {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	for o := range s.cache.missing[namespace] {
		s.queue.Add(o)
	}
}
