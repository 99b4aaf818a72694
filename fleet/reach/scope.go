package reach

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// scope is what a list or a watch asks for.
type scope struct {
	namespace      string // "" is all
	labels, fields string
}

// nodeField is the field with the node's name, which Atoll changes: CLUSTER/NODE.
const nodeField = "spec.nodeName"

// query is a scope, parsed: what Atoll judges itself, and what a cluster is asked.
type query struct {
	scope
	clusters labels.Selector // of ClusterLabel
	nodes    fields.Selector // of nodeField
	// member are the selectors for a cluster, without these.
	memberLabels labels.Selector
	memberFields fields.Selector
}

func parseQuery(namespace string, o metav1.ListOptions) (q query, err error) {
	q.scope = scope{namespace, o.LabelSelector, o.FieldSelector}
	all, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return q, err
	}
	q.clusters, q.memberLabels = labels.NewSelector(), labels.NewSelector()
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
	var nodes, others []fields.Selector
	for _, r := range byField.Requirements() {
		term := fields.OneTermEqualSelector(r.Field, r.Value)
		if r.Operator == selection.NotEquals {
			term = fields.OneTermNotEqualSelector(r.Field, r.Value)
		}
		if r.Field == nodeField {
			nodes = append(nodes, term)
		} else {
			others = append(others, term)
		}
	}
	q.nodes, q.memberFields = fields.AndSelectors(nodes...), fields.AndSelectors(others...)
	return q, nil
}

// concerns reports whether pods of a cluster can match.
func (q query) concerns(cluster string) bool {
	if !q.clusters.Matches(labels.Set{v1alpha1.ClusterLabel: cluster}) {
		return false
	}
	node, exact := q.nodes.RequiresExactMatch(nodeField)
	return !exact || strings.HasPrefix(node, cluster+"/")
}

// options returns what a cluster is asked.
func (q query) options(cluster string) metav1.ListOptions {
	selector := q.memberFields
	if node, exact := q.nodes.RequiresExactMatch(nodeField); exact {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector(nodeField, strings.TrimPrefix(node, cluster+"/")))
	}
	return metav1.ListOptions{LabelSelector: q.memberLabels.String(), FieldSelector: selector.String()}
}

// matches reports whether a pod, as Atoll shows it, matches what the cluster was not asked.
func (q query) matches(pod *corev1.Pod) bool {
	return q.nodes.Matches(fields.Set{nodeField: pod.Spec.NodeName})
}

// show changes a pod of a cluster to what Atoll shows: the cluster is a label, and the first part of the node's name. Names
// of nodes are unique only in their cluster.
func show(pod *corev1.Pod, cluster string) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[v1alpha1.ClusterLabel] = cluster
	if pod.Spec.NodeName != "" {
		pod.Spec.NodeName = cluster + "/" + pod.Spec.NodeName
	}
	if pod.Status.NominatedNodeName != "" {
		pod.Status.NominatedNodeName = cluster + "/" + pod.Status.NominatedNodeName
	}
}

// hide undoes show before a changed pod is sent to its cluster.
func hide(pod, before *corev1.Pod, cluster string) error {
	if got := pod.Labels[v1alpha1.ClusterLabel]; got != cluster {
		return fmt.Errorf("metadata.labels: label %s is %q: Atoll sets it to the cluster that runs the pod, and it cannot be changed", v1alpha1.ClusterLabel, got)
	}
	if own, had := before.Labels[v1alpha1.ClusterLabel]; had {
		pod.Labels[v1alpha1.ClusterLabel] = own
	} else {
		delete(pod.Labels, v1alpha1.ClusterLabel)
	}
	pod.Spec.NodeName = strings.TrimPrefix(pod.Spec.NodeName, cluster+"/")
	pod.Status.NominatedNodeName = strings.TrimPrefix(pod.Status.NominatedNodeName, cluster+"/")
	pod.ResourceVersion = MemberVersion(pod.ResourceVersion)
	return nil
}

func everything() labels.Selector { return labels.Everything() }
func everyField() fields.Selector { return fields.Everything() }
