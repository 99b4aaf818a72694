package sharing

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// state is the part of Atoll's state that decides what can be exposed.
type state struct {
	clusters []*v1alpha1.Cluster
	shared   []*v1alpha1.SharedAPI
	// crds are the names of the CustomResourceDefinitions; nil if the user is not
	// allowed to list them.
	crds []string
}

// Exposure says which groups to expose, and to which clusters: either Clusters or Selector is set.
type Exposure struct {
	Groups   []string
	Clusters []string
	Selector *metav1.LabelSelector
	// Name of the SharedAPI. If empty, it is the existing one of these groups, or the first group.
	Name string
	// An empty value leaves the field of an existing SharedAPI as it is.
	Namespaces    v1alpha1.NamespacePolicy
	Authorization v1alpha1.AuthorizationMode
}

// change is a change of one SharedAPI.
type change struct {
	name string
	old  *v1alpha1.SharedAPI     // nil if it is to be created
	spec *v1alpha1.SharedAPISpec // nil if it is to be deleted
	// clusters and groups that the change affects.
	clusters, groups []string
	// diff describes the changes for the user.
	diff []string
}

// edits reports whether the change changes anything.
func (c change) edits() bool {
	return c.old == nil || c.spec == nil || !equality.Semantic.DeepEqual(c.old.Spec, *c.spec)
}

// summary describes the change, as kubectl does.
func (c change) summary() string {
	verb := "configured"
	switch {
	case c.old == nil:
		verb = "created"
	case c.spec == nil:
		verb = "deleted"
	case !c.edits():
		verb = "unchanged"
	}
	text := "sharedapi/" + c.name + " " + verb
	if len(c.diff) > 0 {
		text += ": " + strings.Join(c.diff, "; ")
	}
	return text
}

// expose computes the change for an exposure.
func (p state) expose(ask Exposure) (change, error) {
	chosen, err := p.choose(ask)
	if err != nil {
		return change{}, err
	}
	was, problem := p.shareOf(ask)
	for _, cluster := range chosen {
		for _, group := range ask.Groups {
			if by := p.exposedBy(group, cluster); by != nil && (was == nil || by.Name != was.Name) {
				return change{}, fmt.Errorf("SharedAPI %s already exposes %s to %s: omit %s, or run `atoll unexpose %s --from %s` first", by.Name, group, cluster, cluster, group, cluster)
			}
		}
	}
	if problem != nil {
		return change{}, problem
	}
	out := change{name: ask.Name, old: was, clusters: chosen, groups: ask.Groups}
	if was == nil {
		if out.name == "" {
			out.name = ask.Groups[0]
		}
		out.spec = &v1alpha1.SharedAPISpec{Groups: ask.Groups, Clusters: ask.Clusters, ClusterSelector: ask.Selector,
			Namespaces: ask.Namespaces, Authorization: ask.Authorization}
		return out, nil
	}
	out.name, out.spec = was.Name, was.Spec.DeepCopy()
	if err := out.widen(ask); err != nil {
		return change{}, err
	}
	if ask.Namespaces != "" && ask.Namespaces != was.Spec.Namespaces {
		out.spec.Namespaces = ask.Namespaces
		out.diff = append(out.diff, fmt.Sprintf("namespaces: %s instead of %s", ask.Namespaces, was.Spec.Namespaces))
	}
	if ask.Authorization != "" && ask.Authorization != was.Spec.Authorization {
		out.spec.Authorization = ask.Authorization
		out.diff = append(out.diff, fmt.Sprintf("authorization: %s instead of %s", ask.Authorization, was.Spec.Authorization))
	}
	return out, nil
}

// widen adds clusters to a SharedAPI. It never removes any: that would withdraw groups
// from clusters that the command does not name.
func (c *change) widen(ask Exposure) error {
	selector := c.old.Spec.ClusterSelector
	switch {
	case ask.Selector != nil && selector != nil && equality.Semantic.DeepEqual(ask.Selector, selector):
		return nil
	case ask.Selector != nil:
		return fmt.Errorf("SharedAPI %s selects clusters differently (%s): run `kubectl edit sharedapi %s` to change it", c.name, chosenBy(c.old), c.name)
	case selector != nil:
		return fmt.Errorf("SharedAPI %s selects clusters by label (%s): add the label to %s, or run `kubectl edit sharedapi %s`", c.name, chosenBy(c.old), strings.Join(ask.Clusters, ", "), c.name)
	}
	var more []string
	for _, name := range ask.Clusters {
		if !slices.Contains(c.spec.Clusters, name) {
			more = append(more, name)
		}
	}
	if len(more) > 0 {
		c.spec.Clusters = append(c.spec.Clusters, more...)
		c.diff = append(c.diff, "also for "+strings.Join(more, ", "))
	}
	return nil
}

func chosenBy(s *v1alpha1.SharedAPI) string {
	if s.Spec.ClusterSelector == nil {
		return strings.Join(s.Spec.Clusters, ", ")
	}
	return labelsText(s.Spec.ClusterSelector)
}

func labelsText(selector *metav1.LabelSelector) string {
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return "all clusters"
	}
	return metav1.FormatLabelSelector(selector)
}

// choose returns the selected clusters.
func (p state) choose(ask Exposure) (chosen []string, err error) {
	if ask.Selector != nil {
		probe := &v1alpha1.SharedAPI{Spec: v1alpha1.SharedAPISpec{ClusterSelector: ask.Selector}}
		for _, c := range p.clusters {
			if c.DeletionTimestamp == nil && probe.Selects(c) {
				chosen = append(chosen, c.Name)
			}
		}
		slices.Sort(chosen)
		return chosen, nil
	}
	for _, name := range ask.Clusters {
		c := p.cluster(name)
		switch {
		case c == nil:
			return nil, p.noSuchCluster(name)
		case c.DeletionTimestamp != nil:
			return nil, fmt.Errorf("cluster %s is leaving: wait until it has left and `atoll join` it again", name)
		case slices.Contains(v1alpha1.ReservedClusterNames(), name):
			return nil, fmt.Errorf("the cluster name %s is reserved, because its users would get names that Atoll reserves: run `atoll leave %s` and join it under another name", name, name)
		}
	}
	return ask.Clusters, nil
}

func (p state) noSuchCluster(name string) error {
	var joined []string
	for _, c := range p.clusters {
		joined = append(joined, c.Name)
	}
	return names.NoSuchCluster(name, joined)
}

func (p state) cluster(name string) *v1alpha1.Cluster {
	for _, c := range p.clusters {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// shareOf returns the SharedAPI to change: the named one, or the one for exactly these
// groups. It returns nil if none exists.
func (p state) shareOf(ask Exposure) (*v1alpha1.SharedAPI, error) {
	var same []*v1alpha1.SharedAPI
	name := ask.Name
	if name == "" {
		for _, s := range p.shared {
			if s.DeletionTimestamp == nil && sameSet(s.Spec.Groups, ask.Groups) {
				same = append(same, s)
			}
		}
		name = ask.Groups[0]
	}
	switch i := slices.IndexFunc(same, func(s *v1alpha1.SharedAPI) bool { return s.Name == name }); {
	case i >= 0:
		return same[i], nil
	case len(same) == 1:
		return same[0], nil
	case len(same) > 1:
		return nil, fmt.Errorf("%d SharedAPIs expose exactly these groups (%s): select one with --name", len(same), names.List(namesOf(same)))
	}
	for _, s := range p.shared {
		switch {
		case s.Name != name:
		case s.DeletionTimestamp != nil:
			return nil, fmt.Errorf("SharedAPI %s is still being removed from %s: wait until it is gone, or use another --name", name, names.List(listedClusters(s)))
		case !sameSet(s.Spec.Groups, ask.Groups):
			return nil, fmt.Errorf("SharedAPI %s exposes %s: use another --name, or run `kubectl edit sharedapi %s`", name, names.List(s.Spec.Groups), name)
		default:
			return s, nil
		}
	}
	return nil, nil
}

// exposedBy returns the SharedAPI that exposes a group to a cluster.
func (p state) exposedBy(group, cluster string) *v1alpha1.SharedAPI {
	if c := p.cluster(cluster); c != nil {
		return v1alpha1.SharedWith(c, p.shared)[group]
	}
	return nil
}

// warnings returns the reasons why an exposure is allowed but does not take effect
// yet. waits is false if waiting is useless.
func (p state) warnings(c change) (doubts []string, waits bool) {
	waits = len(c.clusters) > 0
	if !waits {
		doubts = append(doubts, fmt.Sprintf("the selector (%s) matches no joined cluster; clusters that match later get the groups", labelsText(c.spec.ClusterSelector)))
	}
	if p.crds == nil {
		doubts = append(doubts, "you are not allowed to list CustomResourceDefinitions, so the existence of the groups was not checked")
	}
	for _, group := range c.groups {
		if p.crds != nil && !slices.Contains(p.defined(), group) {
			doubts = append(doubts, fmt.Sprintf("no CustomResourceDefinition has group %s%s; clusters serve the group once one exists (`kubectl get crds`)", group, names.DidYouMean(group, p.defined())))
			waits = false
		}
	}
	for _, name := range c.clusters {
		cluster := p.cluster(name)
		if ready := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady); ready != nil && ready.Status != metav1.ConditionTrue {
			doubts = append(doubts, fmt.Sprintf("cluster %s is not Ready (%s); it gets the groups when it is Ready", name, ready.Reason))
		}
	}
	return doubts, waits
}

// defined returns the groups of the CRDs.
func (p state) defined() []string {
	var out []string
	for _, crd := range p.crds {
		if _, group, ok := strings.Cut(crd, "."); ok {
			out = append(out, group)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func namesOf(all []*v1alpha1.SharedAPI) []string {
	var out []string
	for _, s := range all {
		out = append(out, s.Name)
	}
	return out
}

// listedClusters returns the clusters that may still serve groups of a SharedAPI.
func listedClusters(s *v1alpha1.SharedAPI) []string {
	var out []string
	for _, e := range s.Status.Clusters {
		out = append(out, e.Name)
	}
	return out
}
