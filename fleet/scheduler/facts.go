package scheduler

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// objectOf returns the facts about an object for placement.
func objectOf(k interpret.KindInfo, obj *unstructured.Unstructured) placement.Object {
	o := identityOf(k, obj)
	if parts, err := k.Components(obj); err == nil && len(parts) > 0 {
		o.Needs = needsOf(parts)
	} else if pod := k.PodSpec(obj); pod != nil {
		o.Needs = placement.PodNeeds(pod)
	}
	o.Pods, o.AtOnce = podsOf(k, obj)
	return o
}

// needsOf returns what all components of an object need together.
func needsOf(parts []interpret.Component) (sum placement.Resources) {
	for _, part := range parts {
		need := placement.RequestedBy(part.Requests)
		if part.Pod != nil {
			need = placement.PodNeeds(part.Pod)
		}
		sum = sum.Plus(need, part.Replicas)
	}
	return sum
}

// identityOf returns them without the object's needs, which take the most time.
func identityOf(k interpret.KindInfo, obj *unstructured.Unstructured) placement.Object {
	o := placement.Object{Key: KeyOf(k.GroupKind(), obj.GetNamespace(), obj.GetName()), Namespace: obj.GetNamespace(), Group: k.Group, Kind: k.GroupVersionKind.Kind,
		Mode: v1alpha1.PlacementMode(k.DefaultMode), Single: k.Single, Finished: k.Finished(obj)}
	if ns := obj.GetNamespace(); ns != "" {
		o.Together = "namespace/" + ns
	}
	o.Single = o.Single || isOneVolume(k, obj)
	if o.Rebalance = obj.GetAnnotations()[v1alpha1.RebalanceAnnotation]; o.Rebalance != "" {
		o.Stays = staysPut(k, obj)
	}
	o.Replicas, o.Divisible = k.Replicas(obj)
	o.Divisible = o.Divisible && k.CheckMode(obj, interpret.Divided) == ""
	return o
}

// staysPut reports whether a request to rebalance must not move an object as a whole: a volume would stay behind, work
// would be done again, and what a custom resource stands for is unknown.
func staysPut(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return isUnrepeatable(k) || !movesPending(k, obj)
}

// isUnrepeatable reports whether objects of a kind must not start again elsewhere as a whole without need.
func isUnrepeatable(k interpret.KindInfo) bool {
	return k.Custom || k.GroupVersionKind.Kind == "Pod" || k.GroupVersionKind.Kind == "Job"
}
