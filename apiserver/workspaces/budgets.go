package workspaces

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	clientrest "k8s.io/client-go/rest"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// deletionTimeout is how long a pod that was evicted may exist before it counts again, as in the disruption controller of Kubernetes.
const deletionTimeout = 2 * time.Minute

// expectedPods returns how many pods a budget counts with, as the disruption controller of Kubernetes does: the pods themselves if the budget has an absolute
// minimum, and otherwise the sum of the scales of their controllers. scale returns that of one controller.
func expectedPods(budget *policyv1.PodDisruptionBudget, pods []corev1.Pod, scale func(metav1.OwnerReference) (int32, error)) (expected int32, err error) {
	switch least := budget.Spec.MinAvailable; {
	case budget.Spec.MaxUnavailable != nil:
	case least == nil:
		return 0, nil // the budget allows nothing
	case least.Type == intstr.Int:
		return int32(len(pods)), nil //nolint:gosec // a list of pods is shorter
	}
	counted := map[types.UID]bool{}
	for i := range pods {
		owner := metav1.GetControllerOfNoCopy(&pods[i])
		if owner == nil || counted[owner.UID] {
			continue // a pod without a controller is not expected
		}
		counted[owner.UID] = true
		n, err := scale(*owner)
		if err != nil {
			return 0, fmt.Errorf("the scale of %s %s, which controls the pod %s: %w", owner.Kind, owner.Name, pods[i].Name, err)
		}
		expected += n
	}
	return expected, nil
}

// budgetStatus returns the status that the disruption controller of Kubernetes would give a budget with these pods. cause is why the expected pods are not known; no
// disruption is allowed then.
func budgetStatus(budget *policyv1.PodDisruptionBudget, pods []corev1.Pod, expected int32, cause error, now time.Time) policyv1.PodDisruptionBudgetStatus {
	status := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, ExpectedPods: expected, DisruptedPods: map[string]metav1.Time{}}
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		if since, disrupted := budget.Status.DisruptedPods[pod.Name]; disrupted && since.Add(deletionTimeout).After(now) {
			status.DisruptedPods[pod.Name] = since
		} else if podutil.IsPodReady(pod) {
			status.CurrentHealthy++
		}
	}
	if cause == nil {
		status.DesiredHealthy, cause = desiredHealthy(budget.Spec, expected)
	}
	if cause != nil {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
			Message: cause.Error(), ObservedGeneration: budget.Generation})
		return status
	}
	if expected > 0 {
		status.DisruptionsAllowed = max(0, status.CurrentHealthy-status.DesiredHealthy)
	}
	out := policyv1.PodDisruptionBudget{ObjectMeta: budget.ObjectMeta, Status: status}
	pdbhelper.UpdateDisruptionAllowedCondition(&out)
	return out.Status
}

// desiredHealthy returns how many pods have to be healthy.
func desiredHealthy(spec policyv1.PodDisruptionBudgetSpec, expected int32) (int32, error) {
	of := cmp.Or(spec.MaxUnavailable, spec.MinAvailable)
	if of == nil {
		return 0, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(of, int(expected), true)
	if err != nil {
		return 0, err
	}
	if spec.MaxUnavailable != nil {
		return max(0, expected-int32(n)), nil //nolint:gosec // at most twice as many as expected, or a 32-bit integer
	}
	return int32(n), nil //nolint:gosec // as above
}

// scales read the replicas of objects that control pods.
type scales struct {
	discovery discovery.DiscoveryInterface
	objects   dynamic.Interface
}

func newScales(config *clientrest.Config, client *http.Client) (*scales, error) {
	config = clientrest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeJSON // custom resources have no other encoding
	kinds, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	return &scales{kinds, objects}, err
}

// of returns the replicas of the controller of a pod: those of the Deployment for one of its ReplicaSets.
func (s *scales) of(ctx context.Context, namespace string, owner metav1.OwnerReference) (int32, error) {
	for {
		resource, err := s.resource(owner)
		if err != nil {
			return 0, err
		}
		if owner.Kind == "ReplicaSet" && resource.Group == appsv1.GroupName {
			set, err := s.objects.Resource(resource).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
			if err != nil {
				return 0, err
			}
			if above := metav1.GetControllerOf(set); set.GetUID() == owner.UID && above != nil && above.Kind == "Deployment" {
				owner = *above
				continue
			}
		}
		scale, err := s.objects.Resource(resource).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{}, "scale")
		if err != nil {
			return 0, err
		}
		if scale.GetUID() != owner.UID {
			return 0, apierrors.NewNotFound(resource.GroupResource(), owner.Name)
		}
		n, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
		return int32(n), err //nolint:gosec // the API validates it
	}
}

// resource returns the resource of an owner, if it can be scaled.
func (s *scales) resource(owner metav1.OwnerReference) (none schema.GroupVersionResource, err error) {
	list, err := s.discovery.ServerResourcesForGroupVersion(owner.APIVersion)
	if err != nil {
		return none, err
	}
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return none, err
	}
	names := map[string]bool{}
	for _, r := range list.APIResources {
		names[r.Name] = true
	}
	for _, r := range list.APIResources {
		if r.Kind == owner.Kind && !strings.Contains(r.Name, "/") && names[r.Name+"/scale"] {
			return version.WithResource(r.Name), nil
		}
	}
	return none, fmt.Errorf("the kind %s has no subresource scale: use minAvailable with a number", owner.Kind)
}
