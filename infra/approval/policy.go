package approval

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Policy is a parsed SyncPolicy or ClusterSyncPolicy. Two parsed policies are the same if their pointers are. A
// nil Policy stands for resources without one.
type Policy struct {
	Name string
	// Cluster is true for a ClusterSyncPolicy.
	Cluster bool
	Created time.Time
	Spec    *v1alpha1.SyncPolicySpec
	// Invalid says why the policy cannot be followed, if it cannot. Users then have to approve.
	Invalid error
	// selector is nil if the policy has none; namespaces is the selector of a ClusterSyncPolicy.
	selector   labels.Selector
	namespaces labels.Selector
	rules      []rule
}

// String returns the policy's kind and name for messages.
func (p *Policy) String() string {
	if p == nil {
		return "no policy"
	}
	if p.Cluster {
		return "ClusterSyncPolicy " + p.Name
	}
	return "SyncPolicy " + p.Name
}

// Auto reports whether the policy applies approved plans automatically.
func (p *Policy) Auto() bool {
	return p != nil && p.Invalid == nil && p.Spec.Mode == v1alpha1.SyncAuto
}

// required returns how many users have to approve, and whether the plan's author counts. Without a policy,
// that is any one user.
func (p *Policy) required() (persons int, author bool) {
	if p == nil {
		return 1, true
	}
	a := p.Spec.Approval
	persons, author = 1, true
	if a.Required != nil {
		persons = int(*a.Required)
	}
	if a.AllowAuthor != nil {
		author = *a.AllowAuthor
	}
	return persons, author
}

// ExcludesAuthors reports whether the approvals of a plan's authors do not count.
func (p *Policy) ExcludesAuthors() bool {
	_, author := p.required()
	return !author
}

// specificity ranks policies by how narrowly they select: the higher takes precedence.
func (p *Policy) specificity() int {
	switch {
	case p.selector != nil:
		return 2
	case len(p.Spec.Providers) > 0:
		return 1
	}
	return 0
}

// selects reports whether the policy selects an object with these labels of a Provider.
func (p *Policy) selects(set labels.Set, provider string) bool {
	return (p.selector == nil || p.selector.Matches(set)) && (len(p.Spec.Providers) == 0 || slices.Contains(p.Spec.Providers, provider))
}

// AppliesTo reports whether the policy applies to a subject.
func (p *Policy) AppliesTo(subject v1alpha1.SyncSubject) bool {
	if len(p.Spec.AppliesTo) == 0 {
		return subject == v1alpha1.SyncInfrastructure
	}
	return slices.Contains(p.Spec.AppliesTo, subject)
}

// Parse parses and validates a policy.
func Parse(meta *metav1.ObjectMeta, spec *v1alpha1.SyncPolicySpec, cluster bool, namespaces *metav1.LabelSelector) *Policy {
	p := &Policy{Name: meta.Name, Cluster: cluster, Created: meta.CreationTimestamp.Time, Spec: spec, namespaces: labels.Everything()}
	var err error
	if spec.Selector != nil {
		if p.selector, err = metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
			p.Invalid = fmt.Errorf("spec.selector: %w", err)
			p.selector = labels.Everything()
		}
	}
	if namespaces != nil {
		if p.namespaces, err = metav1.LabelSelectorAsSelector(namespaces); err != nil {
			p.Invalid = fmt.Errorf("spec.namespaces: %w", err)
			p.namespaces = labels.Everything()
		}
	}
	for i, w := range spec.Windows {
		if _, err := parseWindow(w); err != nil {
			p.Invalid = fmt.Errorf("spec.windows[%d].%w", i, err)
		}
	}
	for i, auto := range spec.Approval.Auto {
		program, err := compileRule(auto.Expression)
		if err != nil {
			p.Invalid = fmt.Errorf("spec.approval.auto[%d].expression (%s): %w", i, auto.Name, err)
		}
		p.rules = append(p.rules, rule{name: auto.Name, program: program})
	}
	return p
}

// WithSubject returns the policies that apply to a subject.
func WithSubject(all []*Policy, of v1alpha1.SyncSubject) []*Policy {
	return slices.DeleteFunc(slices.Clone(all), func(p *Policy) bool { return !p.AppliesTo(of) })
}

// Rank returns the policies that apply to a namespace, highest precedence first.
func Rank(all []*Policy, namespace labels.Set) []*Policy {
	var out []*Policy
	for _, p := range all {
		if !p.Cluster || p.namespaces.Matches(namespace) {
			out = append(out, p)
		}
	}
	rank := func(cluster bool) int {
		if cluster {
			return 1
		}
		return 0
	}
	slices.SortFunc(out, func(a, b *Policy) int {
		return cmp.Or(
			-cmp.Compare(a.specificity(), b.specificity()),
			cmp.Compare(rank(a.Cluster), rank(b.Cluster)),
			a.Created.Compare(b.Created),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return out
}

// Effective returns the first of the ranked policies that selects an object, or nil.
func Effective(ranked []*Policy, set labels.Set, provider string) *Policy {
	for _, p := range ranked {
		if p.selects(set, provider) {
			return p
		}
	}
	return nil
}

// EffectiveOnAll returns the policies that select an object with any of these sets of labels. A nil policy
// stands for none. The sets are those that the object has and had: whoever changes a label along with the
// spec needs the approvals of both policies.
func EffectiveOnAll(ranked []*Policy, sets []labels.Set, provider string) []*Policy {
	var out []*Policy
	for _, set := range sets {
		if one := Effective(ranked, set, provider); !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out
}

// Single returns the policy that applies to all objects of a namespace, if there is one. Then the
// contents of a plan need not be read.
func Single(ranked []*Policy) (*Policy, bool) {
	if len(ranked) == 0 {
		return nil, true
	}
	return ranked[0], ranked[0].specificity() == 0
}

// RequiresPlan reports whether workloads with these labels change only by applied plans, under the ranked
// policies that apply to workloads. With nil labels, it reports whether any do.
func RequiresPlan(ranked []*Policy, set labels.Set) bool {
	if set == nil {
		return slices.ContainsFunc(ranked, func(p *Policy) bool { return !p.Auto() && len(p.Spec.Providers) == 0 })
	}
	p := Effective(ranked, set, "")
	return p != nil && !p.Auto()
}

// Label returns the policy's kind and name as the value of a label.
func (p *Policy) Label() string {
	kind := "namespace."
	if p.Cluster {
		kind = "cluster."
	}
	name := kind + p.Name
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-.")
	}
	return name
}

// minDriftInterval is the least time between two drift checks.
const minDriftInterval = time.Minute

// DriftInterval returns the time between two drift checks, or 0 if the policy wants none.
func (p *Policy) DriftInterval() time.Duration {
	if p.Spec.DriftInterval == nil || p.Spec.DriftInterval.Duration <= 0 {
		return 0
	}
	return max(p.Spec.DriftInterval.Duration, minDriftInterval)
}
