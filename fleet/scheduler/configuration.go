package scheduler

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// namespaceRequirer is the entry in a binding's users that stands for all workloads of its namespace. A list
// of their names would change with each of them. "*" stands for the workloads of all namespaces.
func namespaceRequirer(namespace string) v1alpha1.Requirer {
	return v1alpha1.Requirer{Kind: "Namespace", Name: cmp.Or(namespace, "*")}
}

// goesWithNamespace reports whether an object goes wherever its namespace's workloads run: by a label of
// its own, otherwise of its namespace, otherwise by its policy. It does not if its own label or a policy
// for its kind chooses the clusters.
func (s *scheduler) goesWithNamespace(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	if !k.GoesWithNamespace(obj) {
		return false
	}
	for _, labels := range []map[string]string{obj.GetLabels(), s.namespaceLabels(obj.GetNamespace())} {
		switch v1alpha1.ConfigurationScope(labels[v1alpha1.ConfigurationLabel]) {
		case v1alpha1.WithNamespace:
			return true
		case v1alpha1.WhereNeeded:
			return false
		}
	}
	choice := s.snapshot().Choose(k, obj)
	return !choice.OfKind && (choice.Policy == nil || choice.Policy.Configuration() != v1alpha1.WhereNeeded)
}

// withConfiguration adds the clusters that run workloads of an object's namespace. used reports whether
// other objects name it.
func withConfiguration(shares []v1alpha1.ClusterShare, namespace string, clusters []string, used bool) []v1alpha1.ClusterShare {
	have := clustersIn(shares)
	message := "the cluster runs workloads"
	if namespace != "" {
		message += " of its namespace"
	}
	if used {
		message += "; nothing there uses it"
	}
	for _, name := range clusters {
		if !have[name] {
			shares = append(shares, v1alpha1.ClusterShare{Name: name, Reason: ReasonConfiguration, Message: message})
		}
	}
	return shares
}

// Credentials reports which Secrets configure providers of infrastructure. It is safe for concurrent use.
type Credentials interface {
	// Ready returns once all configurations that existed when it was called are known, or with an error
	// when ctx ends.
	Ready(ctx context.Context) error
	// Named reports whether the configuration of a provider names a Secret. It does not block.
	Named(namespace, secret string) bool
	// OnChange calls notify, which must not block, with the Secrets of a namespace for which Named may
	// have changed, until cancelled.
	OnChange(notify func(namespace string, secrets []string)) (cancel func())
}

// credentialsDelay is how long a new Secret that nothing names waits before it goes along with workloads.
// People create the credentials of a provider before the configuration that names them; until then,
// nothing tells them from other Secrets.
const credentialsDelay = 10 * time.Second

// mayBeCredentials reports whether the configuration of a provider names a Secret, or may soon. bound
// Secrets are in clusters already.
func (s *scheduler) mayBeCredentials(o object, obj *unstructured.Unstructured, bound bool) bool {
	if s.Credentials == nil || o.GroupKind != secretKind() {
		return false
	}
	if s.Credentials.Named(o.Namespace, o.Name) {
		return true
	}
	rest := credentialsDelay - s.Clock.Since(obj.GetCreationTimestamp().Time)
	if bound || rest <= 0 {
		return false
	}
	s.queue.AddAfter(o, rest)
	return true
}

func (s *scheduler) credentialsChanged(namespace string, secrets []string) {
	for _, name := range secrets {
		s.queue.Add(object{secretKind(), types.NamespacedName{Namespace: namespace, Name: name}})
	}
}

func secretKind() schema.GroupKind { return schema.GroupKind{Kind: "Secret"} }

// namespaceUse counts, by namespace and in total, the workloads in each cluster and those whose placement
// is not known yet. Only when a cluster gets its first one or loses its last one is the namespace's configuration
// decided again: a namespace may have thousands of each.
type namespaceUse struct {
	mu sync.Mutex
	of map[object]workloadUse
	in map[string]*useOf
}

// workloadUse is what one workload counts for.
type workloadUse struct {
	clusters []string
	pending  bool
}

// useOf are the counts of one namespace.
type useOf struct {
	clusters map[string]int
	pending  int
}

func newNamespaceUse() *namespaceUse {
	return &namespaceUse{of: map[object]workloadUse{}, in: map[string]*useOf{}}
}

// set records what a workload counts for, and returns the namespaces whose configuration has to be decided
// again; "" stands for cluster-scoped configuration. now is called with the lock held, so that the last
// call has the newest state.
func (u *namespaceUse) set(o object, now func() workloadUse) (changed []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was, is := u.of[o], now()
	if u.of[o] = is; len(is.clusters) == 0 && !is.pending {
		delete(u.of, o)
	}
	for _, namespace := range []string{o.Namespace, ""} {
		in := u.in[namespace]
		if in == nil {
			in = &useOf{clusters: map[string]int{}}
			u.in[namespace] = in
		}
		if in.replace(was, is) {
			changed = append(changed, namespace)
		}
		if len(in.clusters) == 0 && in.pending == 0 {
			delete(u.in, namespace)
		}
	}
	return changed
}

// replace counts a workload anew, and reports whether that concerns the configuration.
func (in *useOf) replace(was, is workloadUse) (changed bool) {
	pending := in.pending > 0
	in.add(is, 1)
	for _, c := range is.clusters {
		changed = changed || in.clusters[c] == 1 && !slices.Contains(was.clusters, c)
	}
	in.add(was, -1)
	for _, c := range was.clusters {
		changed = changed || in.clusters[c] == 0
	}
	return changed || pending && in.pending == 0
}

func (in *useOf) add(w workloadUse, n int) {
	for _, c := range w.clusters {
		if in.clusters[c] += n; in.clusters[c] == 0 {
			delete(in.clusters, c)
		}
	}
	if w.pending {
		in.pending += n
	}
}

// clusters returns the clusters that run workloads of a namespace, or any with "". pending reports that the placement of
// some workload is not known yet, so that clusters may be missing.
func (u *namespaceUse) clusters(namespace string) (names []string, pending bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	in := u.in[namespace]
	if in == nil {
		return nil, false
	}
	return slices.Sorted(maps.Keys(in.clusters)), in.pending > 0
}

// useChanged records the current state of a workload, or that it is none any more. It returns the
// configuration that has to be decided again.
func (s *scheduler) useChanged(o object) (configuration []object) {
	changed := s.use.set(o, func() workloadUse {
		if !s.needs.isWorkload(o) {
			return workloadUse{}
		}
		b, bound := s.Bindings.Get(o.binding())
		if !bound {
			obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
			k, served := s.Kinds.Get(o.GroupKind)
			if !exists || !served || s.staysHome(k, obj) {
				return workloadUse{}
			}
			// Before the policies are read, every object may still be placed.
			return workloadUse{pending: s.fleetSnapshot() == nil || !s.isHomeless(k, obj, nil)}
		}
		if b.Spec.Dependencies == v1alpha1.DependenciesStay {
			return workloadUse{}
		}
		w := workloadUse{pending: b.DeletionTimestamp != nil}
		for _, c := range b.Spec.Clusters {
			w.clusters = append(w.clusters, c.Name)
		}
		w.clusters = append(w.clusters, s.stillIn(o, b)...)
		return w
	})
	for _, namespace := range changed {
		configuration = append(configuration, s.needs.configurationOf(namespace)...)
	}
	return configuration
}
