package multicluster

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// PodDrain says which pods of an object are about to stop.
type PodDrain struct {
	Stop []*corev1.Pod
	// Mark are those of them that get Cost as their pod-deletion-cost, so that the cluster's controller stops them.
	Mark []*corev1.Pod
	Cost int32
	// Unmark stay, and have a cost that Atoll set.
	Unmark []*corev1.Pod
}

// Stopping returns which pods a ReplicaSet controller stops when so many stay. Marked pods are its choice also when something
// changes before it acts. Costs of users stay as they are.
func Stopping(pods []*corev1.Pod, stay int32) PodDrain {
	active := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !isActive(p) })
	onNode := map[string]int{}
	for _, p := range active {
		onNode[p.Spec.NodeName]++
	}
	slices.SortFunc(active, func(a, b *corev1.Pod) int { return compareForDeletion(a, b, onNode) })
	count := max(len(active)-int(max(stay, 0)), 0)
	out := PodDrain{Stop: active[:count:count]}
	lowest := int32(0)
	for _, p := range active[count:] {
		if isMarked(p) {
			out.Unmark = append(out.Unmark, p)
		} else {
			lowest = min(lowest, costOf(p))
		}
	}
	if count == len(active) {
		return out // none has to be preferred
	}
	out.Cost = max(lowest, math.MinInt32+1) - 1
	for _, p := range out.Stop {
		if _, has := p.Annotations[corev1.PodDeletionCost]; !has || isMarked(p) && costOf(p) > out.Cost {
			out.Mark = append(out.Mark, p)
		}
	}
	return out
}

// StoppingOrdinals returns which pods a StatefulSet controller stops when those of a range of ordinals stay. It needs no marks.
func StoppingOrdinals(pods []*corev1.Pod, start, replicas int32) (out PodDrain) {
	for _, p := range pods {
		if n, numbered := ordinalOf(p); isActive(p) && numbered && (n < start || n >= start+replicas) {
			out.Stop = append(out.Stop, p)
		}
	}
	return out
}

// Addresses returns the addresses of pods, in order, and at most as many as a cluster reports.
func Addresses(pods []*corev1.Pod) (out []string) {
	for _, p := range pods {
		for _, ip := range p.Status.PodIPs {
			out = append(out, ip.IP)
		}
		if len(p.Status.PodIPs) == 0 && p.Status.PodIP != "" {
			out = append(out, p.Status.PodIP)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), v1alpha1.MaxDrainedAddresses)]
}

// IsTerminating reports whether a pod has been told to stop.
func IsTerminating(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }

func isActive(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func isMarked(p *corev1.Pod) bool { return p.Annotations[v1alpha1.PodDrainedAnnotation] == "true" }

func costOf(p *corev1.Pod) int32 {
	n, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0 // the controller reads it in this way, too
	}
	return int32(n)
}

// compareForDeletion orders pods as Kubernetes' ReplicaSet controller does (k8s.io/kubernetes/pkg/controller,
// ActivePodsWithRanks): those that it stops first come first.
func compareForDeletion(a, b *corev1.Pod, onNode map[string]int) int {
	readyA, readyB := readyTime(a), readyTime(b)
	return cmp.Or(
		falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""),
		cmp.Compare(phaseRank(a), phaseRank(b)),
		falseFirst(readyA > 0, readyB > 0),
		cmp.Compare(costOf(a), costOf(b)),
		cmp.Compare(onNode[b.Spec.NodeName], onNode[a.Spec.NodeName]),
		cmp.Compare(readyB, readyA),
		cmp.Compare(restarts(b), restarts(a)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		strings.Compare(a.Name, b.Name))
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func phaseRank(p *corev1.Pod) int {
	return slices.Index([]corev1.PodPhase{corev1.PodPending, corev1.PodUnknown, corev1.PodRunning}, p.Status.Phase)
}

// readyTime returns since when a pod is ready, in seconds; 0 if it is not.
func readyTime(p *corev1.Pod) int64 {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return max(c.LastTransitionTime.Unix(), 1)
		}
	}
	return 0
}

func restarts(p *corev1.Pod) (most int32) {
	for _, c := range p.Status.ContainerStatuses {
		most = max(most, c.RestartCount)
	}
	return most
}

// ordinalOf returns the ordinal of a StatefulSet's pod.
func ordinalOf(p *corev1.Pod) (int32, bool) {
	n, err := strconv.ParseInt(p.Name[strings.LastIndexByte(p.Name, '-')+1:], 10, 32)
	return int32(n), err == nil
}
