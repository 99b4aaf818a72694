package reach

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Resources that are shown from clusters.
const (
	Pods   = "pods"
	Events = "events"
	Nodes  = "nodes"
)

// object is one that is shown.
type object interface {
	runtime.Object
	metav1.Object
}

// kind is how objects of one kind are shown. All are of the core group.
type kind struct {
	resource string
	new      func() object
	newList  func() runtime.Object
	// metadataOnly is set if the clusters are asked for the metadata of the objects alone, with lists.
	metadataOnly bool
	// judged are the fields that the clusters are not asked to select by, because Atoll shows others.
	judged []string
	// fieldsOf returns the judged fields of an object as Atoll shows it.
	fieldsOf func(object) map[string]string
	// belongs reports whether an object is shown.
	belongs func(ctx context.Context, m *member, obj object) (bool, error)
	// show changes an object that is shown.
	show func(obj object, cluster string)
}

func kinds() map[string]kind {
	return map[string]kind{
		Pods: {
			resource: Pods, new: func() object { return &corev1.Pod{} }, newList: func() runtime.Object { return &corev1.PodList{} },
			judged: []string{nodeField},
			fieldsOf: func(obj object) map[string]string {
				return map[string]string{nodeField: obj.(*corev1.Pod).Spec.NodeName}
			},
			belongs: podBelongs, show: showPod,
		},
		Events: {
			resource: Events, new: func() object { return &corev1.Event{} }, newList: func() runtime.Object { return &corev1.EventList{} },
			judged: []string{uidField},
			fieldsOf: func(obj object) map[string]string {
				return map[string]string{uidField: string(obj.(*corev1.Event).InvolvedObject.UID)}
			},
			belongs: eventBelongs, show: label,
		},
		Nodes: {
			resource: Nodes, new: func() object { return &corev1.Node{} }, newList: func() runtime.Object { return &corev1.NodeList{} },
			judged:   []string{nameField},
			fieldsOf: func(obj object) map[string]string { return map[string]string{nameField: obj.GetName()} },
			belongs:  func(context.Context, *member, object) (bool, error) { return true, nil }, show: showNode,
		},
	}
}

const (
	nodeField = "spec.nodeName"
	uidField  = "involvedObject.uid"
	nameField = "metadata.name"
)

// label sets the label with the cluster.
func label(obj object, cluster string) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.ClusterLabel] = cluster
	obj.SetLabels(labels)
}

// nodeName returns the name of a node as Atoll shows it: CLUSTER.NODE. Names of nodes are unique only in their cluster, and
// names of clusters have no dots. A slash would be clearer, but no name of an object, and no value of a label, may have one.
func nodeName(cluster, node string) string {
	if node == "" {
		return ""
	}
	return cluster + "." + node
}

// ownNodeName undoes nodeName.
func ownNodeName(cluster, node string) string { return strings.TrimPrefix(node, cluster+".") }

func showPod(obj object, cluster string) {
	pod := obj.(*corev1.Pod)
	label(pod, cluster)
	pod.Spec.NodeName = nodeName(cluster, pod.Spec.NodeName)
	pod.Status.NominatedNodeName = nodeName(cluster, pod.Status.NominatedNodeName)
}

func showNode(obj object, cluster string) {
	label(obj, cluster)
	obj.SetName(nodeName(cluster, obj.GetName()))
}

// hide undoes showPod before a changed pod is sent to its cluster.
func hide(pod, before *corev1.Pod, cluster string) error {
	if got := pod.Labels[v1alpha1.ClusterLabel]; got != cluster {
		return fmt.Errorf("metadata.labels: label %s is %q: Atoll sets it to the cluster that runs the pod, and it cannot be changed", v1alpha1.ClusterLabel, got)
	}
	if own, had := before.Labels[v1alpha1.ClusterLabel]; had {
		pod.Labels[v1alpha1.ClusterLabel] = own
	} else {
		delete(pod.Labels, v1alpha1.ClusterLabel)
	}
	pod.Spec.NodeName = ownNodeName(cluster, pod.Spec.NodeName)
	pod.Status.NominatedNodeName = ownNodeName(cluster, pod.Status.NominatedNodeName)
	pod.ResourceVersion = MemberVersion(pod.ResourceVersion)
	return nil
}

// podBelongs reports whether a pod belongs to a bound object, and is not itself the copy of a pod that the control plane
// stores, which would be shown twice.
func podBelongs(ctx context.Context, m *member, obj object) (bool, error) {
	if ancestorOf(podKind, obj, m.cluster).source != "" {
		return false, nil
	}
	return m.owners.bound(ctx, obj)
}

// podReached reports whether a pod is reached by its name: one that is shown, and the copy of a pod that the control plane stores.
func podReached(ctx context.Context, m *member, obj object) (bool, error) {
	if is := ancestorOf(podKind, obj, m.cluster); is.source != "" {
		return m.owners.follow(ctx, obj.GetNamespace(), is)
	}
	return podBelongs(ctx, m, obj)
}

// eventBelongs reports whether an event is about a copy of a bound object, or about an object of one. An event about a copy
// becomes one about the object in the control plane: kubectl describe looks for its UID.
func eventBelongs(ctx context.Context, m *member, obj object) (bool, error) {
	about := &obj.(*corev1.Event).InvolvedObject
	if about.UID == "" || about.Name == "" || about.Namespace != obj.GetNamespace() {
		return false, nil
	}
	of, err := m.owners.read(ctx, about.Namespace, metav1.OwnerReference{APIVersion: about.APIVersion, Kind: about.Kind, Name: about.Name, UID: about.UID})
	if err != nil || of.gone {
		return false, err
	}
	bound, err := m.owners.follow(ctx, about.Namespace, of)
	if bound && of.source != "" {
		about.UID = of.source
	}
	return bound, err
}

var podKind = schema.GroupKind{Kind: "Pod"}

// ownName returns the name in its cluster of an object as Atoll shows it.
func (k kind) ownName(cluster, name string) string {
	if k.isJudged(nameField) {
		return ownNodeName(cluster, name)
	}
	return name
}

// isJudged reports whether Atoll selects by a field itself.
func (k kind) isJudged(field string) bool { return slices.Contains(k.judged, field) }
