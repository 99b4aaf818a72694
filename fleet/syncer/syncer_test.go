package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/view"
)

// stage is a syncer of cluster "east" between a control plane and a member that
// are both fakes, with a journal of what it writes to either.
type stage struct {
	t       *testing.T
	control *dynamicfake.FakeDynamicClient
	member  *dynamicfake.FakeDynamicClient
	syncer  *Syncer

	mu      sync.Mutex
	journal []string
	down    error // what the member answers, if set
	blind   error // what it answers to who wants to watch, if set
	uids    int
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

// open sets the stage: what is in the control plane, and in the member.
func open(t *testing.T, control, member []*unstructured.Unstructured) *stage {
	t.Helper()
	s := &stage{t: t}
	s.start(control, member)
	return s
}

func (s *stage) start(control, member []*unstructured.Unstructured) {
	t := s.t
	t.Helper()
	s.control = s.fake("control", append(control, cluster()))
	s.member = s.fake("member", member)
	ctx, stop := context.WithCancel(t.Context())
	term, err := fleet.TermOver(ctx, fleet.Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)},
		kubefake.NewClientset(), s.control, nil, interpret.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	s.syncer = &Syncer{View: view.Of(term, "east"), cluster: "east", clock: term.Clock, log: term.Log, known: map[types.NamespacedName]*memory{},
		breaker: breaker{glance: 50 * time.Millisecond},
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](10*time.Millisecond, 50*time.Millisecond))}
	s.syncer.member = newMember(s.member, nil, nil, s.syncer.memberChanged)
	s.syncer.member.sighted = s.syncer.lookAgain
	done := make(chan struct{})
	go func() { defer close(done); _ = s.syncer.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// fake is a client with just enough of server-side apply: fields and metadata are
// merged. It keeps the journal.
func (s *stage) fake(name string, objects []*unstructured.Unstructured) *dynamicfake.FakeDynamicClient {
	var initial []runtime.Object
	for _, o := range objects {
		initial = append(initial, o)
	}
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), gvrs(), initial...)
	c.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if name == "member" && s.down != nil && action.GetVerb() != "list" && action.GetVerb() != "watch" {
			return true, nil, s.down
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
		return name == "member" && s.blind != nil, nil, s.blind
	})
	return c
}

func (s *stage) apply(name string, c *dynamicfake.FakeDynamicClient, a clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
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
			merged.Object[field] = overlaid(merged.Object[field], value)
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

// overlaid gives a value with what is applied laid over it.
func overlaid(live, applied any) any {
	was, ok := live.(map[string]any)
	is, also := applied.(map[string]any)
	if !ok || !also {
		return applied
	}
	for field, value := range is {
		was[field] = overlaid(was[field], value)
	}
	return was
}

func (s *stage) wrote() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// eventually waits for a condition, and shows the journal if it does not come.
func (s *stage) eventually(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("not: %s\n%s", what, strings.Join(s.wrote(), "\n"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *stage) contains(entry string) func() bool {
	return func() bool {
		return slices.ContainsFunc(s.wrote(), func(e string) bool { return strings.Contains(e, entry) })
	}
}

// settled waits until nothing has been written for a while: for what must not
// happen, there is nothing else to wait for.
func (s *stage) settled() []string {
	last, since := len(s.wrote()), time.Now()
	for time.Since(since) < 300*time.Millisecond {
		time.Sleep(10 * time.Millisecond)
		if n := len(s.wrote()); n != last {
			last, since = n, time.Now()
		}
	}
	return s.wrote()
}

func (s *stage) memberHas(kind, name string) *unstructured.Unstructured {
	s.t.Helper()
	k, _ := interpret.Find(schema.GroupKind{Kind: kind})
	return s.memberHasOf(k, name)
}

func (s *stage) memberHasOf(k interpret.Kind, name string) *unstructured.Unstructured {
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

func marked(uid, source string) *unstructured.Unstructured {
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

func TestSaysSoBeforeItDoesSo(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("the object is there", func() bool { return s.memberHas("ConfigMap", "conf") != nil })
	s.eventually("and reported", s.contains("control apply configmap-conf <nil>"))
	journal := s.settled()
	want := []string{"control apply configmap-conf Applying", "member apply conf", "control apply configmap-conf <nil>"}
	if strings.Join(journal, "\n") != strings.Join(want, "\n") {
		t.Errorf("wrote\n%s\nwant\n%s", strings.Join(journal, "\n"), strings.Join(want, "\n"))
	}
	made := s.memberHas("ConfigMap", "conf")
	if made.GetLabels()[v1alpha1.ManagedLabel] != "true" || made.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "source" {
		t.Errorf("without our marks: %v %v", made.GetLabels(), made.GetAnnotations())
	}
}

func TestTouchesNothingForeign(t *testing.T) {
	otherCluster := marked("theirs", "source")
	otherCluster.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "west", v1alpha1.SourceUIDAnnotation: "source"})
	for name, there := range map[string]*unstructured.Unstructured{
		"unmarked":            configMap("theirs"),
		"of another object":   marked("theirs", "another"),
		"of a twin's syncer":  otherCluster,
		"and a cluster's own": configMap("own"),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, objects(configMap("source"), binding(true, nil)), objects(there))
			s.eventually("a conflict is reported", s.contains("control apply configmap-conf Conflict"))
			for _, entry := range s.settled() {
				if strings.HasPrefix(entry, "member") {
					t.Errorf("wrote to the member: %s", entry)
				}
			}
		})
	}
	t.Run("unless told to", func(t *testing.T) {
		source := configMap("source")
		source.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: "true"})
		s := open(t, objects(source, binding(true, nil)), objects(configMap("theirs")))
		s.eventually("it is taken over", s.contains("member apply conf"))
	})
}

func TestRemovesWhatIsNoLongerChosen(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(false, &v1alpha1.ClusterState{UID: "there"})), objects(marked("there", "source")))
	s.eventually("it is deleted by UID", s.contains("member delete conf uid=there"))
	s.eventually("and the entry goes", s.contains("control apply configmap-conf no entry"))
	journal := s.settled()
	if slices.IndexFunc(journal, func(e string) bool { return strings.Contains(e, "no entry") }) <
		slices.IndexFunc(journal, func(e string) bool { return strings.Contains(e, "delete") }) {
		t.Errorf("the entry went first:\n%s", strings.Join(journal, "\n"))
	}
}

// TestNeverRemoves: whatever is not known for certain, what runs stays.
func TestNeverRemoves(t *testing.T) {
	deleting := func(b *unstructured.Unstructured) *unstructured.Unstructured {
		now := metav1.Now()
		b.SetDeletionTimestamp(&now)
		return b
	}
	applied := &v1alpha1.ClusterState{UID: "there", Generation: 1}
	tests := map[string]struct {
		control []*unstructured.Unstructured
		there   *unstructured.Unstructured
	}{
		"the object is not seen":               {objects(binding(true, applied)), marked("there", "source")},
		"the object was replaced":              {objects(configMap("another"), binding(true, applied)), marked("there", "source")},
		"only the binding was deleted":         {objects(configMap("source"), deleting(binding(true, applied))), marked("there", "source")},
		"nothing is bound":                     {nil, marked("there", "source")},
		"no longer chosen, but it is not ours": {objects(configMap("source"), binding(false, applied)), configMap("theirs")},
		"no longer chosen, never been there":   {objects(configMap("source"), binding(false, nil)), marked("there", "source")},
		"the object is gone, theirs is not":    {objects(deleting(binding(true, applied))), configMap("theirs")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t, tt.control, objects(tt.there))
			for _, entry := range s.settled() {
				if strings.HasPrefix(entry, "member delete") {
					t.Errorf("deleted: %s", entry)
				}
			}
			if s.memberHas("ConfigMap", "conf") == nil {
				t.Error("it is gone")
			}
		})
	}
}

func TestALostMemberLosesNothing(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(false, &v1alpha1.ClusterState{UID: "there"})), nil)
	s.mu.Lock()
	s.down = errors.New("dial tcp 192.0.2.1:6443: connection refused")
	s.mu.Unlock()
	s.syncer.queue.Add(types.NamespacedName{Namespace: "shop", Name: "configmap-conf"})
	for _, entry := range s.settled() {
		// Before the line was cut it may have found that nothing is there.
		if strings.Contains(entry, "member delete") {
			t.Errorf("deleted: %s", entry)
		}
	}
	if got := explain(s.down); strings.Contains(got, "192.0.2.1") {
		t.Errorf("the report changes with each network error: %s", got)
	}
}

func TestPutsDriftRight(t *testing.T) {
	s := open(t, objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("it is reported", s.contains("control apply configmap-conf <nil>"))
	s.eventually("it is watched", func() bool {
		k, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
		_, seen := s.syncer.member.cached(k, types.NamespacedName{Namespace: "shop", Name: "conf"})
		return seen
	})
	s.settled()
	changed := s.memberHas("ConfigMap", "conf").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["data"] = map[string]any{"a": "by hand"}
	if err := s.member.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "shop"); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is put right", func() bool {
		data, _, _ := unstructured.NestedString(s.memberHas("ConfigMap", "conf").Object, "data", "a")
		return data == "b"
	})
	applies := 0
	for _, entry := range s.settled() {
		if entry == "member apply conf" {
			applies++
		}
	}
	if applies != 2 {
		t.Errorf("%d applies, want 2: it spins, or does nothing", applies)
	}
}

// changedByHand changes the object in the member once the syncer watches it.
func (s *stage) changedByHand() {
	s.t.Helper()
	s.eventually("it is reported", s.contains("control apply configmap-conf <nil>"))
	s.eventually("it is watched", func() bool {
		k, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
		_, seen := s.syncer.member.cached(k, types.NamespacedName{Namespace: "shop", Name: "conf"})
		return seen
	})
	s.settled()
	changed := s.memberHas("ConfigMap", "conf").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["data"] = map[string]any{"a": "by hand"}
	if err := s.member.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "shop"); err != nil {
		s.t.Fatal(err)
	}
}

// state gives what the binding says of the cluster.
func (s *stage) state() v1alpha1.ClusterState {
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

func specified(b *unstructured.Unstructured, field string, value any) *unstructured.Unstructured {
	if err := unstructured.SetNestedField(b.Object, value, "spec", field); err != nil {
		panic(err)
	}
	return b
}

// TestReportsDrift: where the policy says so, what was changed in the member stays,
// and the binding says what it is.
func TestReportsDrift(t *testing.T) {
	s := open(t, objects(configMap("source"), specified(binding(true, nil), "drift", "Report")), nil)
	s.changedByHand()
	s.eventually("it is reported", s.contains("control apply configmap-conf Drifted"))
	if got := s.state().Message; !strings.HasSuffix(got, ": data.a") {
		t.Errorf("said %q, which does not name the field", got)
	}
	s.settled()
	if data, _, _ := unstructured.NestedString(s.memberHas("ConfigMap", "conf").Object, "data", "a"); data != "by hand" {
		t.Errorf("it was put right: %s", data)
	}
	before := s.state()
	if before.Applied == "" || before.UID == "" {
		t.Errorf("what is known is gone: %+v", before)
	}
	// The policy changes: now it is put right.
	corrected := specified(binding(true, &before), "drift", "Correct")
	if err := s.control.Tracker().Update(v1alpha1.ResourceBindingResource, corrected, "shop"); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is put right", func() bool {
		data, _, _ := unstructured.NestedString(s.memberHas("ConfigMap", "conf").Object, "data", "a")
		return data == "b"
	})
}

// TestTheCountOfAnAutoscalerIsNoDrift: who owns it in the member is seen in the cache.
func TestTheCountOfAnAutoscalerIsNoDrift(t *testing.T) {
	source := object("apps/v1", "Deployment", "shop", "web", "source", map[string]any{"spec": map[string]any{"replicas": int64(3), "paused": false}})
	b := specified(specified(binding(true, nil), "drift", "Report"), "scaledBy", map[string]any{"kind": "HorizontalPodAutoscaler", "name": "web"})
	b.SetName("deployment.apps-web")
	specified(b, "resource", map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "source"})
	specified(b, "clusters", []any{map[string]any{"name": "east", "replicas": int64(3), "reason": "Scheduled", "message": ""}})
	s := open(t, objects(source, b), nil)
	s.eventually("it is reported", s.contains("control apply deployment.apps-web <nil>"))
	k, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	key := types.NamespacedName{Namespace: "shop", Name: "web"}
	s.eventually("it is watched", func() bool { _, seen := s.syncer.member.cached(k, key); return seen })
	s.settled()

	changed := s.memberHasOf(k, "web").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["spec"] = map[string]any{"replicas": int64(7), "paused": true}
	owner := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	changed.SetManagedFields([]metav1.ManagedFieldsEntry{owner("kube-controller-manager", `{"f:spec":{"f:replicas":{}}}`), owner("somebody", `{"f:spec":{"f:paused":{}}}`)})
	if err := s.member.Tracker().Update(k.GVR(), changed, "shop"); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is reported", s.contains("control apply deployment.apps-web Drifted"))
	u, err := s.control.Tracker().Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web")
	if err != nil {
		t.Fatal(err)
	}
	states, _, _ := unstructured.NestedSlice(u.(*unstructured.Unstructured).Object, "status", "clusters")
	if message := fmt.Sprint(states[0].(map[string]any)["message"]); !strings.HasSuffix(message, ": spec.paused") {
		t.Errorf("said %q", message)
	}
	seen, _ := s.syncer.member.cached(k, key)
	if owners := seen.GetManagedFields(); len(owners) != 1 || owners[0].Manager != "kube-controller-manager" {
		t.Errorf("the cache has the owners %v", owners)
	}
}

// TestSuspended: nothing is written, and nothing is removed.
func TestSuspended(t *testing.T) {
	there := &v1alpha1.ClusterState{UID: "there", Generation: 1, Health: v1alpha1.Healthy}
	for name, tt := range map[string]struct {
		binding *unstructured.Unstructured
		member  []*unstructured.Unstructured
	}{
		"an object that is there":         {binding(true, there), objects(marked("there", "source"))},
		"an object that is not there yet": {binding(true, nil), nil},
		"an object that is to be no more": {binding(false, there), objects(marked("there", "source"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, objects(configMap("source"), specified(tt.binding, "suspend", true)), tt.member)
			s.eventually("it says so", s.contains("control apply configmap-conf Suspended"))
			for _, entry := range s.settled() {
				if strings.HasPrefix(entry, "member") {
					t.Errorf("wrote to the member: %s", entry)
				}
			}
		})
	}
}

// many are bindings that no longer choose the cluster, and what it has of them.
func many(n int) (control, member []*unstructured.Unstructured) {
	for i := range n {
		name := fmt.Sprintf("conf-%d", i)
		b := binding(false, &v1alpha1.ClusterState{UID: types.UID(name), Health: v1alpha1.Healthy})
		b.SetName("configmap-" + name)
		b.SetUID(types.UID("binding-" + name))
		specified(b, "resource", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "source"})
		there := marked(name, "source")
		there.SetName(name)
		source := configMap("source")
		source.SetName(name)
		control, member = append(control, b, source), append(member, there)
	}
	return control, member
}

func (s *stage) deletions() int {
	n := 0
	for _, entry := range s.wrote() {
		if strings.HasPrefix(entry, "member delete") {
			n++
		}
	}
	return n
}

// ofAType are bindings of objects that are gone with their type, and what the cluster
// has of them.
func ofAType(n int) (control, member []*unstructured.Unstructured) {
	now := metav1.Now()
	for i := range n {
		name := fmt.Sprintf("widget-%d", i)
		b := binding(true, &v1alpha1.ClusterState{UID: types.UID(name), Health: v1alpha1.Healthy})
		b.SetName("widget.example.com-" + name)
		b.SetUID(types.UID("binding-" + name))
		b.SetDeletionTimestamp(&now)
		specified(b, "resource", map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "name": name, "uid": "source", "resource": "widgets"})
		there := marked(name, "source")
		there.SetAPIVersion("example.com/v1")
		there.SetKind("Widget")
		there.SetName(name)
		control, member = append(control, b), append(member, there)
	}
	return control, member
}

// onRequest has bindings say that their objects leave the cluster on request.
func onRequest(reason string, bindings []*unstructured.Unstructured) {
	for _, b := range bindings {
		if b.GetKind() == "ResourceBinding" {
			specified(b, "requestedRemovals", []any{map[string]any{"name": "east", "reason": reason}})
		}
	}
}

// TestWhatWasAskedForGoes, however much it is, and nothing else by the way.
func TestWhatWasAskedForGoes(t *testing.T) {
	const n = v1alpha1.MinDeletions + 1
	t.Run("users deleted", func(t *testing.T) {
		control, member := many(n)
		onRequest(v1alpha1.RemovalUsersDeleted, control)
		s := open(t, control, member)
		s.eventually("all go", func() bool { return s.deletions() == n })
		if s.contains("RemovalHeld")() {
			t.Error("some were held")
		}
	})
	t.Run("type deleted", func(t *testing.T) {
		control, member := ofAType(n)
		onRequest(v1alpha1.RemovalTypeDeleted, control)
		s := open(t, control, member)
		s.eventually("all go", func() bool { return s.deletions() == n })
		if s.contains("RemovalHeld")() {
			t.Error("some were held")
		}
	})
	t.Run("type vanished", func(t *testing.T) {
		control, member := ofAType(n)
		s := open(t, control, member)
		s.eventually("it is held", s.contains("RemovalHeld"))
		s.settled()
		if s.deletions() != 0 {
			t.Errorf("%d objects were deleted", s.deletions())
		}
	})
	t.Run("some of them", func(t *testing.T) {
		control, member := many(2 * n)
		onRequest(v1alpha1.RemovalUsersDeleted, control[:2*n]) // each has its object after it
		s := open(t, control, member)
		s.eventually("half of them go", func() bool { return s.deletions() == n })
		s.eventually("the others are held", s.contains("RemovalHeld"))
		s.settled()
		if s.deletions() != n {
			t.Errorf("%d objects were deleted, of which %d were asked for", s.deletions(), n)
		}
	})
}

// TestHaltsMassDeletion: when decisions take too much at once, nothing goes until a
// person says so, and then all of it.
func TestHaltsMassDeletion(t *testing.T) {
	control, member := many(v1alpha1.MinDeletions + 1)
	s := open(t, control, member)
	s.eventually("it is held", s.contains("RemovalHeld"))
	s.settled()
	if n := s.deletions(); n != 0 {
		t.Errorf("%d objects were deleted", n)
	}
	s.eventually("the Cluster says so", s.contains("control apply east"))
	u, err := s.control.Tracker().Get(v1alpha1.ClusterResource, "", "east")
	if err != nil {
		t.Fatal(err)
	}
	allowed := u.(*unstructured.Unstructured).DeepCopy()
	conditions, _, _ := unstructured.NestedSlice(allowed.Object, "status", "conditions")
	if said := fmt.Sprint(conditions); !strings.Contains(said, "DeletionsHalted") || !strings.Contains(said, "11 of the 11") ||
		!strings.Contains(said, "ConfigMap shop/conf-0") || !strings.Contains(said, "allow-deletions east") {
		t.Errorf("it says %s", said)
	}
	allowed.SetAnnotations(map[string]string{v1alpha1.AllowDeletionsAnnotation: time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	if err := s.control.Tracker().Update(v1alpha1.ClusterResource, allowed, ""); err != nil {
		t.Fatal(err)
	}
	s.eventually("all go", func() bool { return s.deletions() >= v1alpha1.MinDeletions+1 })
}

func TestAFewMayGo(t *testing.T) {
	control, member := many(v1alpha1.MinDeletions)
	s := open(t, control, member)
	s.eventually("all go", func() bool { return s.deletions() == v1alpha1.MinDeletions })
}

// TestReportsARolloutInSteps: that an object is on its way is not a report for each thing
// that happens on the way; that it has arrived is told at once.
func TestReportsARolloutInSteps(t *testing.T) {
	s := &Syncer{clock: testingclock.NewFakeClock(time.Unix(1000, 0))}
	fake := s.clock.(*testingclock.FakeClock)
	intent := &v1alpha1.ClusterState{Name: "east", Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}
	m := &memory{entry: intent, told: fake.Now()}
	going := &v1alpha1.ClusterState{Name: "east", UID: "u", Health: v1alpha1.Progressing, Message: "1 of 3"}
	if wait := s.early(m, going); wait != pace {
		t.Errorf("a report right after the intent waits %s, want %s", wait, pace)
	}
	for what, entry := range map[string]*v1alpha1.ClusterState{
		"that it is well":       {Name: "east", UID: "u", Health: v1alpha1.Healthy},
		"that it is in trouble": {Name: "east", UID: "u", Health: v1alpha1.Degraded},
		"what is in the way":    {Name: "east", UID: "u", Health: v1alpha1.Progressing, Reason: v1alpha1.StateDrifted},
	} {
		if wait := s.early(m, entry); wait > 0 {
			t.Errorf("%s waits %s", what, wait)
		}
	}
	fake.Step(pace)
	if wait := s.early(m, going); wait > 0 {
		t.Errorf("later it waits %s", wait)
	}
	if wait := s.early(&memory{}, going); wait > 0 {
		t.Errorf("the first report of a syncer waits %s", wait)
	}
}

// TestBeginsWithLists: a syncer that begins reads what is there by a watch, and does not
// ask for each object.
func TestBeginsWithLists(t *testing.T) {
	there := marked("there", "source")
	there.SetResourceVersion("5")
	s := open(t, objects(configMap("source"), binding(true, &v1alpha1.ClusterState{UID: "there", Health: v1alpha1.Healthy})), objects(there))
	s.eventually("it is put in step", s.contains("member apply conf"))
	s.settled()
	for _, a := range s.member.Actions() {
		if a.GetVerb() == "get" && a.GetResource().Resource == "configmaps" {
			t.Errorf("asked for one: %v", a)
		}
	}
}

// TestBeginsWhereTheLastOneEnded: what is there as another syncer left it is not applied
// again; what was changed there meanwhile is.
func TestBeginsWhereTheLastOneEnded(t *testing.T) {
	first := open(t, objects(configMap("source"), binding(true, nil)), nil)
	first.eventually("it is reported", first.contains("control apply configmap-conf <nil>"))
	first.settled()
	b, err := first.control.Tracker().Get(v1alpha1.ResourceBindingResource, "shop", "configmap-conf")
	if err != nil {
		t.Fatal(err)
	}
	left := first.memberHas("ConfigMap", "conf")
	bound := b.(*unstructured.Unstructured)

	second := open(t, objects(configMap("source"), bound.DeepCopy()), objects(left.DeepCopy()))
	if wrote := second.settled(); len(wrote) > 0 {
		t.Errorf("wrote %q", wrote)
	}
	changed := left.DeepCopy()
	changed.Object["data"] = map[string]any{"a": "something else"}
	third := open(t, objects(configMap("source"), bound.DeepCopy()), objects(changed))
	third.eventually("it is put right", third.contains("member apply conf"))
}
