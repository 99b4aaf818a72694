package reach

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// scope is what a list or a watch asks for.
type scope struct {
	resource       string
	namespace      string // "" is all
	labels, fields string
	// of is what the sources belong to, if a merger has those of several APIs.
	of string
}

// query is a scope, parsed: what Atoll judges itself, and what a cluster is asked.
type query struct {
	scope
	kind     kind
	clusters labels.Selector // of ClusterLabel
	judged   fields.Selector // of the fields that Atoll changes
	// member are the selectors for a cluster, without these.
	memberLabels labels.Selector
	memberFields fields.Selector
}

// queryOf returns a query without selectors.
func queryOf(k kind, namespace string) query {
	return query{scope: scope{resource: k.resource, namespace: namespace}, kind: k,
		clusters: labels.Everything(), judged: fields.Everything(), memberLabels: labels.Everything(), memberFields: fields.Everything()}
}

func parseQuery(k kind, namespace string, o metav1.ListOptions) (q query, err error) {
	q = queryOf(k, namespace)
	q.labels, q.fields = o.LabelSelector, o.FieldSelector
	all, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return q, err
	}
	requirements, selectable := all.Requirements()
	if !selectable {
		q.clusters, q.memberLabels = labels.Nothing(), labels.Nothing()
	}
	for _, r := range requirements {
		if r.Key() == v1alpha1.ClusterLabel {
			q.clusters = q.clusters.Add(r)
		} else {
			q.memberLabels = q.memberLabels.Add(r)
		}
	}
	byField, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return q, err
	}
	var judged, others []fields.Selector
	for _, r := range byField.Requirements() {
		term := fields.OneTermEqualSelector(r.Field, r.Value)
		if r.Operator == selection.NotEquals {
			term = fields.OneTermNotEqualSelector(r.Field, r.Value)
		}
		if k.isJudged(r.Field) {
			judged = append(judged, term)
		} else {
			others = append(others, term)
		}
	}
	q.judged, q.memberFields = fields.AndSelectors(judged...), fields.AndSelectors(others...)
	return q, nil
}

// node returns the one node that a query selects by a field, as Atoll shows its name.
func (q query) node() (name, field string, exact bool) {
	for _, field := range []string{nodeField, nameField} {
		if name, exact := q.judged.RequiresExactMatch(field); exact && q.kind.isJudged(field) {
			return name, field, true
		}
	}
	return "", "", false
}

// concerns reports whether objects of a cluster can match.
func (q query) concerns(cluster string) bool {
	if !q.clusters.Matches(labels.Set{v1alpha1.ClusterLabel: cluster}) {
		return false
	}
	node, _, exact := q.node()
	return !exact || strings.HasPrefix(node, cluster+".")
}

// covers reports whether an object is in the namespace of a query. The user may not be allowed to read another one, with which
// a cluster could answer.
func (q query) covers(obj object) bool { return q.namespace == "" || obj.GetNamespace() == q.namespace }

// options returns what a cluster is asked.
func (q query) options(cluster string) metav1.ListOptions {
	selector := q.memberFields
	if node, field, exact := q.node(); exact {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector(field, ownNodeName(cluster, node)))
	}
	return metav1.ListOptions{LabelSelector: q.memberLabels.String(), FieldSelector: selector.String()}
}

// matches reports whether an object, as Atoll shows it, matches what the cluster was not asked.
func (q query) matches(obj object) bool {
	return q.judged.Matches(fields.Set(q.kind.fieldsOf(obj)))
}

// only restricts a query to objects of one name, so that clusters that cannot have it are not asked.
func (q *query) only(name string) {
	if q.kind.isJudged(nameField) {
		q.judged = fields.OneTermEqualSelector(nameField, name)
	}
}
