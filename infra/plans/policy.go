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

// policy is a SyncPolicy or ClusterSyncPolicy, read.
type policy struct {
	name    string
	cluster bool
	created time.Time
	spec    *v1alpha1.SyncPolicySpec
	// selector is nil if there is none; namespaces are those of a ClusterSyncPolicy.
	selector   labels.Selector
	namespaces labels.Selector
	// broken says why it cannot be followed, if it cannot. Then it asks for the approval of persons.
	broken error
	rules  []rule
}

// String names it to people.
func (p *policy) String() string {
	if p == nil {
		return "no policy"
	}
	if p.cluster {
		return "ClusterSyncPolicy " + p.name
	}
	return "SyncPolicy " + p.name
}

// auto tells whether the policy carries out what may be.
func (p *policy) auto() bool {
	return p != nil && p.broken == nil && p.spec.Mode == v1alpha1.SyncAuto
}

// required is how many persons have to approve of what the policy is about, and whether its author counts. Without
// a policy it is one, whoever.
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

// specific is how closely a policy looks: the higher comes first.
func (p *policy) specific() int {
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

// about tells whether the policy is about that.
func (p *policy) about(subject v1alpha1.SyncSubject) bool {
	if len(p.spec.AppliesTo) == 0 {
		return subject == v1alpha1.SyncInfrastructure
	}
	return slices.Contains(p.spec.AppliesTo, subject)
}

// readPolicy reads one.
func readPolicy(meta *metav1.ObjectMeta, spec *v1alpha1.SyncPolicySpec, cluster bool, namespaces *metav1.LabelSelector) *policy {
	p := &policy{name: meta.Name, cluster: cluster, created: meta.CreationTimestamp.Time, spec: spec, namespaces: labels.Everything()}
	var err error
	if spec.Selector != nil {
		if p.selector, err = metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
			p.broken = fmt.Errorf("spec.selector: %w", err)
			p.selector = labels.Everything()
		}
	}
	if namespaces != nil {
		if p.namespaces, err = metav1.LabelSelectorAsSelector(namespaces); err != nil {
			p.broken = fmt.Errorf("spec.namespaces: %w", err)
			p.namespaces = labels.Everything()
		}
	}
	for i, w := range spec.Windows {
		if _, err := readWindow(w); err != nil {
			p.broken = fmt.Errorf("spec.windows[%d].%w", i, err)
		}
	}
	for i, auto := range spec.Approval.Auto {
		program, err := compileRule(auto.Expression)
		if err != nil {
			p.broken = fmt.Errorf("spec.approval.auto[%d].expression (%s): %w", i, auto.Name, err)
		}
		p.rules = append(p.rules, rule{name: auto.Name, program: program})
	}
	return p
}

// subjectTo are those that are about one.
func subjectTo(all []*policy, of v1alpha1.SyncSubject) []*policy {
	return slices.DeleteFunc(slices.Clone(all), func(p *policy) bool { return !p.about(of) })
}

// ranked are the policies that hold in a namespace, the one that comes first first.
func ranked(all []*policy, namespace labels.Set) []*policy {
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
			-cmp.Compare(a.specific(), b.specific()),
			cmp.Compare(rank(a.cluster), rank(b.cluster)),
			a.created.Compare(b.created),
			cmp.Compare(a.name, b.name),
		)
	})
	return out
}

// governing gives the policy that holds for an object, or nil: of those that select it, the first of the ranked.
func governing(ranked []*policy, set labels.Set, provider string) *policy {
	for _, p := range ranked {
		if p.selects(set, provider) {
			return p
		}
	}
	return nil
}

// uniform tells whether all objects of the namespace have the same policy, and gives it: then
// nobody has to look at what a plan is about.
func uniform(ranked []*policy) (*policy, bool) {
	if len(ranked) == 0 {
		return nil, true
	}
	return ranked[0], ranked[0].specific() == 0
}
