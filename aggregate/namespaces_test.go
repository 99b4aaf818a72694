package aggregate

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestMemberNamespaces: a member gets the namespace of an object once, as its syncer would create it.
func TestMemberNamespaces(t *testing.T) {
	ctx, gvr := t.Context(), corev1.SchemeGroupVersion.WithResource("namespaces")
	kinds := []fakeapi.Kind{fakeapi.BuiltIn("", "v1", "Namespace", "namespaces")}
	atoll, east := fakeapi.New(t, kinds...), fakeapi.New(t, kinds...)
	clk := clocktesting.NewFakePassiveClock(start)
	digest := "one"
	n := NewMemberNamespaces(func() (corev1client.NamespaceInterface, error) {
		client, err := corev1client.NewForConfig(atoll.Config())
		if err != nil {
			return nil, err
		}
		return client.Namespaces(), nil
	}, func(ns *corev1.Namespace) (labels, annotations map[string]string) {
		return map[string]string{"from": ns.Labels["from"]}, nil
	}, func(context.Context, string) (*rest.Config, string, error) { return east.Config(), digest, nil }, clk)
	n.timeout = time.Minute // a busy machine is not a member that does not answer
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"from": "atoll"}}}
	}
	provide := func(name string) {
		t.Helper()
		if err := n.Provide(ctx, "east", name); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := east.Dynamic().Resource(gvr).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	atoll.Put(namespace("web"))
	provide("web")
	there := east.Get(gvr, "", "web")
	if there == nil || there.GetLabels()["from"] != "atoll" || there.GetLabels()[v1alpha1.ManagedLabel] != "true" ||
		there.GetAnnotations()[v1alpha1.ClusterAnnotation] != "east" {
		t.Fatalf("the member got %v", there)
	}
	if got := atoll.Get(gvr, "", "web").GetAnnotations()[v1alpha1.ProvidedInAnnotation]; got != "east" {
		t.Errorf("the workspace's namespace says it is in %q", got)
	}

	// Someone deletes it there: it stays deleted, also when the server asks the member again.
	remove("web")
	provide("web")
	clk.SetTime(clk.Now().Add(providedTTL + 1))
	provide("web")
	if east.Get(gvr, "", "web") != nil {
		t.Error("a namespace that was deleted in the member came back")
	}

	// The member's own namespace is not changed, nor recorded.
	own := namespace("own")
	own.Labels = nil
	before := east.Put(own)
	atoll.Put(namespace("own"))
	provide("own")
	if after := east.Get(gvr, "", "own"); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("the member's own namespace was changed: %v", after)
	}
	// Another cluster under the same name has to be looked at, too.
	digest = "two"
	clk.SetTime(clk.Now().Add(clientTTL + 1))
	remove("own")
	provide("own")
	if east.Get(gvr, "", "own") == nil {
		t.Error("the answers of a former cluster were used for the present one")
	}

	// Neither a namespace that is gone nor one that is going is created.
	going := namespace("going")
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: start}, []string{"test.example/keep"}
	atoll.Put(going)
	provide("going")
	provide("gone")
	if east.Get(gvr, "", "going") != nil || east.Get(gvr, "", "gone") != nil {
		t.Error("a namespace was created that the workspace does not have")
	}
}

// TestMemberNamespacesAway: a member that does not answer is asked again after a while, not by every write.
func TestMemberNamespacesAway(t *testing.T) {
	kinds := []fakeapi.Kind{fakeapi.BuiltIn("", "v1", "Namespace", "namespaces")}
	atoll, east := fakeapi.New(t, kinds...), fakeapi.New(t, kinds...)
	atoll.Put(&corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}})
	var mu sync.Mutex
	away, asked := true, 0
	east.OnRequest(func(r fakeapi.Request) *metav1.Status {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if away {
			return &apierrors.NewForbidden(corev1.Resource("namespaces"), r.Name, nil).ErrStatus
		}
		return nil
	})
	clk := clocktesting.NewFakePassiveClock(start)
	n := NewMemberNamespaces(func() (corev1client.NamespaceInterface, error) {
		client, err := corev1client.NewForConfig(atoll.Config())
		if err != nil {
			return nil, err
		}
		return client.Namespaces(), nil
	}, func(*corev1.Namespace) (labels, annotations map[string]string) { return nil, nil },
		func(context.Context, string) (*rest.Config, string, error) { return east.Config(), "one", nil }, clk)
	n.timeout = time.Minute

	if err := n.Provide(t.Context(), "east", "web"); err == nil {
		t.Error("the member refused, and no error was returned")
	}
	if err := n.Provide(t.Context(), "east", "web"); err != nil || asked != 1 {
		t.Errorf("the member was asked %d times, and %v returned; want once, and nothing", asked, err)
	}
	mu.Lock()
	away = false
	mu.Unlock()
	clk.SetTime(clk.Now().Add(provideRetry + 1))
	// A client that has gone away meanwhile does not count as a member that does not answer.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Provide(gone, "east", "web"); err != nil || !slices.Contains(east.Writes(), "create namespaces web") {
		t.Errorf("%v; the member saw %q", err, east.Writes())
	}
}

func TestIsControlPlaneUser(t *testing.T) {
	for name, want := range map[string]bool{
		"east:system:serviceaccount:kube-system:namespace-controller": true,
		"east:system:kube-controller-manager":                         true,
		"east:system:serviceaccount:ops:controller":                   false,
		"east:alice": false,
	} {
		if got := IsControlPlaneUser("east", name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
