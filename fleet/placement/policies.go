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

// PolicyTarget has the attributes of an object that policies select by.
type PolicyTarget struct {
	schema.GroupKind
	Namespace, Name string
	Labels          map[string]string
	NamespaceLabels map[string]string
	Following
}

// Policies is the set of all policies at one time, prepared for many lookups. It is immutable and
// safe for concurrent use.
type Policies struct {
	namespaced map[string][]*rule // by namespace, older ones first
	cluster    []*rule
	// overriding are those that have overrides alone, in the order in which they apply. Those of
	// ClusterPlacements are under "".
	overriding map[string][]*rule
	// editions are the policies with edits that not all objects follow. lazy has all contents of policies that change
	// lazily. Both are by namespace.
	editions map[string][]*edition
	lazy     map[string][]*rule
	bounds   []*bound // by the names of their ClusterPlacements
	builtIn  *Policy
	// Invalid are the policies whose current spec is invalid, in effect or not.
	Invalid []InvalidPolicy

	mu     sync.Mutex
	pinned map[pin]*Policy
	merges map[merged]*Policy
	// outOfBounds has what bounds exclude, of the clusters of boundFleet.
	boundFleet  *Fleet
	outOfBounds map[*bound]map[string]Obstacle
}

type pin struct {
	policy  *Policy
	cluster string
}

// InvalidPolicy is a policy that cannot be compiled.
type InvalidPolicy struct {
	Reference v1alpha1.PolicyReference
	Namespace string
	Err       error
}

// rule is a policy with its selector.
type rule struct {
	ref        v1alpha1.PolicyReference
	in         string   // namespace
	edition    *edition // nil if all objects follow this content
	suspends   bool
	created    metav1.Time
	kinds      []string
	names      map[string]bool
	labels     labels.Selector
	namespaces labels.Selector
	priority   int32
	policy     *Policy
	err        error
}

// NewPolicies compiles all policies. Those that do not compile are in Invalid, and the objects that
// they select stay where they are. known may be nil; otherwise its compiled policies are reused if
// they have not changed.
func NewPolicies(namespaced []*v1alpha1.Placement, cluster []*v1alpha1.ClusterPlacement, known *Policies) *Policies {
	out := &Policies{namespaced: map[string][]*rule{}, overriding: map[string][]*rule{}, editions: map[string][]*edition{}, lazy: map[string][]*rule{}, pinned: map[pin]*Policy{}, merges: map[merged]*Policy{}}
	compiled := known.compiled()
	if known != nil {
		out.builtIn = known.builtIn
	} else {
		out.builtIn = noPolicy()
	}
	for _, p := range namespaced {
		out.add(SubjectOf(p), compiled)
	}
	for _, p := range cluster {
		out.add(SubjectOfCluster(p), compiled)
	}
	slices.SortFunc(out.bounds, func(a, b *bound) int { return strings.Compare(a.ref.Name, b.ref.Name) })
	older := func(a, b *rule) int {
		return cmp.Or(a.created.Compare(b.created.Time), cmp.Compare(a.ref.Name, b.ref.Name))
	}
	for _, rules := range out.namespaced {
		slices.SortFunc(rules, older)
	}
	slices.SortFunc(out.cluster, older)
	for _, rules := range out.overriding {
		slices.SortFunc(rules, (*rule).before)
	}
	return out
}

// add adds the contents of a policy that are in effect.
func (p *Policies) add(s Subject, compiled map[v1alpha1.PolicyReference]*Policy) {
	contents, mode := s.InEffect()
	namespace, settled := s.Meta.Namespace, s.IsSettled()
	if s.Spec.Bounds != nil {
		b := newBound(&s)
		p.bounds = append(p.bounds, b)
		if b.err != nil {
			p.Invalid = append(p.Invalid, InvalidPolicy{b.ref, namespace, b.err})
		}
	}
	var e *edition
	if !settled {
		e = &edition{mode: mode}
		p.editions[namespace] = append(p.editions[namespace], e)
	}
	for i := range contents {
		c := &contents[i]
		r := s.rule(c, compiled)
		r.edition = e
		if e != nil {
			e.versions = append(e.versions, r)
		}
		if mode == v1alpha1.ChangeLazy || settled && c.Spec.Changes.Mode() == v1alpha1.ChangeLazy {
			p.lazy[namespace] = append(p.lazy[namespace], r)
		}
		if r.err != nil && c.Generation == s.Meta.Generation {
			p.Invalid = append(p.Invalid, InvalidPolicy{r.ref, namespace, r.err})
		}
		switch {
		case onlyBounds(&c.Spec):
		case onlyOverrides(&c.Spec.PlacementSpec):
			p.overriding[namespace] = append(p.overriding[namespace], r)
		case namespace != "":
			p.namespaced[namespace] = append(p.namespaced[namespace], r)
		default:
			p.cluster = append(p.cluster, r)
		}
	}
	if contents[len(contents)-1].Generation != s.Meta.Generation {
		if r := s.rule(&Content{Generation: s.Meta.Generation, Spec: s.Spec}, nil); r.err != nil {
			p.Invalid = append(p.Invalid, InvalidPolicy{r.ref, namespace, r.err})
		}
	}
}

func (s *Subject) rule(c *Content, compiled map[v1alpha1.PolicyReference]*Policy) *rule {
	r := newRule(v1alpha1.PolicyReference{Kind: s.Kind, Name: s.Meta.Name, UID: s.Meta.UID, Generation: c.Generation}, s.Meta.CreationTimestamp,
		&c.Spec.PlacementSpec, c.Spec.NamespaceSelector, compiled)
	r.in, r.suspends = s.Meta.Namespace, c.Spec.Suspend
	if c.Err != nil {
		r.err, r.policy = c.Err, nil
	}
	return r
}

func (p *Policies) all() []*rule {
	lists := append(slices.Collect(maps.Values(p.namespaced)), slices.Collect(maps.Values(p.overriding))...)
	return slices.Concat(append(lists, p.cluster)...)
}

// Has reports whether a policy exists.
func (p *Policies) Has(ref *v1alpha1.PolicyReference) bool {
	return slices.ContainsFunc(p.all(), func(r *rule) bool { return r.ref.Kind == ref.Kind && r.ref.Name == ref.Name && r.ref.UID == ref.UID })
}

func (p *Policies) compiled() map[v1alpha1.PolicyReference]*Policy {
	out := map[v1alpha1.PolicyReference]*Policy{}
	if p == nil {
		return out
	}
	for _, r := range p.all() {
		if r.policy != nil && r.ref.UID != "" {
			out[r.ref] = r.policy
		}
	}
	return out
}

func newRule(ref v1alpha1.PolicyReference, created metav1.Time, spec *v1alpha1.PlacementSpec, namespaces *metav1.LabelSelector,
	compiled map[v1alpha1.PolicyReference]*Policy) *rule {
	r := &rule{ref: ref, created: created, kinds: spec.Selector.Kinds, priority: spec.Priority}
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
			// An unknown selector selects nothing.
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
	if r.err == nil && ref.Kind == "ClusterPlacement" {
		if r.err = checkNamespaceOverrides(spec); r.err != nil {
			r.policy = nil
		}
	}
	return r
}

// selects reports whether the object follows this content, which selects it.
func (r *rule) selects(t *PolicyTarget) bool {
	return (r.edition == nil || r.edition.of(&t.Following) == r) && r.matches(t)
}

// matches reports whether the selectors match an object. Only policies that name their kind select Namespaces: a
// policy of everything means what runs in them.
func (r *rule) matches(t *PolicyTarget) bool {
	in, within := t.NamespaceLabels, t.Namespace != ""
	if isNamespace(t.GroupKind) {
		if len(r.kinds) == 0 {
			return false
		}
		in, within = t.Labels, true
	}
	return ofKinds(r.kinds, t.Group, t.Kind) &&
		(r.names == nil || r.names[t.Name]) &&
		(r.labels == nil || r.labels.Matches(labels.Set(t.Labels))) &&
		(r.namespaces == nil || within && r.namespaces.Matches(labels.Set(in)))
}

// ofKinds reports whether a selector names a kind: Deployment of any group, or Rollout.argoproj.io.
func ofKinds(kinds []string, group, kind string) bool {
	return len(kinds) == 0 || slices.ContainsFunc(kinds, func(k string) bool {
		name, ofGroup, qualified := strings.Cut(k, ".")
		return name == kind && (!qualified || ofGroup == group)
	})
}

// precedes orders policies of one kind that select the same object, apart from their age.
func (r *rule) precedes(o *rule) int {
	return cmp.Or(cmp.Compare(o.priority, r.priority), cmp.Compare(r.narrowness(), o.narrowness()))
}

// narrowness orders policies of one kind: a lower value is more specific.
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
		what += " in matching namespaces"
	}
	return what
}

// PolicyChoice is the policy that applies to one object.
type PolicyChoice struct {
	// Policy is nil only if Err is set: the policy that should apply is invalid.
	Policy    *Policy
	Err       error
	Reference v1alpha1.PolicyReference
	// Explicit: a label of the object itself chooses the clusters, or a policy that names it or its
	// kind. A follower is then placed by the policy, too.
	Explicit bool
	// OfKind: a label of the object itself chooses the clusters, or a policy that names its kind. A
	// policy that names only names means a workload; configuration of the same name may be elsewhere,
	// too.
	OfKind bool
	// Overriding are the policies that apply with their overrides alone, in their order.
	Overriding []v1alpha1.PolicyReference
	// Overrides is a policy with the overrides of Overriding and no others, nil if there are none.
	Overrides *Policy
	// Adopted are the later contents that the object follows, where others follow the active one.
	Adopted []v1alpha1.PolicyVersion
	// Lazy: a policy that changes lazily selects the object.
	Lazy bool
	// Bounds are the policies whose bounds are for the object.
	Bounds []v1alpha1.PolicyReference
}

// Equal reports whether two choices are of the same policies.
func (c *PolicyChoice) Equal(o *PolicyChoice) bool {
	return c.Reference == o.Reference && slices.Equal(c.Overriding, o.Overriding) && c.Lazy == o.Lazy && slices.Equal(c.Bounds, o.Bounds)
}

// OverruledPolicy is a policy that selects an object and does not apply.
type OverruledPolicy struct {
	Reference v1alpha1.PolicyReference
	Why       string
}

// For returns the policy that applies to an object: the one with the highest priority, of equals the most
// specific one, and then the oldest. A
// label of the object, or otherwise of its namespace, may set the cluster; everything else comes
// from the policy.
func (p *Policies) For(t PolicyTarget) PolicyChoice {
	won, tie := p.winner(&t)
	out := PolicyChoice{Policy: p.builtIn, Reference: v1alpha1.PolicyReference{Kind: v1alpha1.PolicyDefault, Why: "no policy selects the object"}, Bounds: p.boundsOf(&t)}
	if won != nil {
		out.Reference, out.Policy, out.Err = won.ref, won.policy, won.err
		out.Reference.Why = p.because(won, tie)
		out.OfKind = len(won.kinds) > 0
		out.Explicit = won.names != nil || out.OfKind
	}
	if beside := p.beside(&t); len(beside) > 0 && out.Err == nil {
		p.addOverrides(&out, won, beside)
	}
	if p.HasFollowing() {
		p.follow(&out, &t)
	}
	cluster, whose := t.Labels[v1alpha1.ClusterLabel], "object"
	out.Explicit, out.OfKind = out.Explicit || cluster != "", out.OfKind || cluster != ""
	if cluster == "" {
		cluster, whose = t.NamespaceLabels[v1alpha1.ClusterLabel], "namespace"
	}
	if cluster != "" && out.Policy != nil {
		out.Policy = p.pin(out.Policy, cluster)
		out.Reference.Why = fmt.Sprintf("the label %s of the %s sets the cluster; everything else: %s", v1alpha1.ClusterLabel, whose, out.Reference.Why)
	}
	return out
}

// addOverrides adds the overrides of policies that have nothing else. If one of them is invalid, nothing is known
// about what clusters are to get.
func (p *Policies) addOverrides(out *PolicyChoice, won *rule, beside []*rule) {
	for _, r := range beside {
		if r.err != nil {
			out.Policy, out.Err, out.Reference = nil, r.err, r.ref
			return
		}
		out.Overriding = append(out.Overriding, r.ref)
	}
	out.Policy, out.Overrides = p.merge(out.Policy, won, beside), p.merge(p.builtIn, nil, beside)
}

func (p *Policies) because(won, tie *rule) string {
	why := won.why()
	if won.ref.Kind == "ClusterPlacement" && won.ref.Name == v1alpha1.DefaultPlacementName {
		why = "no other policy selects the object"
	}
	if won.priority != 0 {
		why += fmt.Sprintf(", with priority %d", won.priority)
	}
	if tie != nil {
		why += fmt.Sprintf("; so does %s, which is newer", tie.ref.Name)
		if won.created.Equal(&tie.created) {
			why = strings.TrimSuffix(why, "newer") + "as old and later by name"
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

// winner returns the rule that applies, or nil, and another one that is as specific, if there is
// one.
func (p *Policies) winner(t *PolicyTarget) (won, tie *rule) {
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

// isDefault reports whether the rule is the default placement, which applies only after all others.
func (r *rule) isDefault() bool {
	return r.ref.Kind == "ClusterPlacement" && r.ref.Name == v1alpha1.DefaultPlacementName
}

func mostSpecific(rules []*rule, t *PolicyTarget) (won, tie *rule) {
	for _, r := range rules {
		if r.isDefault() || !r.selects(t) {
			continue
		}
		switch {
		case won == nil || r.precedes(won) < 0:
			won, tie = r, nil
		case r.precedes(won) == 0 && tie == nil:
			tie = r
		}
	}
	return won, tie
}

// Overruled returns the policies that select an object and do not apply, with the reasons.
func (p *Policies) Overruled(t PolicyTarget) []OverruledPolicy {
	won, _ := p.winner(&t)
	var out []OverruledPolicy
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
			why = "it applies only if no other policy selects the object"
		case r.ref.Kind != won.ref.Kind:
			why = fmt.Sprintf("a Placement in the namespace (%s) takes precedence", won.ref.Name)
		case r.priority < won.priority:
			why = fmt.Sprintf("%s %s has the higher priority (%d, this one %d)", won.ref.Kind, won.ref.Name, won.priority, r.priority)
		case r.narrowness() == won.narrowness():
			why = fmt.Sprintf("%s %s is as specific and older", won.ref.Kind, won.ref.Name)
		}
		out = append(out, OverruledPolicy{r.ref, why})
	}
	return out
}

// ReadClusterObjects reports whether any policy reads more of Clusters than their names, labels and
// taints.
func (p *Policies) ReadClusterObjects() bool {
	inside := false
	for _, r := range p.all() {
		inside = inside || r.policy != nil && r.policy.readsObject
	}
	for _, b := range p.bounds {
		inside = inside || b.clusters.readsObject()
	}
	return inside
}
