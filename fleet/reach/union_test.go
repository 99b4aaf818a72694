package reach

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

// lists are the namespaces of an API whose names begin with a prefix, as parts without it.
type lists struct {
	client *kubernetes.Clientset
	gone   atomic.Bool
}

func (l *lists) parts(of string, namespaces ...string) Parts {
	return Parts{Of: of, Read: func(context.Context) (out []Part, _ error) {
		for _, namespace := range namespaces {
			if l.gone.Load() && namespace == "a--two" {
				continue
			}
			pods := l.client.CoreV1().Pods(namespace)
			out = append(out, Part{Name: namespace, Missing: "the pods of namespace " + namespace + " are missing",
				List:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
				Watch:    func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, o) },
				Complete: func(context.Context, Object) (bool, error) { return true, nil },
				Show:     func(obj Object) { obj.SetNamespace(strings.TrimPrefix(obj.GetNamespace(), "a--")) }})
		}
		return out, nil
	}}
}

// TestUnion: lists are merged, a watch continues at their version, and reports the objects of a list that is gone, also if it went before the watch began. A version of one owner
// is not valid for another.
func TestUnion(t *testing.T) {
	api := fakeapi.New(t, fakeapi.BuiltIns("v1 Pod")...)
	put := func(namespace, name string) {
		api.Put(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": namespace, "name": name, "labels": map[string]any{"app": "x"}}})
	}
	client, err := kubernetes.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	put("a--one", "first")
	put("a--two", "second")
	put("b--one", "foreign")
	empty := fakeapi.New(t, fakeapi.BuiltIns("v1 Pod")...)
	own, err := kubernetes.NewForConfig(empty.Config())
	if err != nil {
		t.Fatal(err)
	}
	u, l := NewUnion(clock.RealClock{}), &lists{client: client}
	here := stored{own, Pods}
	list := func(o metav1.ListOptions) *corev1.PodList {
		t.Helper()
		out, warnings, err := u.List(t.Context(), Pods, "", l.parts("a", "a--one", "a--two"), here, o)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		return out.(*corev1.PodList)
	}
	all := list(metav1.ListOptions{LabelSelector: "app=x"})
	if len(all.Items) != 2 || all.Items[0].Namespace != "one" || all.Items[1].Namespace != "two" {
		t.Fatalf("%v", all.Items)
	}
	if of := list(metav1.ListOptions{FieldSelector: "metadata.namespace=two"}); len(of.Items) != 1 || of.Items[0].Name != "second" {
		t.Errorf("%v", of.Items)
	}
	o := metav1.ListOptions{LabelSelector: "app=x", ResourceVersion: all.ResourceVersion}
	if _, err := u.Watch(t.Context(), Pods, "", l.parts("b", "b--one"), here, o); !apierrors.IsResourceExpired(err) {
		t.Errorf("a version of another owner: %v", err)
	}
	l.gone.Store(true) // before the watch begins
	put("a--one", "third")
	w, err := u.Watch(t.Context(), Pods, "", l.parts("a", "a--one", "a--two"), here, o)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	want := map[string]bool{"ADDED one/third": true, "DELETED two/second": true}
	for deadline := time.After(time.Minute); len(want) > 0; {
		select {
		case e := <-w.ResultChan():
			pod, is := e.Object.(*corev1.Pod)
			if !is || !want[string(e.Type)+" "+pod.Namespace+"/"+pod.Name] {
				t.Fatalf("%s %v, and not %v", e.Type, e.Object, want)
			}
			delete(want, string(e.Type)+" "+pod.Namespace+"/"+pod.Name)
		case <-deadline:
			t.Fatalf("no events %v", want)
		}
	}
}
