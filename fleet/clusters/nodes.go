package clusters

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/fleet"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// nodes counts the nodes of a member, from a watch of its own.
type nodes struct{ informer cache.SharedIndexInformer }

func newNodes(member typedcorev1.CoreV1Interface) *nodes {
	// Neither a factory nor clients of all groups, as most programs make them: that would
	// be a tenth of a megabyte for each member.
	all := cache.NewListWatchFromClient(member.RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything())
	informer := cache.NewSharedIndexInformer(all, &corev1.Node{}, 0, cache.Indexers{})
	// It fails only on a running informer, which this one is not.
	_ = informer.SetTransform(slim)
	return &nodes{informer: informer}
}

// watchNodes keeps the minder's nodes until ctx ends. The status is written with
// the next probe: nodes report every few seconds, and there may be thousands.
func (m *minder) watchNodes(ctx context.Context, a *fleet.Access) {
	cfg := rest.CopyConfig(a.REST)
	cfg.UserAgent = FieldManager
	member, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return // the prober makes the same client and says why it cannot
	}
	n := newNodes(member)
	m.mu.Lock()
	if m.access == a {
		m.nodes = n
	}
	m.mu.Unlock()
	n.informer.RunWithContext(ctx)
}

// slim keeps of a Node what is counted.
func slim(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable},
		Status:     corev1.NodeStatus{Capacity: node.Status.Capacity, Allocatable: node.Status.Allocatable},
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return out, nil
}

// count sums up the nodes into a status. It leaves what was known where the
// nodes cannot be seen (yet).
func (n *nodes) count(status *v1alpha1.ClusterStatus) {
	if n == nil || !n.informer.HasSynced() {
		return
	}
	count := &v1alpha1.NodeCount{}
	capacity, allocatable := corev1.ResourceList{}, corev1.ResourceList{}
	for _, item := range n.informer.GetStore().List() {
		node, ok := item.(*corev1.Node)
		if !ok {
			continue
		}
		count.Total++
		add(capacity, node.Status.Capacity)
		if !ready(node) {
			continue
		}
		count.Ready++
		if !node.Spec.Unschedulable {
			add(allocatable, node.Status.Allocatable)
		}
	}
	count.Summary = fmt.Sprintf("%d/%d", count.Ready, count.Total)
	status.Nodes, status.Capacity, status.Allocatable = count, capacity, allocatable
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func add(sum, more corev1.ResourceList) {
	for name, quantity := range more {
		total := sum[name]
		total.Add(quantity)
		sum[name] = total
	}
}
