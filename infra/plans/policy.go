package plans

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// policy is a parsed SyncPolicy or ClusterSyncPolicy.
type policy struct {
	name    string
	cluster bool
	created time.Time
	spec    *v1alpha1.SyncPolicySpec
	// selector is nil if the policy has none; namespaces is the selector of a ClusterSyncPolicy.
	selector   labels.Selector
	namespaces labels.Selector
	// invalid says why the policy cannot be followed, if it cannot. Users then have to approve.
	invalid error
	rules   []rule
}

// String returns the policy's kind and name for messages.
func (p *policy) String() string {
	if p == nil {
		return "no policy"
	}
	if p.cluster {
		return "ClusterSyncPolicy " + p.name
	}
	return "SyncPolicy " + p.name
}

// auto reports whether the policy applies approved plans automatically.
func (p *policy) auto() bool {
	return p != nil && p.invalid == nil && p.spec.Mode == v1alpha1.SyncAuto
}

// required returns how many users have to approve, and whether the plan's author counts. Without a policy,
// that is any one user.
func (p *policy) required() (persons int, author bool) {
	if p == nil {
		return 1, true
	}
	a := p.spec.Approval
	persons, author = 1, true
	if a.Required != nil {
		persons = int(*a.Required)
	}
	if a.AllowAuthor != nil {
		author = *a.AllowAuthor
	}
	return persons, author
}

// specificity ranks policies by how narrowly they select: the higher takes precedence.
func (p *policy) specificity() int {
	switch {
	case p.selector != nil:
		return 2
	case len(p.spec.Providers) > 0:
		return 1
	}
	return 0
}

func (p *policy) selects(set labels.Set, provider string) bool {
	return (p.selector == nil || p.selector.Matches(set)) && (len(p.spec.Providers) == 0 || slices.Contains(p.spec.Providers, provider))
}

// appliesTo reports whether the policy applies to a subject.
func (p *policy) appliesTo(subject v1alpha1.SyncSubject) bool {
	if len(p.spec.AppliesTo) == 0 {
		return subject == v1alpha1.SyncInfrastructure
	}
	return slices.Contains(p.spec.AppliesTo, subject)
}

// parsePolicy parses and validates a policy.
func parsePolicy(meta *metav1.ObjectMeta, spec *v1alpha1.SyncPolicySpec, cluster bool, namespaces *metav1.LabelSelector) *policy {
	p := &policy{name: meta.Name, cluster: cluster, created: meta.CreationTimestamp.Time, spec: spec, namespaces: labels.Everything()}
	var err error
	if spec.Selector != nil {
		if p.selector, err = metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
			p.invalid = fmt.Errorf("spec.selector: %w", err)
			p.selector = labels.Everything()
		}
	}
	if namespaces != nil {
		if p.namespaces, err = metav1.LabelSelectorAsSelector(namespaces); err != nil {
			p.invalid = fmt.Errorf("spec.namespaces: %w", err)
			p.namespaces = labels.Everything()
		}
	}
	for i, w := range spec.Windows {
		if _, err := parseWindow(w); err != nil {
			p.invalid = fmt.Errorf("spec.windows[%d].%w", i, err)
		}
	}
	for i, auto := range spec.Approval.Auto {
		program, err := compileRule(auto.Expression)
		if err != nil {
			p.invalid = fmt.Errorf("spec.approval.auto[%d].expression (%s): %w", i, auto.Name, err)
		}
		p.rules = append(p.rules, rule{name: auto.Name, program: program})
	}
	return p
}

// withSubject returns the policies that apply to a subject.
func withSubject(all []*policy, of v1alpha1.SyncSubject) []*policy {
	return slices.DeleteFunc(slices.Clone(all), func(p *policy) bool { return !p.appliesTo(of) })
}

// rankPolicies returns the policies that apply to a namespace, highest precedence first.
func rankPolicies(all []*policy, namespace labels.Set) []*policy {
	var out []*policy
	for _, p := range all {
		if !p.cluster || p.namespaces.Matches(namespace) {
			out = append(out, p)
		}
	}
	rank := func(cluster bool) int {
		if cluster {
			return 1
		}
		return 0
	}
	slices.SortFunc(out, func(a, b *policy) int {
		return cmp.Or(
			-cmp.Compare(a.specificity(), b.specificity()),
			cmp.Compare(rank(a.cluster), rank(b.cluster)),
			a.created.Compare(b.created),
			cmp.Compare(a.name, b.name),
		)
	})
	return out
}

// effectivePolicy returns the first of the ranked policies that selects an object, or nil.
func effectivePolicy(ranked []*policy, set labels.Set, provider string) *policy {
	for _, p := range ranked {
		if p.selects(set, provider) {
			return p
		}
	}
	return nil
}

// singlePolicy returns the policy that applies to all objects of a namespace, if there is one. Then the
// contents of a plan need not be read.
func singlePolicy(ranked []*policy) (*policy, bool) {
	if len(ranked) == 0 {
		return nil, true
	}
	return ranked[0], ranked[0].specificity() == 0
}
