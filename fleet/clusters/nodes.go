package clusters

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/capacity"
)

// The observed objects of a member are bounded, at several times the sizes that Kubernetes is tested with. The bytes are those
// of the parts that are kept.
const (
	maxNodes, maxNodeBytes   = 20_000, 48 << 20
	maxPods, maxPodBytes     = 500_000, 160 << 20
	maxQuotas, maxQuotaBytes = 50_000, 32 << 20
)

// nodes counts the nodes of a member, their free room and that of its quotas, with watches of its own.
type nodes struct {
	informer cache.SharedIndexInformer
	pods     *pods
	quotas   *memberQuotas

	mu      sync.Mutex
	denied  bool   // the last list or watch was forbidden
	refused string // why the last list was not accepted
}

// newNodes uses neither an informer factory nor a full clientset, because these take a tenth of a
// megabyte for each member.
func newNodes(member typedcorev1.CoreV1Interface) *nodes {
	n := &nodes{pods: newPods(member), quotas: newMemberQuotas(member)}
	n.informer = cache.NewSharedIndexInformer(listWatch(member, member.Nodes(), "", fleet.ListBounds{Max: maxNodes, Bytes: maxNodeBytes, Slim: slimNode}, n.recordError), &corev1.Node{}, 0, cache.Indexers{})
	return n
}

func (n *nodes) recordError(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.denied, n.refused = apierrors.IsForbidden(err), ""
	if answer := (fleet.AnswerError{}); errors.As(err, &answer) {
		n.refused = answer.Error()
	}
}

// annotate adds a note to the health of a cluster if its nodes or pods cannot be counted, because its
// recorded capacity may then be outdated.
func (n *nodes) annotate(verdict result) result {
	if n == nil || !verdict.ready {
		return verdict
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.denied:
		verdict.message += "; its nodes cannot be listed, so its capacity may be outdated: grant get, list and watch of nodes to the identity in its kubeconfig"
	case n.refused != "":
		verdict.message += "; its nodes are not counted: " + n.refused
	case n.pods.areDenied():
		verdict.message += "; its pods cannot be listed, so it is unknown what its nodes have room for: grant get, list and watch of pods to the identity in its kubeconfig"
	}
	return verdict
}

// watchNodes keeps the node count up to date until ctx ends. The status is written with the next
// probe: nodes change every few seconds, and there may be thousands.
func (m *memberReconciler) watchNodes(ctx context.Context, a *fleet.Access) {
	cfg := rest.CopyConfig(a.REST)
	cfg.UserAgent = FieldManager
	member, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return // the prober creates the same client and reports the error
	}
	n := newNodes(member)
	m.mu.Lock()
	if m.access == a {
		m.nodes = n
	}
	m.mu.Unlock()
	n.run(ctx)
}

// run watches until ctx ends.
func (n *nodes) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { n.pods.reflector.RunWithContext(ctx) })
	running.Go(func() { n.quotas.reflector.RunWithContext(ctx) })
	n.informer.RunWithContext(ctx)
	running.Wait()
}

// slimNode keeps only the counted fields of a Node.
func slimNode(obj runtime.Object) runtime.Object {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj
	}
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
		Status:     corev1.NodeStatus{Capacity: node.Status.Capacity, Allocatable: node.Status.Allocatable},
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return out
}

// count adds up the nodes into a status, with the quotas of the namespaces that concern the fleet. It keeps
// the previous values if the nodes cannot be listed.
func (n *nodes) count(status *v1alpha1.ClusterStatus, concerns func(namespace string) bool, now time.Time) {
	if n == nil || !n.informer.HasSynced() {
		return
	}
	count := &v1alpha1.NodeCount{}
	total, allocatable := corev1.ResourceList{}, corev1.ResourceList{}
	sums := n.pods.sums(now)
	var open []capacity.Node
	for _, item := range n.informer.GetStore().List() {
		node, ok := item.(*corev1.Node)
		if !ok {
			continue
		}
		count.Total++
		add(total, node.Status.Capacity)
		if !ready(node) {
			continue
		}
		count.Ready++
		if !node.Spec.Unschedulable {
			add(allocatable, node.Status.Allocatable)
			open = append(open, capacity.Node{Labels: node.Labels, Taints: node.Spec.Taints, Allocatable: node.Status.Allocatable,
				Requested: sums.requested[node.Name], Pods: sums.counts[node.Name]})
		}
	}
	count.Summary = fmt.Sprintf("%d/%d", count.Ready, count.Total)
	status.Nodes, status.Capacity, status.Allocatable = count, total, allocatable
	status.NamespaceQuotas = n.quotas.report(concerns)
	status.NodeShapes, status.PendingPods = nil, nil
	if sums.known {
		status.NodeShapes, status.PendingPods = capacity.Summarize(open, sums.pending), sums.waiting
	}
}

// count returns what counts nodes, which may be nil, into a status.
func (m *memberReconciler) count(n *nodes) func(*v1alpha1.ClusterStatus) {
	return func(status *v1alpha1.ClusterStatus) { n.count(status, m.c.hasNamespace, m.c.Clock.Now()) }
}

// hasNamespace reports whether the control plane has a namespace.
func (c *controller) hasNamespace(name string) bool {
	_, exists := c.Namespaces.Get(name)
	return exists
}

// freeInterval is how often a change of free room and pending pods alone is written. Pods come and go all the time.
const freeInterval = 15 * time.Second

// settleRoom keeps the recorded free room and pending pods if no node and no limit differs and they were written a
// moment ago.
func settleRoom(was, is *v1alpha1.ClusterStatus, now time.Time) {
	if was.NodeShapes == nil || is.NodeShapes == nil || was.LastProbeTime == nil || now.Sub(was.LastProbeTime.Time) >= freeInterval {
		return
	}
	if capacity.SameNodes(was.NodeShapes, is.NodeShapes) && capacity.SameQuotas(was.NamespaceQuotas, is.NamespaceQuotas) {
		is.NodeShapes, is.PendingPods, is.NamespaceQuotas = was.NodeShapes, was.PendingPods, was.NamespaceQuotas
	}
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
