package placement

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Policy is a compiled PlacementSpec. It is immutable.
type Policy struct {
	spec              v1alpha1.PlacementSpec
	clusters          *selector
	groups            []*selector // in their order, instead of clusters
	pinned            string      // the cluster that a label sets, instead of clusters
	affinity          []preference
	affinityTerms     []Term
	antiAffinityTerms []Term
	spread            []constraint
	least             int // clusters
	most              int
	by                v1alpha1.DivisionBy
	weights           []preference
	fixed             []fixed
	changes           []change
	// notReady is how long the policy tolerates an unreachable cluster; negative means for ever, and
	// nil leaves it to the cluster.
	notReady    *time.Duration
	readsObject bool     // it reads complete Clusters
	named       []string // all clusters that selectors name
}

type preference struct {
	*selector
	weight int32
}

// Term is a compiled WorkloadTerm.
type Term struct {
	selects    labels.Selector
	namespaces []string
	in         labels.Selector // selects namespaces; nil if the term does not
	key        string
	weight     int32 // 0: required
}

// Selects reports whether the term of an object's policy selects another object.
func (t *Term) Selects(own, namespace string, namespaceLabels func(string) map[string]string, labelSet map[string]string) bool {
	if !t.selects.Matches(labels.Set(labelSet)) {
		return false
	}
	if !t.IsWide() {
		return namespace == own
	}
	return slices.Contains(t.namespaces, namespace) || t.in != nil && namespace != "" && t.in.Matches(labels.Set(namespaceLabels(namespace)))
}

// IsWide reports whether a term selects objects of other namespaces.
func (t *Term) IsWide() bool { return len(t.namespaces) > 0 || t.in != nil }

type constraint struct {
	key         string
	least, most int
	skew        int32 // 0: unlimited
}

// fixed is an override of a share; change is an override of the object's content.
type fixed struct {
	*selector
	kinds    []string
	replicas int32
	from     v1alpha1.PolicyReference // empty: of the policy itself
}

type change struct {
	*selector
	kinds []string
	v1alpha1.Override
	from v1alpha1.PolicyReference
}

const noLimit = 1 << 30

// Compile compiles a policy. The error names the field and the remedy.
func Compile(spec *v1alpha1.PlacementSpec) (*Policy, error) {
	p := &Policy{spec: *spec, most: noLimit, by: v1alpha1.DivideEven}
	var err error
	if p.clusters, err = compileSelector(spec.Clusters); err != nil {
		return nil, fmt.Errorf("spec.clusters.%w", err)
	}
	for i := range spec.ClusterGroups {
		s, err := compileSelector(&spec.ClusterGroups[i].Clusters)
		if err != nil {
			return nil, fmt.Errorf("spec.clusterGroups[%d].clusters.%w", i, err)
		}
		p.groups = append(p.groups, s)
	}
	for i, a := range spec.Affinity {
		s, err := compileSelector(&a.Clusters)
		if err != nil {
			return nil, fmt.Errorf("spec.affinity[%d].clusters.%w", i, err)
		}
		p.affinity = append(p.affinity, preference{s, a.Weight})
	}
	if p.affinityTerms, err = compileTerms(spec.WorkloadAffinity); err != nil {
		return nil, fmt.Errorf("spec.workloadAffinity%w", err)
	}
	if p.antiAffinityTerms, err = compileTerms(spec.WorkloadAntiAffinity); err != nil {
		return nil, fmt.Errorf("spec.workloadAntiAffinity%w", err)
	}
	p.compileCounts()
	if err := p.compileDivision(); err != nil {
		return nil, err
	}
	if err := errors.Join(checkApplicationFailover(spec), checkConsolidation(spec)); err != nil {
		return nil, err
	}
	if err := p.compileOverrides(); err != nil {
		return nil, err
	}
	p.notReady = tolerates(spec.Tolerations)
	p.readsObject = p.usesObject()
	p.named = namedClusters(spec)
	return p, nil
}

func namedClusters(spec *v1alpha1.PlacementSpec) (names []string) {
	add := func(s *v1alpha1.ClusterSelector) {
		if s != nil {
			names = append(names, s.Names...)
		}
	}
	add(spec.Clusters)
	for i := range spec.ClusterGroups {
		add(&spec.ClusterGroups[i].Clusters)
	}
	for i := range spec.Affinity {
		add(&spec.Affinity[i].Clusters)
	}
	if spec.Division != nil {
		for i := range spec.Division.Weights {
			add(&spec.Division.Weights[i].Clusters)
		}
	}
	for i := range spec.Overrides {
		add(spec.Overrides[i].Clusters)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func compileTerms(terms []v1alpha1.WorkloadTerm) (out []Term, err error) {
	for i, t := range terms {
		s, err := metav1.LabelSelectorAsSelector(&t.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("[%d].labelSelector: %w", i, err)
		}
		c := Term{selects: s, namespaces: t.Namespaces, key: topologyKey(t.TopologyKey)}
		if t.NamespaceSelector != nil {
			if c.in, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
				return nil, fmt.Errorf("[%d].namespaceSelector: %w", i, err)
			}
		}
		if t.Weight != nil {
			c.weight = *t.Weight
		}
		out = append(out, c)
	}
	return out, nil
}

func (p *Policy) compileCounts() {
	for _, s := range p.spec.Spread {
		c := constraint{key: topologyKey(s.TopologyKey), most: noLimit}
		if s.MinGroups != nil {
			c.least = int(*s.MinGroups)
		}
		if s.MaxGroups != nil {
			c.most = int(*s.MaxGroups)
		}
		if s.MaxSkew != nil {
			c.skew = *s.MaxSkew
		}
		p.spread = append(p.spread, c)
	}
	if c := p.spec.ClusterCount; c != nil && c.Min != nil {
		p.least = int(*c.Min)
	}
	if c := p.spec.ClusterCount; c != nil && c.Max != nil {
		p.most = int(*c.Max)
	}
}

func (p *Policy) compileDivision() error {
	d := p.spec.Division
	if d == nil {
		return nil
	}
	if d.By != "" {
		p.by = d.By
	}
	for i, w := range d.Weights {
		s, err := compileSelector(&w.Clusters)
		if err != nil {
			return fmt.Errorf("spec.division.weights[%d].clusters.%w", i, err)
		}
		p.weights = append(p.weights, preference{s, w.Weight})
	}
	return nil
}

func (p *Policy) compileOverrides() error {
	for i, o := range p.spec.Overrides {
		s, err := compileSelector(o.Clusters)
		if err != nil {
			return fmt.Errorf("spec.overrides[%d].clusters.%w", i, err)
		}
		for j, op := range o.JSONPatch {
			if needsValue(op.Op) && op.Value == nil {
				return fmt.Errorf("spec.overrides[%d].jsonPatch[%d]: operation %s requires a value", i, j, op.Op)
			}
		}
		for j := range o.Text {
			for n, op := range o.Text[j].JSONPatch {
				if needsValue(op.Op) && op.Value == nil {
					return fmt.Errorf("spec.overrides[%d].text[%d].jsonPatch[%d]: operation %s requires a value", i, j, n, op.Op)
				}
			}
		}
		if o.Replicas != nil {
			p.fixed = append(p.fixed, fixed{selector: s, kinds: o.Kinds, replicas: *o.Replicas})
		}
		if len(o.Images)+len(o.Env)+len(o.JSONPatch)+len(o.Text) > 0 {
			p.changes = append(p.changes, change{selector: s, kinds: o.Kinds, Override: o.Override})
		}
	}
	return nil
}

func needsValue(operation string) bool {
	return slices.Contains([]string{"add", "replace", "test"}, operation)
}

// tolerates returns how long tolerations allow a cluster to be not Ready.
func tolerates(tolerations []v1alpha1.Toleration) *time.Duration {
	var out *time.Duration
	for i := range tolerations {
		t := &tolerations[i]
		if !t.Tolerates(&v1alpha1.Taint{Key: v1alpha1.TaintNotReady, Effect: v1alpha1.TaintNoExecute}) {
			continue
		}
		if t.TolerationSeconds == nil {
			ever := time.Duration(-1)
			return &ever
		}
		if d := time.Duration(*t.TolerationSeconds) * time.Second; out == nil || d > *out {
			out = &d
		}
	}
	return out
}

func (p *Policy) usesObject() bool {
	inside := p.clusters.readsObject() || slices.ContainsFunc(p.groups, (*selector).readsObject)
	for _, list := range [][]preference{p.affinity, p.weights} {
		for _, a := range list {
			inside = inside || a.readsObject()
		}
	}
	for _, o := range p.fixed {
		inside = inside || o.readsObject()
	}
	for _, o := range p.changes {
		inside = inside || o.readsObject()
	}
	return inside
}

// Pinned returns the policy with another choice of clusters: the one that a label names. Everything
// else stays.
func (p *Policy) Pinned(cluster string) *Policy {
	out := *p
	out.pinned, out.clusters, out.groups, out.spread, out.affinity = cluster, nil, nil, nil, nil
	out.affinityTerms, out.antiAffinityTerms, out.least, out.most = nil, nil, 0, 1
	out.readsObject = out.usesObject()
	return &out
}

func (p *Policy) selects(c *Cluster, object func() map[string]any) bool {
	if p.pinned != "" {
		return c.Name == p.pinned
	}
	return p.groupOf(c, object) >= 0 && p.clusters.selects(c, object)
}

// groupOf returns the position of the group of a cluster, 0 if the policy has no groups, and -1 if none selects it.
func (p *Policy) groupOf(c *Cluster, object func() map[string]any) int32 {
	if len(p.groups) == 0 {
		return 0
	}
	return int32(slices.IndexFunc(p.groups, func(s *selector) bool { return s.selects(c, object) }))
}

func (p *Policy) unselected(c *Cluster, object func() map[string]any) string {
	if p.pinned != "" {
		return "the label " + v1alpha1.ClusterLabel + " sets cluster " + p.pinned
	}
	if len(p.groups) > 0 {
		return "no group of the policy selects it"
	}
	return "the policy does not select it" + because(p.clusters.against(c, object))
}

// Suspended reports whether decisions are withheld from the clusters.
func (p *Policy) Suspended() bool { return p.spec.Suspend }

// Drift returns the policy for changes that are made in a cluster.
func (p *Policy) Drift() v1alpha1.DriftPolicy { return p.spec.Drift }

// Dependencies returns whether the dependencies of objects follow them; empty means that they do.
func (p *Policy) Dependencies() v1alpha1.DependencyPolicy { return p.spec.Dependencies }

// Keeps reports whether objects stay where they are when the policy is deleted.
func (p *Policy) Keeps() bool { return p.spec.OnDeletion == v1alpha1.DeletionKeeps }

// Configuration returns where the configuration of namespaces goes; empty if the policy does not say.
func (p *Policy) Configuration() v1alpha1.ConfigurationScope { return p.spec.Configuration }

// Terms returns the terms of workload affinity and anti-affinity.
func (p *Policy) Terms() (near, apart []Term) { return p.affinityTerms, p.antiAffinityTerms }

// Overrides returns the content overrides of a kind in the given clusters: a list of all that
// apply, and for each cluster the positions of its own.
func (p *Policy) Overrides(f *Fleet, group, kind string, clusters []string) ([]v1alpha1.Override, map[string][]int32) {
	var list []v1alpha1.Override
	where := map[string][]int32{}
	for _, c := range p.changes {
		if !ofKinds(c.kinds, group, kind) {
			continue
		}
		applies := false
		for _, name := range clusters {
			i, ok := f.index[name]
			if ok && c.selects(&f.clusters[i], f.object(i)) {
				where[name] = append(where[name], int32(len(list)))
				applies = true
			}
		}
		if applies {
			list = append(list, c.Override)
		}
	}
	return list, where
}

func topologyKey(key string) string {
	switch key {
	case "region":
		return v1alpha1.TopologyRegion
	case "zone":
		return v1alpha1.TopologyZone
	}
	return key
}

// Mode returns the mode of the policy, or "" if it leaves that to the kind.
func (p *Policy) Mode() v1alpha1.PlacementMode { return p.spec.Mode }

// NeedsSeveral reports whether the policy requires more than one cluster. A nil policy does not.
func (p *Policy) NeedsSeveral() bool {
	return p != nil && (p.least > 1 || slices.ContainsFunc(p.spread, func(c constraint) bool { return c.least > 1 }))
}

// ByCapacity reports whether the division of replicas depends on free capacity.
func (p *Policy) ByCapacity() bool {
	return p.by == v1alpha1.DivideCapacity || p.by == v1alpha1.DivideFewest
}
