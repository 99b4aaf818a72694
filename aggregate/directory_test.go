package aggregate

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// directoryFixture is a directory of a fake workspace.
type directoryFixture struct {
	*Directory
	t      *testing.T
	client *dynamicfake.FakeDynamicClient
	clock  *testingclock.FakeClock
}

func newDirectoryFixture(t *testing.T, objects ...runtime.Object) *directoryFixture {
	t.Helper()
	return newDirectoryFixtureWithClient(t, dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.SharedAPIResource: "SharedAPIList", crdResource: "CustomResourceDefinitionList",
	}, objects...), testingclock.NewFakeClock(start))
}

func newDirectoryFixtureWithClient(t *testing.T, client *dynamicfake.FakeDynamicClient, clk *testingclock.FakeClock) *directoryFixture {
	t.Helper()
	d, err := newDirectory(client, clk)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return &directoryFixture{d, t, client, clk}
}

// serving waits until the roster has these members and groups, such as
// "east=a.example".
func (f *directoryFixture) serving(want string) {
	f.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var got []string
		roster, replaced := f.Roster()
		if roster != nil {
			for _, m := range roster.members {
				got = append(got, m.name+"="+strings.Join(sortedKeys(m.groups), ","))
			}
			slices.Sort(got)
			if strings.Join(got, " ") == want {
				return
			}
		}
		select {
		case <-replaced:
		case <-time.After(time.Until(deadline)):
			f.t.Fatalf("serves %v, want %s", got, want)
		}
	}
}

func (f *directoryFixture) put(resource schema.GroupVersionResource, u *unstructured.Unstructured) {
	f.t.Helper()
	_, err := f.client.Resource(resource).Update(f.t.Context(), u, metav1.UpdateOptions{})
	if err != nil {
		if _, err = f.client.Resource(resource).Create(f.t.Context(), u, metav1.CreateOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
}

func fields(t *testing.T, kind string, obj any) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetAPIVersion(v1alpha1.Group + "/" + v1alpha1.Version)
	u.SetKind(kind)
	return u
}

func (f *directoryFixture) shares(name string, change func(*v1alpha1.SharedAPI)) {
	f.t.Helper()
	s := &v1alpha1.SharedAPI{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.SharedAPISpec{
		Groups: []string{"a.example"}, Clusters: []string{"east"}, Namespaces: v1alpha1.NamespacesRequire}}
	change(s)
	f.put(v1alpha1.SharedAPIResource, fields(f.t, "SharedAPI", s))
}

func TestDirectory(t *testing.T) {
	cluster := func(name string) *unstructured.Unstructured {
		c := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Status.FrontProxy = &v1alpha1.FrontProxy{CABundle: newCA(t, name).pem(), UsernameHeaders: []string{"X-Remote-User"}}
		return fields(t, "Cluster", c)
	}
	east := cluster("east")
	f := newDirectoryFixture(t, east, cluster("west"))
	shared, err := f.SharedGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.serving("")
	f.shares("s", func(*v1alpha1.SharedAPI) {})
	f.serving("east=a.example")
	if !shared("a.example") || shared("b.example") {
		t.Error("want a.example shared and b.example not shared")
	}
	if terms, exposed := f.SharedAPI("east", "a.example"); !exposed || terms.Namespaces != v1alpha1.NamespacesRequire {
		t.Errorf("SharedAPI of east: %v, %v", terms, exposed)
	}
	if _, exposed := f.SharedAPI("west", "a.example"); exposed {
		t.Error("SharedAPI for west, to which nothing is exposed")
	}

	// A heartbeat does not change the roster.
	_, replaced := f.Roster()
	beat := east.DeepCopy()
	_ = unstructured.SetNestedField(beat.Object, "v1.36.3", "status", "kubernetesVersion")
	f.put(v1alpha1.ClusterResource, beat)
	f.shares("s", func(s *v1alpha1.SharedAPI) { s.Spec.Clusters = append(s.Spec.Clusters, "north") })
	f.shares("s", func(s *v1alpha1.SharedAPI) {
		s.Status.Clusters = []v1alpha1.ClusterExposure{{Name: "east", Versions: []string{"a.example/v1"}}}
	})
	// A marked CRD keeps a group known as shared, and exposes it to no member.
	crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
	crd.SetName("things.c.example")
	crd.SetLabels(map[string]string{v1alpha1.SharedLabel: "true"})
	f.put(crdResource, crd)
	for deadline := time.Now().Add(20 * time.Second); !shared("c.example"); {
		if time.Now().After(deadline) {
			t.Fatal("a marked group is not reported as shared")
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-replaced:
		t.Error("a new roster without a change")
	default:
	}

	// A withdrawn group that the member still announces can be reached during the grace
	// period.
	entry := func(s *v1alpha1.SharedAPI) {
		s.Spec.Groups = []string{"b.example"}
		s.Status.Clusters = []v1alpha1.ClusterExposure{{Name: "east", Versions: []string{"a.example/v1"}}}
	}
	f.shares("s", entry)
	f.serving("east=a.example,b.example")
	if _, exposed := f.SharedAPI("east", "a.example"); exposed {
		t.Error("SharedAPI for a withdrawn group")
	}
	for deadline := time.Now().Add(20 * time.Second); !f.clock.HasWaiters(); {
		if time.Now().After(deadline) {
			t.Fatal("no timer for the withdrawal")
		}
		time.Sleep(time.Millisecond)
	}
	f.clock.Step(withdrawalGracePeriod)
	f.serving("east=b.example")
	// When the member no longer announces it, it is removed at once.
	f.shares("s", func(*v1alpha1.SharedAPI) {})
	f.serving("east=a.example")
	f.shares("s", func(s *v1alpha1.SharedAPI) { s.Spec.Groups = []string{"b.example"} })
	f.serving("east=b.example")

	// Two members with one authority: neither is served.
	west := east.DeepCopy()
	west.SetName("west")
	f.put(v1alpha1.ClusterResource, west)
	f.shares("s", func(s *v1alpha1.SharedAPI) { s.Spec.Clusters = []string{"east", "west"} })
	f.serving("")
}

func TestEmptyDirectory(t *testing.T) {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	d, err := newDirectory(client, testingclock.NewFakeClock(start))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := d.SharedGroups(ctx); err == nil {
		t.Error("groups are known before the first list")
	}
	if roster, _ := d.Roster(); roster != nil {
		t.Error("a roster before the first list")
	}
}
