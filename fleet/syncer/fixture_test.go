package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/view"
)

// fixture is a syncer of cluster "east" between a fake control plane and a fake member, with a
// journal of its writes to either.
type fixture struct {
	t       *testing.T
	control *dynamicfake.FakeDynamicClient
	member  *dynamicfake.FakeDynamicClient
	syncer  *Syncer

	mu        sync.Mutex
	journal   []string
	memberErr error // the member's response to every request, if set
	watchErr  error // the member's response to watch requests, if set
	uids      int
}

func gvrs() map[schema.GroupVersionResource]string {
	out := map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
		v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList", {Version: "v1", Resource: "namespaces"}: "NamespaceList",
		v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList", v1alpha1.APIResourceImportResource: "APIResourceImportList",
		v1alpha1.ResourceInterpretationResource:                                               "ResourceInterpretationList",
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "CustomResourceDefinitionList",
		{Group: "example.com", Version: "v1", Resource: "widgets"}:                            "WidgetList",
	}
	for _, k := range interpret.Kinds() {
		out[k.GVR()] = k.Kind + "List"
	}
	return out
}

// newFixture starts a syncer with the given objects in the control plane and in the member.
func newFixture(t *testing.T, control, member []*unstructured.Unstructured) *fixture {
	t.Helper()
	s := &fixture{t: t}
	s.start(control, member)
	return s
}

func (s *fixture) start(control, member []*unstructured.Unstructured) {
	t := s.t
	t.Helper()
	s.control = s.fake("control", append(control, cluster()))
	s.member = s.fake("member", member)
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSessionWithClients(ctx, fleet.Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)},
		kubefake.NewClientset(), s.control, nil, interpret.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	s.syncer = &Syncer{View: view.NewLocal(session, "east"), cluster: "east", clock: session.Clock, log: session.Log, metrics: NewMetrics(), records: map[types.NamespacedName]*record{},
		breaker: breaker{recheckInterval: 50 * time.Millisecond},
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](10*time.Millisecond, 50*time.Millisecond))}
	s.syncer.member = newMemberClient(s.member, nil, nil, s.syncer.onMemberChange)
	s.syncer.member.onWatchable = s.syncer.requeueKind
	done := make(chan struct{})
	go func() { defer close(done); _ = s.syncer.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// fake is a client with a minimal server-side apply: it merges fields and metadata. It records
// the journal.
func (s *fixture) fake(name string, objects []*unstructured.Unstructured) *dynamicfake.FakeDynamicClient {
	var initial []runtime.Object
	for _, o := range objects {
		initial = append(initial, o)
	}
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), gvrs(), initial...)
	c.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if name == "member" && s.memberErr != nil && action.GetVerb() != "list" && action.GetVerb() != "watch" {
			return true, nil, s.memberErr
		}
		switch a := action.(type) {
		case clienttesting.DeleteActionImpl:
			uid := ""
			if p := a.DeleteOptions.Preconditions; p != nil && p.UID != nil {
				uid = string(*p.UID)
			}
			s.journal = append(s.journal, fmt.Sprintf("%s delete %s uid=%s", name, a.Name, uid))
		case clienttesting.PatchActionImpl:
			if a.PatchType == types.ApplyPatchType {
				return s.apply(name, c, a)
			}
			s.journal = append(s.journal, fmt.Sprintf("%s patch %s", name, a.Name))
		}
		return false, nil, nil
	})
	c.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return name == "member" && s.watchErr != nil, nil, s.watchErr
	})
	return c
}

func (s *fixture) apply(name string, c *dynamicfake.FakeDynamicClient, a clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	desired := &unstructured.Unstructured{}
	if err := json.Unmarshal(a.Patch, &desired.Object); err != nil {
		return true, nil, err
	}
	what := fmt.Sprintf("%s apply %s", name, a.Name)
	if name == "control" {
		entries, _, _ := unstructured.NestedSlice(desired.Object, "status", "clusters")
		what += " no entry"
		for _, e := range entries {
			what = strings.TrimSuffix(what, " no entry") + fmt.Sprintf(" %v", e.(map[string]any)["reason"])
		}
	}
	dry := len(a.PatchOptions.DryRun) > 0
	if dry {
		what += " dry"
	}
	s.journal = append(s.journal, what)
	live, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), a.Name)
	if apierrors.IsNotFound(err) {
		s.uids++
		desired.SetUID(types.UID(fmt.Sprintf("made-%d", s.uids)))
		desired.SetGeneration(1)
		desired.SetResourceVersion("1")
		return true, desired, c.Tracker().Create(a.GetResource(), desired, a.GetNamespace())
	}
	if err != nil {
		return true, nil, err
	}
	merged := live.(*unstructured.Unstructured).DeepCopy()
	for field, value := range desired.Object {
		if field != "metadata" {
			merged.Object[field] = mergeValue(merged.Object[field], value)
		}
	}
	if version, err := strconv.Atoi(merged.GetResourceVersion()); err == nil {
		merged.SetResourceVersion(strconv.Itoa(version + 1))
	}
	if len(desired.GetLabels()) > 0 {
		merged.SetLabels(desired.GetLabels())
		merged.SetAnnotations(desired.GetAnnotations())
	}
	if dry {
		return true, merged, nil
	}
	return true, merged, c.Tracker().Update(a.GetResource(), merged, a.GetNamespace())
}

// mergeValue returns a value with an applied value merged into it.
func mergeValue(live, applied any) any {
	was, ok := live.(map[string]any)
	is, also := applied.(map[string]any)
	if !ok || !also {
		return applied
	}
	for field, value := range is {
		was[field] = mergeValue(was[field], value)
	}
	return was
}

func (s *fixture) writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// eventually waits for a condition, and prints the journal on timeout.
func (s *fixture) eventually(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("timed out: %s\n%s", what, strings.Join(s.writes(), "\n"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *fixture) contains(entry string) func() bool {
	return func() bool {
		return slices.ContainsFunc(s.writes(), func(e string) bool { return strings.Contains(e, entry) })
	}
}

// waitIdle waits until nothing has been written for a while, for tests of writes that must not
// happen.
func (s *fixture) waitIdle() []string {
	last, since := len(s.writes()), time.Now()
	for time.Since(since) < 300*time.Millisecond {
		time.Sleep(10 * time.Millisecond)
		if n := len(s.writes()); n != last {
			last, since = n, time.Now()
		}
	}
	return s.writes()
}

func (s *fixture) memberObject(kind, name string) *unstructured.Unstructured {
	s.t.Helper()
	k, _ := interpret.Find(schema.GroupKind{Kind: kind})
	return s.memberObjectOf(k, name)
}

func (s *fixture) memberObjectOf(k interpret.KindInfo, name string) *unstructured.Unstructured {
	s.t.Helper()
	u, err := s.member.Tracker().Get(k.GVR(), "shop", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return u.(*unstructured.Unstructured)
}

func cluster() *unstructured.Unstructured {
	return object(v1alpha1.Group+"/"+v1alpha1.Version, "Cluster", "", "east", "cluster-uid", nil)
}

func object(apiVersion, kind, namespace, name, uid string, rest map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range rest {
		u.Object[field] = value
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetUID(types.UID(uid))
	return u
}

func configMap(uid string) *unstructured.Unstructured {
	return object("v1", "ConfigMap", "shop", "conf", uid, map[string]any{"data": map[string]any{"a": "b"}})
}

func managed(uid, source string) *unstructured.Unstructured {
	u := configMap(uid)
	u.SetLabels(map[string]string{v1alpha1.ManagedLabel: "true"})
	u.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "east", v1alpha1.SourceUIDAnnotation: source})
	return u
}

func binding(chosen bool, state *v1alpha1.ClusterState) *unstructured.Unstructured {
	b := &v1alpha1.ResourceBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "ResourceBinding"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "configmap-conf", UID: "binding-uid",
			Finalizers: []string{v1alpha1.BindingFinalizer}},
		Spec: v1alpha1.ResourceBindingSpec{Resource: v1alpha1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "conf", UID: "source"}},
	}
	if chosen {
		b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: "east", Reason: "Scheduled"}}
	}
	if state != nil {
		state.Name = "east"
		b.Status.Clusters = []v1alpha1.ClusterState{*state}
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: m}
}

func objects(o ...*unstructured.Unstructured) []*unstructured.Unstructured { return o }

// state returns the binding's entry of the cluster.
func (s *fixture) state() v1alpha1.ClusterState {
	u, err := s.control.Tracker().Get(v1alpha1.ResourceBindingResource, "shop", "configmap-conf")
	if err != nil {
		s.t.Fatal(err)
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.(*unstructured.Unstructured).Object, b); err != nil {
		s.t.Fatal(err)
	}
	state, _ := b.State("east")
	return state
}

func withSpec(b *unstructured.Unstructured, field string, value any) *unstructured.Unstructured {
	if err := unstructured.SetNestedField(b.Object, value, "spec", field); err != nil {
		panic(err)
	}
	return b
}
