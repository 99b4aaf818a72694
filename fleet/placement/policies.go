package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Target is what policies are chosen by.
type Target struct {
	schema.GroupKind
	Namespace, Name string
	Labels          map[string]string
	NamespaceLabels map[string]string
}

// Policies are all policies at one time, prepared for many questions. They do not
// change, and may be used by several at once.
type Policies struct {
	namespaced map[string][]*rule // in each, older ones first
	cluster    []*rule
	builtIn    *Policy
	Invalid    []Invalid

	mu     sync.Mutex
	pinned map[pin]*Policy
}

type pin struct {
	policy  *Policy
	cluster string
}

// Invalid is a policy that cannot be followed.
type Invalid struct {
	Reference v1alpha1.PolicyReference
	Namespace string
	Err       error
}

// rule is one policy with what it selects.
type rule struct {
	ref        v1alpha1.PolicyReference
	created    metav1.Time
	kinds      []string
	names      map[string]bool
	labels     labels.Selector
	namespaces labels.Selector
	policy     *Policy
	err        error
}

// NewPolicies reads all policies. Those that cannot be followed are in Invalid; what
// they select stays where it is. known, if not nil, has what earlier Policies
// compiled, which is taken over where nothing has changed.
func NewPolicies(namespaced []*v1alpha1.Placement, cluster []*v1alpha1.ClusterPlacement, known *Policies) *Policies {
	out := &Policies{namespaced: map[string][]*rule{}, pinned: map[pin]*Policy{}}
	compiled := known.compiled()
	if known != nil {
		out.builtIn = known.builtIn
	} else {
		out.builtIn = noPolicy()
	}
	for _, p := range namespaced {
		r := newRule(v1alpha1.PolicyReference{Kind: "Placement", Name: p.Name, UID: p.UID, Generation: p.Generation}, p.CreationTimestamp, &p.Spec, nil, compiled)
		out.namespaced[p.Namespace] = append(out.namespaced[p.Namespace], r)
		out.judge(r, p.Namespace)
	}
	for _, p := range cluster {
		r := newRule(v1alpha1.PolicyReference{Kind: "ClusterPlacement", Name: p.Name, UID: p.UID, Generation: p.Generation}, p.CreationTimestamp,
			&p.Spec.PlacementSpec, p.Spec.NamespaceSelector, compiled)
		out.cluster = append(out.cluster, r)
		out.judge(r, "")
	}
	older := func(a, b *rule) int {
		return cmp.Or(a.created.Compare(b.created.Time), cmp.Compare(a.ref.Name, b.ref.Name))
	}
	for _, rules := range out.namespaced {
		slices.SortFunc(rules, older)
	}
	slices.SortFunc(out.cluster, older)
	return out
}

func (p *Policies) judge(r *rule, namespace string) {
	if r.err != nil {
		p.Invalid = append(p.Invalid, Invalid{r.ref, namespace, r.err})
	}
}

func (p *Policies) compiled() map[v1alpha1.PolicyReference]*Policy {
	out := map[v1alpha1.PolicyReference]*Policy{}
	if p == nil {
		return out
	}
	all := slices.Concat(slices.Collect(maps.Values(p.namespaced))...)
	for _, r := range append(all, p.cluster...) {
		if r.policy != nil && r.ref.UID != "" {
			out[r.ref] = r.policy
		}
	}
	return out
}

func newRule(ref v1alpha1.PolicyReference, created metav1.Time, spec *v1alpha1.PlacementSpec, namespaces *metav1.LabelSelector,
	compiled map[v1alpha1.PolicyReference]*Policy) *rule {
	r := &rule{ref: ref, created: created, kinds: spec.Selector.Kinds}
	if len(spec.Selector.Names) > 0 {
		r.names = map[string]bool{}
		for _, name := range spec.Selector.Names {
			r.names[name] = true
		}
	}
	read := func(s *metav1.LabelSelector, field string) labels.Selector {
		if s == nil {
			return nil
		}
		out, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			// What it selects is not known, so it selects nothing.
			r.err = fmt.Errorf("spec.%s: %w", field, err)
			return labels.Nothing()
		}
		return out
	}
	r.labels = read(spec.Selector.LabelSelector, "selector.labelSelector")
	r.namespaces = read(namespaces, "namespaceSelector")
	if r.err != nil {
		return r
	}
	if r.policy = compiled[ref]; r.policy == nil {
		r.policy, r.err = Compile(spec)
	}
	return r
}

func (r *rule) selects(t *Target) bool {
	return ofKinds(r.kinds, t.Group, t.Kind) &&
		(r.names == nil || r.names[t.Name]) &&
		(r.labels == nil || r.labels.Matches(labels.Set(t.Labels))) &&
		(r.namespaces == nil || t.Namespace != "" && r.namespaces.Matches(labels.Set(t.NamespaceLabels)))
}

// ofKinds tells whether a kind is among those that a selector names: Deployment of
// any group, or Rollout.argoproj.io.
func ofKinds(kinds []string, group, kind string) bool {
	return len(kinds) == 0 || slices.ContainsFunc(kinds, func(k string) bool {
		name, ofGroup, qualified := strings.Cut(k, ".")
		return name == kind && (!qualified || ofGroup == group)
	})
}

// narrowness orders policies of one kind: the lower, the more specific.
func (r *rule) narrowness() int {
	n := 6
	switch {
	case r.names != nil:
		n = 0
	case r.labels != nil:
		n = 2
	case len(r.kinds) > 0:
		n = 4
	}
	if r.namespaces == nil {
		n++
	}
	return n
}

func (r *rule) why() string {
	what := "it selects everything"
	switch {
	case r.names != nil:
		what = "it names the object"
	case r.labels != nil:
		what = "it selects the object's labels"
	case len(r.kinds) > 0:
		what = "it selects the object's kind"
	}
	if r.namespaces != nil {
		what += " in such namespaces"
	}
	return what
}

// Choice is the policy that decides about one object.
type Choice struct {
	// Policy is never nil, unless Err says why the one that should decide cannot.
	Policy    *Policy
	Err       error
	Reference v1alpha1.PolicyReference
	// Explicit: a label of the object itself, or a policy that names it or its kind.
	// What otherwise goes where it is needed goes there too, then.
	Explicit bool
}

// Passed is a policy that selects an object and does not decide.
type Passed struct {
	Reference v1alpha1.PolicyReference
	Why       string
}

// For gives the policy that decides about an object: the most specific one, of
// equals the oldest. A label of the object, or else of its namespace, may name the
// cluster; all else is as the policy says.
func (p *Policies) For(t Target) Choice {
	won, tie := p.winner(&t)
	out := Choice{Policy: p.builtIn, Reference: v1alpha1.PolicyReference{Kind: v1alpha1.PolicyDefault, Why: "no policy selects the object"}}
	if won != nil {
		out.Reference, out.Policy, out.Err = won.ref, won.policy, won.err
		out.Reference.Why = p.because(won, tie)
		out.Explicit = won.names != nil || len(won.kinds) > 0
	}
	cluster, whose := t.Labels[v1alpha1.ClusterLabel], "object"
	out.Explicit = out.Explicit || cluster != ""
	if cluster == "" {
		cluster, whose = t.NamespaceLabels[v1alpha1.ClusterLabel], "namespace"
	}
	if cluster != "" && out.Policy != nil {
		out.Policy = p.pin(out.Policy, cluster)
		out.Reference.Why = fmt.Sprintf("the label %s of the %s names the cluster; for the rest, %s", v1alpha1.ClusterLabel, whose, out.Reference.Why)
	}
	return out
}

func (p *Policies) because(won, tie *rule) string {
	why := won.why()
	if won.ref.Kind == "ClusterPlacement" && won.ref.Name == v1alpha1.DefaultPlacementName {
		why = "no other policy selects the object"
	}
	if tie != nil {
		why += fmt.Sprintf("; so does %s, which is younger", tie.ref.Name)
		if won.created.Equal(&tie.created) {
			why = strings.TrimSuffix(why, "younger") + "as old and comes later by name"
		}
	}
	return why
}

func (p *Policies) pin(policy *Policy, cluster string) *Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pin{policy, cluster}
	if p.pinned[key] == nil {
		p.pinned[key] = policy.Pinned(cluster)
	}
	return p.pinned[key]
}

// winner gives the rule that decides, nil if there is none, and one that is as
// specific, if there is one.
func (p *Policies) winner(t *Target) (won, tie *rule) {
	if t.Namespace != "" {
		if won, tie = mostSpecific(p.namespaced[t.Namespace], t); won != nil {
			return won, tie
		}
	}
	if won, tie = mostSpecific(p.cluster, t); won != nil {
		return won, tie
	}
	for _, r := range p.cluster {
		if r.isDefault() && r.selects(t) {
			return r, nil
		}
	}
	return nil, nil
}

// isDefault: it comes after all others, whatever it selects.
func (r *rule) isDefault() bool {
	return r.ref.Kind == "ClusterPlacement" && r.ref.Name == v1alpha1.DefaultPlacementName
}

func mostSpecific(rules []*rule, t *Target) (won, tie *rule) {
	for _, r := range rules {
		if r.isDefault() || !r.selects(t) {
			continue
		}
		switch {
		case won == nil || r.narrowness() < won.narrowness():
			won, tie = r, nil
		case r.narrowness() == won.narrowness() && tie == nil:
			tie = r
		}
	}
	return won, tie
}

// PassedBy gives the policies that select an object and do not decide, each with
// the reason.
func (p *Policies) PassedBy(t Target) []Passed {
	won, _ := p.winner(&t)
	var out []Passed
	rules := p.cluster
	if t.Namespace != "" {
		rules = slices.Concat(p.namespaced[t.Namespace], p.cluster)
	}
	for _, r := range rules {
		if r == won || !r.selects(&t) {
			continue
		}
		why := fmt.Sprintf("%s, and %s %s is more specific", r.why(), won.ref.Kind, won.ref.Name)
		switch {
		case r.isDefault():
			why = "it decides only if no other policy selects the object"
		case r.ref.Kind != won.ref.Kind:
			why = fmt.Sprintf("a Placement in the namespace (%s) comes first", won.ref.Name)
		case r.narrowness() == won.narrowness():
			why = fmt.Sprintf("%s %s is as specific and older", won.ref.Kind, won.ref.Name)
		}
		out = append(out, Passed{r.ref, why})
	}
	return out
}

// LookInside tells whether any policy reads more of Clusters than their names,
// labels and taints.
func (p *Policies) LookInside() bool {
	inside := false
	for _, r := range append(slices.Concat(slices.Collect(maps.Values(p.namespaced))...), p.cluster...) {
		inside = inside || r.policy != nil && r.policy.inside
	}
	return inside
}
