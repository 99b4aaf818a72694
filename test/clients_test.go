package test

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// settle is how long the fleet may take to do anything that needs no
// toleration time. It takes seconds; more than a minute only on a machine that
// is busy with other things.
const settle = 2 * time.Minute

var clustersResource = schema.GroupVersionResource{Group: "fleet.atoll.dev", Version: "v1alpha1", Resource: "clusters"}

// client is a typed client of Atoll ("atoll") or a member.
func (f *fixture) client(t *testing.T, cluster string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(f.rest(t, cluster))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (f *fixture) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(f.rest(t, "atoll"))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (f *fixture) rest(t *testing.T, cluster string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig(cluster))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.Timeout = 10 * time.Second
	return config
}

// wantShares waits until the Deployment of that name in namespace default has
// so many replicas, all available, in each member, and Atoll sums them up. 0
// means that the member does not have the Deployment at all.
func (f *fixture) wantShares(t *testing.T, limit time.Duration, name string, shares map[string]int32) {
	t.Helper()
	eventually(t, limit, fmt.Sprintf("%s runs as %v", name, shares), func(ctx context.Context) error {
		var total int32
		for cluster, want := range shares {
			d, err := f.client(t, cluster).AppsV1().Deployments("default").Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err) && want == 0:
				continue
			case err != nil:
				return fmt.Errorf("%s: %w", cluster, err)
			case want == 0:
				return fmt.Errorf("%s still has it, with %d replicas", cluster, *d.Spec.Replicas)
			}
			if err := rolledOut(d, want); err != nil {
				return fmt.Errorf("%s: %w", cluster, err)
			}
			total += want
		}
		d, err := f.client(t, "atoll").AppsV1().Deployments("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("atoll: %w", err)
		}
		if err := rolledOut(d, total); err != nil {
			return fmt.Errorf("atoll: %w", err)
		}
		return nil
	})
}

// rolledOut returns an error unless exactly so many replicas of a Deployment's newest generation run.
func rolledOut(d *appsv1.Deployment, replicas int32) error {
	s := d.Status
	switch {
	case *d.Spec.Replicas != replicas:
		return fmt.Errorf("it is to have %d replicas, not %d", *d.Spec.Replicas, replicas)
	case s.ObservedGeneration != d.Generation:
		return fmt.Errorf("generation %d is observed, not %d", s.ObservedGeneration, d.Generation)
	case s.Replicas != replicas || s.UpdatedReplicas != replicas || s.ReadyReplicas != replicas || s.AvailableReplicas != replicas:
		return fmt.Errorf("status has %d replicas, %d updated, %d ready, %d available, of %d",
			s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, replicas)
	}
	return nil
}

// wantGone waits until no member has objects of that kind with the name in
// namespace default.
func (f *fixture) wantGone(t *testing.T, resource, name string, clusters ...string) {
	t.Helper()
	eventually(t, settle, fmt.Sprintf("%s %s is gone from %v", resource, name, clusters), func(ctx context.Context) error {
		for _, cluster := range clusters {
			out, err := f.tryKubectl(ctx, cluster, "", "get", resource, name, "--ignore-not-found", "-o", "name")
			if err != nil {
				return err
			}
			if out != "" {
				return fmt.Errorf("%s still has %s", cluster, out)
			}
		}
		return nil
	})
}

// wantReady waits until a cluster's condition Ready is as wanted.
func (f *fixture) wantReady(t *testing.T, limit time.Duration, cluster string, ready bool) {
	t.Helper()
	client := f.dynamic(t).Resource(clustersResource)
	eventually(t, limit, fmt.Sprintf("cluster %s has Ready=%t", cluster, ready), func(ctx context.Context) error {
		object, err := client.Get(ctx, cluster, metav1.GetOptions{})
		if err != nil {
			return err
		}
		condition, err := readyCondition(object)
		if err != nil {
			return err
		}
		if (condition.Status == metav1.ConditionTrue) != ready {
			return fmt.Errorf("it is %s: %s: %s", condition.Status, condition.Reason, condition.Message)
		}
		return nil
	})
}

func readyCondition(object *unstructured.Unstructured) (*metav1.Condition, error) {
	list, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return nil, err
	}
	var conditions []metav1.Condition
	for _, c := range list {
		fields := c.(map[string]any)
		text := func(name string) string { s, _ := fields[name].(string); return s }
		conditions = append(conditions, metav1.Condition{
			Type: text("type"), Status: metav1.ConditionStatus(text("status")), Reason: text("reason"), Message: text("message"),
		})
	}
	if c := meta.FindStatusCondition(conditions, "Ready"); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("it has no condition Ready yet")
}
