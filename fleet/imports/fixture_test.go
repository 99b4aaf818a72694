package imports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

var widgets = kschema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// fixture is the controller between a fake control plane and fake members.
type fixture struct {
	t       *testing.T
	control *dynamicfake.FakeDynamicClient
	members map[string]*fakeMember
	fields  *Fields
	session *fleet.Session

	watches sync.Map // started watches, by client and resource

	mu      sync.Mutex
	counter int
}

type fakeMember struct {
	dynamic   *dynamicfake.FakeDynamicClient
	meta      *metadatafake.FakeMetadataClient
	documents *fakeDocuments
	version   int
}

// newFixture starts the controller with the given members and objects in the control plane.
func newFixture(t *testing.T, members []string, control ...string) *fixture {
	t.Helper()
	s := &fixture{t: t, members: map[string]*fakeMember{}, fields: NewFields()}
	var initial []runtime.Object
	for _, name := range members {
		s.members[name] = s.member(name)
		initial = append(initial, newCluster(name, true))
	}
	for _, manifest := range control {
		initial = append(initial, s.read(manifest))
	}
	s.control = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[kschema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList", crdResource: "CustomResourceDefinitionList",
		v1alpha1.APIResourceImportResource: "APIResourceImportList", v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList",
		v1alpha1.TypePolicyResource: "TypePolicyList", v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
		v1alpha1.ResourceInterpretationResource: "ResourceInterpretationList",
		{Version: "v1", Resource: "namespaces"}: "NamespaceList", widgets: "WidgetList", configMaps(): "ConfigMapList",
	}, initial...)
	s.control.PrependWatchReactor("*", s.watched("", s.control.Tracker()))
	s.control.PrependReactor("*", "*", s.react)
	s.start()
	return s
}

// answerLists replaces the response to lists of a resource. The controllers run, and
// PrependReactor does not lock.
func (s *fixture) answerLists(resource string, answer clienttesting.ReactionFunc) {
	s.control.Lock()
	defer s.control.Unlock()
	s.control.PrependReactor("list", resource, answer)
}

func (s *fixture) read(manifest string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		s.t.Fatalf("%s: %v", manifest, err)
	}
	s.identify(u)
	return u
}

// identify sets the metadata that an API server sets.
func (s *fixture) identify(u *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter++
	if u.GetUID() == "" {
		u.SetUID(types.UID(fmt.Sprintf("uid-%d", s.counter)))
		u.SetCreationTimestamp(metav1.NewTime(time.Unix(int64(s.counter), 0)))
		u.SetGeneration(1)
	}
	u.SetResourceVersion(fmt.Sprint(s.counter))
}

func newCluster(name string, ready bool) *unstructured.Unstructured {
	status := "False"
	if ready {
		status = "True"
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": name, "uid": "uid-" + name},
		"spec":     map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": "a", "name": name}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status, "reason": "Set", "message": "by the test",
			"lastTransitionTime": "2026-01-01T00:00:00Z"}}}}}
}

func (s *fixture) member(name string) *fakeMember {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		s.t.Fatal(err)
	}
	m := &fakeMember{meta: metadatafake.NewSimpleMetadataClient(scheme), documents: &fakeDocuments{},
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[kschema.GroupVersionResource]string{crdResource: "CustomResourceDefinitionList"})}
	m.meta.PrependWatchReactor("*", s.watched(name, m.meta.Tracker()))
	return m
}

func (m *fakeMember) clients() memberClients {
	return memberClients{dynamic: m.dynamic, meta: m.meta, openapi: m.documents}
}

// watched records that a watch was started, and sends the existing objects first: a fake loses
// events between a list and the following watch, which an API server does not.
func (s *fixture) watched(client string, tracker clienttesting.ObjectTracker) clienttesting.WatchReactionFunc {
	return func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := tracker.Watch(action.GetResource(), action.GetNamespace(), metav1.ListOptions{})
		if err == nil {
			s.watches.Store([2]string{client, action.GetResource().Resource}, true)
		}
		return true, w, err
	}
}

func (s *fixture) awaitWatch(client string, gvr kschema.GroupVersionResource) {
	if gvr == widgets {
		return // never watched
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, ok := s.watches.Load([2]string{client, gvr.Resource}); ok {
			return
		}
	}
	s.t.Errorf("no watch of %s by client %q", gvr.Resource, client)
}

// react implements server-side apply and generations, which the fake lacks.
func (s *fixture) react(action clienttesting.Action) (bool, runtime.Object, error) {
	switch action.GetVerb() {
	case "create", "update", "patch", "delete":
		s.awaitWatch("", action.GetResource())
	}
	if a, ok := action.(clienttesting.PatchActionImpl); ok && a.PatchType == types.ApplyPatchType {
		return s.apply(a)
	}
	return false, nil, nil
}

func (s *fixture) apply(a clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	desired := &unstructured.Unstructured{}
	if err := desired.UnmarshalJSON(a.Patch); err != nil {
		return true, nil, err
	}
	found, err := s.control.Tracker().Get(a.GetResource(), a.Namespace, a.Name)
	if apierrors.IsNotFound(err) && a.GetSubresource() == "" {
		desired.SetUID("")
		s.identify(desired)
		establish(desired)
		return true, desired, s.control.Tracker().Create(a.GetResource(), desired, a.Namespace)
	}
	if err != nil {
		return true, nil, err
	}
	live := found.(*unstructured.Unstructured).DeepCopy()
	if desired.GetUID() != "" && desired.GetUID() != live.GetUID() {
		return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.Name, errors.New("another UID"))
	}
	if a.GetResource() == configMaps() { // which has a single owner that applies all fields
		desired.SetUID(live.GetUID())
		s.identify(desired)
		return true, desired, s.control.Tracker().Update(a.GetResource(), desired, a.Namespace)
	}
	part := "spec"
	if a.GetSubresource() == "status" {
		part = "status"
	}
	before, _ := json.Marshal(live.Object)
	merged, _, _ := unstructured.NestedMap(live.Object, part)
	if merged == nil {
		merged = map[string]any{}
	}
	fields, _, _ := unstructured.NestedMap(desired.Object, part)
	if conditions, ok := fields["conditions"]; ok {
		had, _ := merged["conditions"].([]any)
		fields["conditions"] = mergeConditions(had, conditions.([]any))
	}
	maps.Copy(merged, fields)
	if notes := desired.GetAnnotations(); notes != nil {
		live.SetAnnotations(notes)
	}
	live.Object[part] = merged
	if after, _ := json.Marshal(live.Object); string(before) == string(after) {
		return true, live, nil
	}
	if part == "spec" {
		live.SetGeneration(live.GetGeneration() + 1)
	}
	s.identify(live)
	return true, live, s.control.Tracker().Update(a.GetResource(), live, "")
}

func mergeConditions(had, fields []any) []any {
	var out []any
	for _, h := range had {
		stored := true
		for _, f := range fields {
			stored = stored && f.(map[string]any)["type"] != h.(map[string]any)["type"]
		}
		if stored {
			out = append(out, h)
		}
	}
	return append(out, fields...)
}

// establish sets the status that the API server's controllers would set.
func establish(u *unstructured.Unstructured) {
	if u.GetKind() == "CustomResourceDefinition" {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}, "storedVersions": []any{"v1"}}
	}
}

func (s *fixture) start() {
	ctx, cancel := context.WithCancel(context.Background())
	kind, _ := interpret.Find(kschema.GroupKind{Kind: "ConfigMap"})
	session, err := fleet.NewSessionWithClients(ctx, fleet.Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}, kubefake.NewClientset(), s.control, nil, []interpret.KindInfo{kind})
	if err != nil {
		s.t.Fatal(err)
	}
	s.session = session
	c := newController(session, s.fields, func(c *v1alpha1.Cluster) (connection, error) {
		m, ok := s.members[c.Name]
		if !ok {
			return connection{}, errors.New("no kubeconfig")
		}
		return connection{digest: "digest", open: func() (memberClients, error) { return m.clients(), nil }}, nil
	}, &fakeDocuments{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

// serve makes a member serve widgets whose spec has these properties.
func (s *fixture) serve(member, properties string) {
	s.t.Helper()
	m := s.members[member]
	m.version++
	u := s.read(widgetCRD(properties))
	u.SetResourceVersion(fmt.Sprint(m.version))
	establish(u)
	meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}}
	s.awaitWatch(member, crdResource)
	var err error
	if m.version == 1 {
		err = errors.Join(m.dynamic.Tracker().Create(crdResource, u, ""), m.meta.Tracker().Create(crdResource, meta, ""))
	} else {
		err = errors.Join(m.dynamic.Tracker().Update(crdResource, u, ""), m.meta.Tracker().Update(crdResource, meta, ""))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *fixture) unserve(member string) {
	s.t.Helper()
	m := s.members[member]
	m.version = 0
	if err := errors.Join(m.dynamic.Tracker().Delete(crdResource, "", "widgets.example.com"), m.meta.Tracker().Delete(crdResource, "", "widgets.example.com")); err != nil {
		s.t.Fatal(err)
	}
}

func widgetCRD(properties string) string {
	return `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com},
spec: {group: example.com, scope: Namespaced, names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList},
versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {` + properties + `}}}}}}]}}`
}

// await waits until check returns nil.
func (s *fixture) await(what string, check func() error) {
	s.t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	s.t.Fatalf("%s: %v", what, err)
}

// wantCondition waits for a condition with the given status, reason, and text in its message.
func (s *fixture) wantCondition(gvr kschema.GroupVersionResource, name, condition, status, reason, says string) {
	s.t.Helper()
	s.await(name+" "+condition, func() error {
		u, err := s.control.Resource(gvr).Get(s.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			is := c.(map[string]any)
			if is["type"] == condition && is["status"] == status && is["reason"] == reason && strings.Contains(is["message"].(string), says) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", conditions)
	})
}

func (s *fixture) wantAbsent(gvr kschema.GroupVersionResource, name string) {
	s.t.Helper()
	s.await(name+" is gone", func() error {
		_, err := s.control.Resource(gvr).Get(s.t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it still exists: %v", err)
	})
}

// change edits an object of the control plane as a user would.
func (s *fixture) change(gvr kschema.GroupVersionResource, name string, edit func(*unstructured.Unstructured)) {
	s.t.Helper()
	u, err := s.control.Resource(gvr).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	u = u.DeepCopy()
	edit(u)
	u.SetGeneration(u.GetGeneration() + 1)
	s.identify(u)
	if _, err := s.control.Resource(gvr).Update(s.t.Context(), u, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}
