package clusters

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// pods adds up what the pods of a member request, by node. It keeps a few bytes of each: a leader may observe a
// million.
type pods struct {
	*memberStore[*corev1.Pod]
	known map[types.UID]podRequests
	// requests holds one of equal lists, which most pods of a workload have.
	requests map[string]*sharedRequests
}

type podRequests struct {
	node     string // "" if it has none yet
	requests *sharedRequests
	waits    *waitingPod // nil unless there is no node for it
}

// sharedRequests are the requests of so many pods.
type sharedRequests struct {
	key  string
	list corev1.ResourceList
	pods int
}

// waitingPod is a pod for which the cluster's scheduler found no node.
type waitingPod struct {
	workload
	since time.Time
}

// workload is what a pod belongs to.
type workload struct {
	schema.GroupKind
	types.NamespacedName
}

func newPods(member typedcorev1.CoreV1Interface) *pods {
	p := &pods{}
	// Finished pods have given their room back.
	running := fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()
	p.memberStore = newMemberStore("pods of a cluster", member, member.Pods(metav1.NamespaceAll), &corev1.Pod{}, running, fleet.ListBounds{Max: maxPods, Bytes: maxPodBytes, Slim: slimPod}, p)
	return p
}

// slimPod keeps what put and remove read of a Pod: a cluster sends all its pods at once.
func slimPod(obj runtime.Object) runtime.Object {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
			Containers: slimContainers(pod.Spec.Containers), InitContainers: slimContainers(pod.Spec.InitContainers)}}
	if hash, has := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; has {
		out.Labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: hash}
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			out.Status.Conditions = []corev1.PodCondition{c}
		}
	}
	return out
}

func slimContainers(containers []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(containers))
	for i := range containers {
		out[i] = corev1.Container{Resources: containers[i].Resources, RestartPolicy: containers[i].RestartPolicy}
	}
	return out
}

func (p *pods) clear() {
	p.known, p.requests = map[types.UID]podRequests{}, map[string]*sharedRequests{}
}

func (p *pods) put(pod *corev1.Pod) {
	list := resource.PodRequests(pod, resource.PodResourcesOptions{})
	key := ""
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		key += string(name) + "=" + q.String() + ","
	}
	p.remove(pod)
	if p.requests[key] == nil {
		p.requests[key] = &sharedRequests{key: key, list: list}
	}
	p.requests[key].pods++
	p.known[pod.UID] = podRequests{node: pod.Spec.NodeName, requests: p.requests[key], waits: waitOf(pod)}
}

func (p *pods) remove(pod *corev1.Pod) {
	known, is := p.known[pod.UID]
	if !is {
		return
	}
	delete(p.known, pod.UID)
	if known.requests.pods--; known.requests.pods == 0 {
		delete(p.requests, known.requests.key)
	}
}

// waitOf returns since when a pod waits for a node, nil if it does not.
func waitOf(pod *corev1.Pod) *waitingPod {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return nil
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return &waitingPod{workloadOf(pod), c.LastTransitionTime.Time}
		}
	}
	return nil
}

// workloadOf returns the controller of a pod, or for a ReplicaSet its Deployment, which the ReplicaSet's name tells
// without reading it. A pod without a controller is its own workload.
func workloadOf(pod *corev1.Pod) workload {
	w := workload{schema.GroupKind{Kind: "Pod"}, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return w
	}
	gv, _ := schema.ParseGroupVersion(owner.APIVersion)
	w.GroupKind, w.Name = gv.WithKind(owner.Kind).GroupKind(), owner.Name
	if name, made := strings.CutSuffix(owner.Name, "-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]); made && owner.Kind == "ReplicaSet" && name != "" {
		w.GroupKind, w.Name = gv.WithKind("Deployment").GroupKind(), name
	}
	return w
}

// podSums are what the pods of a cluster request together.
type podSums struct {
	known     bool
	requested map[string]corev1.ResourceList // by node
	counts    map[string]int64               // by node
	pending   []corev1.ResourceList          // of each pod without a node
	waiting   []v1alpha1.PendingPods
}

// pendingTime is how long a pod has no node before it is reported: most find one at once.
const pendingTime = time.Minute

// sums adds up the pods. Nothing is known before they have been listed.
func (p *pods) sums(now time.Time) podSums {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.complete {
		return podSums{}
	}
	out := podSums{known: true, requested: map[string]corev1.ResourceList{}, counts: map[string]int64{}}
	waiting := map[workload]*v1alpha1.PendingPods{}
	for _, pod := range p.known {
		if pod.node != "" {
			if out.requested[pod.node] == nil {
				out.requested[pod.node] = corev1.ResourceList{}
			}
			add(out.requested[pod.node], pod.requests.list)
			out.counts[pod.node]++
			continue
		}
		out.pending = append(out.pending, pod.requests.list)
		if pod.waits == nil || now.Sub(pod.waits.since) < pendingTime {
			continue
		}
		w := pod.waits.workload
		if waiting[w] == nil {
			waiting[w] = &v1alpha1.PendingPods{Kind: w.GroupKind.String(), Namespace: w.Namespace, Name: w.Name}
		}
		waiting[w].Count++
		if since := metav1.NewTime(pod.waits.since); waiting[w].Since.Before(&since) {
			waiting[w].Since = since
		}
	}
	for _, w := range waiting {
		out.waiting = append(out.waiting, *w)
	}
	slices.SortFunc(out.waiting, func(a, b v1alpha1.PendingPods) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
	})
	out.waiting = out.waiting[:min(len(out.waiting), v1alpha1.MaxPendingPods)]
	return out
}
