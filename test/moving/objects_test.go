package moving

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Annotations of Pods that kwok reads: how long they take to become ready.
const (
	readyAfter  = "pod-ready.stage.kwok.x-k8s.io/delay"
	readyWithin = "pod-ready.stage.kwok.x-k8s.io/jitter-delay"
)

// slowly has Pods become ready after 3 to 8 seconds.
func slowly() map[string]string { return map[string]string{readyAfter: "3s", readyWithin: "8s"} }

// Kinds that tests ask about.
var (
	deploymentKind  = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	statefulSetKind = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
)

// namespace creates a namespace for the time of the test.
func (s *stage) namespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.client(t).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Tests at the same time kill servers, with the requests that are under way there.
		var last error
		err := wait.PollUntilContextTimeout(context.Background(), 200*time.Millisecond, settle, true, func(ctx context.Context) (bool, error) {
			last = s.client(t).CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
			return last == nil || apierrors.IsNotFound(last), nil
		})
		if err != nil {
			t.Errorf("delete namespace %s: %v", name, last)
		}
	})
}

// deployment returns a Deployment whose Pods have some annotations.
func deployment(namespace, name string, replicas int32, ofPods map[string]string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: ofPods},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx"}}},
			},
		},
	}
}

// create creates a Deployment and waits until all of its replicas are ready. It returns what the witness counts.
func (s *stage) create(t *testing.T, d *appsv1.Deployment) app {
	t.Helper()
	if _, err := s.client(t).AppsV1().Deployments(d.Namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a := app{d.Namespace, d.Name}
	s.awaitReady(t, a, int(*d.Spec.Replicas))
	s.awaitReported(t, a)
	return a
}

// awaitReported waits until Atoll knows that all replicas of a Deployment are available. Replicas that are not, as far as
// it knows, may leave a cluster at once.
func (s *stage) awaitReported(t *testing.T, a app) {
	t.Helper()
	eventually(t, a.String()+" is available", func(ctx context.Context) error {
		d, err := s.client(t).AppsV1().Deployments(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != *d.Spec.Replicas {
			err = fmt.Errorf("%d of %d are reported", d.Status.AvailableReplicas, *d.Spec.Replicas)
		}
		return err
	})
}

func (s *stage) awaitReady(t *testing.T, a app, want int) {
	t.Helper()
	eventually(t, a.String()+" is ready", func(context.Context) error {
		ready := 0
		by := s.witness.ready(a)
		for _, n := range by {
			ready += n
		}
		if ready != want {
			return fmt.Errorf("%d of %d are ready:%s", ready, want, textOf(by))
		}
		return nil
	})
}

// budget creates a PodDisruptionBudget for an app.
func (s *stage) budget(t *testing.T, a app, minAvailable int) {
	t.Helper()
	least := intstr.FromInt(minAvailable)
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: a.name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": a.name}}}}
	if _, err := s.client(t).PolicyV1().PodDisruptionBudgets(a.namespace).Create(t.Context(), pdb, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// label sets where a Deployment is to run.
func (s *stage) label(t *testing.T, a app, cluster string) {
	t.Helper()
	patch := patchOf(t, map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.ClusterLabel: cluster}}})
	if _, err := s.client(t).AppsV1().Deployments(a.namespace).Patch(t.Context(), a.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// binding reads the binding of an object.
func (s *stage) binding(ctx context.Context, t *testing.T, kind schema.GroupKind, a app) (*v1alpha1.ResourceBinding, error) {
	t.Helper()
	u, err := s.dynamic(t).Resource(v1alpha1.ResourceBindingResource).Namespace(a.namespace).Get(ctx, v1alpha1.BindingName(kind, a.name), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	b := &v1alpha1.ResourceBinding{}
	return b, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b)
}

// bindings reads all bindings of a namespace.
func (s *stage) bindings(ctx context.Context, t *testing.T, namespace string) (map[string]*v1alpha1.ResourceBinding, error) {
	t.Helper()
	list, err := s.dynamic(t).Resource(v1alpha1.ResourceBindingResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]*v1alpha1.ResourceBinding{}
	for _, u := range list.Items {
		b := &v1alpha1.ResourceBinding{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
			return nil, err
		}
		out[b.Spec.Resource.Kind+" "+b.Spec.Resource.Name] = b
	}
	return out, nil
}

// inEffect returns the names of the clusters in effect, sorted.
func inEffect(b *v1alpha1.ResourceBinding) []string {
	var out []string
	for _, c := range b.Spec.Clusters {
		out = append(out, c.Name)
	}
	slices.Sort(out)
	return out
}

// restsIn reports nothing if an object runs in certain clusters, none other has a copy, and no transition is left.
func restsIn(b *v1alpha1.ResourceBinding, clusters ...string) error {
	var have []string
	for _, c := range b.Status.Clusters {
		have = append(have, c.Name)
	}
	slices.Sort(have)
	switch {
	case b.Spec.Transition != nil:
		return fmt.Errorf("%s is in transition: %s", b.Name, transitionText(b))
	case !slices.Equal(inEffect(b), clusters):
		return fmt.Errorf("%s runs in %v, not in %v", b.Name, inEffect(b), clusters)
	case !slices.Equal(have, clusters):
		return fmt.Errorf("%s has copies in %v, not in %v", b.Name, have, clusters)
	}
	return nil
}

func transitionText(b *v1alpha1.ResourceBinding) string {
	t := b.Status.Transition
	if t == nil {
		return "no status yet"
	}
	return fmt.Sprintf("%s from %s to %s, %s, waiting for %s", t.Cause, t.From, t.To, t.Phase, t.WaitingFor)
}

// awaitIn waits until an object runs in one cluster and nowhere else.
func (s *stage) awaitIn(t *testing.T, kind schema.GroupKind, a app, cluster string) {
	t.Helper()
	eventually(t, a.String()+" is in "+cluster, func(ctx context.Context) error {
		b, err := s.binding(ctx, t, kind, a)
		if err != nil {
			return err
		}
		return restsIn(b, cluster)
	})
}

// cluster reads a Cluster.
func (s *stage) cluster(ctx context.Context, t *testing.T, name string) (*v1alpha1.Cluster, error) {
	t.Helper()
	u, err := s.dynamic(t).Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &v1alpha1.Cluster{}
	return c, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c)
}

// setCluster changes the spec of a Cluster until the test ends.
func (s *stage) setCluster(t *testing.T, name string, spec, after map[string]any) {
	t.Helper()
	set := func(ctx context.Context, spec map[string]any) error {
		_, err := s.dynamic(t).Resource(v1alpha1.ClusterResource).Patch(ctx, name, types.MergePatchType, patchOf(t, map[string]any{"spec": spec}), metav1.PatchOptions{})
		return err
	}
	if err := set(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.Background(), after); err != nil {
			t.Errorf("restore cluster %s: %v", name, err)
		}
	})
}

// condition returns an error unless a Cluster has a condition with a status and a reason. An empty one stands for any.
func (s *stage) condition(ctx context.Context, t *testing.T, name, kind string, status metav1.ConditionStatus, reason string) error {
	t.Helper()
	c, err := s.cluster(ctx, t, name)
	if err != nil {
		return err
	}
	is := meta.FindStatusCondition(c.Status.Conditions, kind)
	if is == nil || status != "" && is.Status != status || reason != "" && is.Reason != reason {
		return fmt.Errorf("cluster %s has %s %+v", name, kind, is)
	}
	return nil
}

func (s *stage) awaitCondition(t *testing.T, name, kind string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %s=%s %s", name, kind, status, reason), func(ctx context.Context) error {
		return s.condition(ctx, t, name, kind, status, reason)
	})
}

// events returns the messages of the events about an object of Atoll with a reason.
func (s *stage) events(ctx context.Context, t *testing.T, a app, reason string) ([]string, error) {
	t.Helper()
	list, err := s.client(t).CoreV1().Events(a.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + a.name + ",reason=" + reason})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Message)
	}
	return out, nil
}

// awaitNothing checks until a point in time that something does not happen: the longest that a test waits for time.
func awaitNothing(t *testing.T, until time.Time, what string, check func(ctx context.Context) error) {
	t.Helper()
	var broken error
	eventually(t, what, func(ctx context.Context) error {
		if broken = check(ctx); broken != nil {
			return nil
		}
		if left := time.Until(until); left > 0 {
			return fmt.Errorf("%s left", left)
		}
		return nil
	})
	if broken != nil {
		t.Errorf("%s: %v", what, broken)
	}
}

// sameIn returns an error if an object of the namespace runs in other clusters than before, or is to.
func sameIn(before, after map[string]*v1alpha1.ResourceBinding) error {
	var moved []string
	for name, b := range before {
		is, exists := after[name]
		switch {
		case !exists:
			moved = append(moved, name+" has no binding")
		case is.Spec.Transition != nil:
			moved = append(moved, name+": "+transitionText(is))
		case !slices.Equal(inEffect(b), inEffect(is)):
			moved = append(moved, fmt.Sprintf("%s went from %v to %v", name, inEffect(b), inEffect(is)))
		}
	}
	if len(moved) > 0 {
		slices.Sort(moved)
		return errors.New(strings.Join(moved, "; "))
	}
	if len(before) != len(after) {
		return fmt.Errorf("bindings were %v and are %v", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
	return nil
}
