package aggregate

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// directoryFixture is a directory of a workspace in memory.
type directoryFixture struct {
	*Directory
	t     *testing.T
	api   *fakeapi.Server
	clock *testingclock.FakeClock
}

// newWorkspace has no objects yet.
func newWorkspace(t *testing.T, kinds ...fakeapi.Kind) *fakeapi.Server {
	t.Helper()
	return fakeapi.New(t, append(kinds, fakeapi.Custom("Cluster", v1alpha1.ClusterResource), fakeapi.Custom("SharedAPI", v1alpha1.SharedAPIResource),
		fakeapi.Custom("CustomResourceDefinition", crdResource))...)
}

func newDirectoryFixture(t *testing.T, api *fakeapi.Server) *directoryFixture {
	t.Helper()
	clk := testingclock.NewFakeClock(start)
	d, err := NewDirectory(api.Config(), clk)
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
	return &directoryFixture{d, t, api, clk}
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

func (f *directoryFixture) shares(name string, change func(*v1alpha1.SharedAPI)) {
	f.t.Helper()
	s := &v1alpha1.SharedAPI{TypeMeta: typeMeta("SharedAPI"), ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.SharedAPISpec{
		Groups: []string{"a.example"}, Clusters: []string{"east"}, Namespaces: v1alpha1.NamespacesRequire}}
	change(s)
	f.api.Put(s)
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: kind}
}

func TestDirectory(t *testing.T) {
	api := newWorkspace(t)
	cluster := func(name string) *unstructured.Unstructured {
		c := &v1alpha1.Cluster{TypeMeta: typeMeta("Cluster"), ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Status.FrontProxy = &v1alpha1.FrontProxy{CABundle: newCA(t, name).pem(), UsernameHeaders: []string{"X-Remote-User"}}
		return api.Put(c)
	}
	east := cluster("east")
	cluster("west")
	f := newDirectoryFixture(t, api)
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
	api.Put(beat)
	f.shares("s", func(s *v1alpha1.SharedAPI) { s.Spec.Clusters = append(s.Spec.Clusters, "north") })
	f.shares("s", func(s *v1alpha1.SharedAPI) {
		s.Status.Clusters = []v1alpha1.ClusterExposure{{Name: "east", Versions: []string{"a.example/v1"}}}
	})
	// A marked CRD keeps a group known as shared, and exposes it to no member.
	crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
	crd.SetName("things.c.example")
	crd.SetLabels(map[string]string{v1alpha1.SharedLabel: "true"})
	api.Put(crd)
	fakeapi.Until(t, "a marked group is reported as shared", func() bool { return shared("c.example") })
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
	fakeapi.Until(t, "a timer waits for the withdrawal", f.clock.HasWaiters)
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
	api.Put(west)
	f.shares("s", func(s *v1alpha1.SharedAPI) { s.Spec.Clusters = []string{"east", "west"} })
	f.serving("")
}

func TestEmptyDirectory(t *testing.T) {
	d, err := NewDirectory(newWorkspace(t).Config(), testingclock.NewFakeClock(start))
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
