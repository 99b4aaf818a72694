package expose

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

var (
	leaseResource     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	apiServices       = kinds()[4].gvr
)

// fixture is the controller between a fake control plane and fake members.
type fixture struct {
	t       *testing.T
	control *dynamicfake.FakeDynamicClient
	silent  atomic.Bool // members list no kinds in discovery
	watches sync.Map    // by member and resource: the controller watches it
	members map[string]*dynamicfake.FakeDynamicClient

	metrics *Metrics
	stop    func() // ends the session of the controller

	mu      sync.Mutex
	uids    int
	journal []string // writes: target, verb, resource, name
}

// open creates a fixture with the given objects in the control plane and in each member.
func open(t *testing.T, control []*unstructured.Unstructured, members map[string][]*unstructured.Unstructured) *fixture {
	t.Helper()
	s := &fixture{t: t, members: map[string]*dynamicfake.FakeDynamicClient{}, metrics: NewMetrics()}
	for name, objects := range members {
		s.members[name] = s.fake(name, objects)
		control = append(control, cluster(name))
	}
	s.control = s.fake("", control)
	s.start()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.renew(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return s
}

// renew renews the servers' Leases, so that no test depends on being faster than their expiry.
func (s *fixture) renew(ctx context.Context) {
	for tick := time.NewTicker(v1alpha1.MemberEndpointRenew); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			leases, err := s.control.Tracker().List(leaseResource, schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, v1alpha1.SystemNamespace)
			if err != nil {
				continue
			}
			for _, l := range leases.(*unstructured.UnstructuredList).Items {
				_ = unstructured.SetNestedField(l.Object, now.Format(time.RFC3339Nano), "spec", "renewTime")
				_ = s.control.Tracker().Update(leaseResource, &l, v1alpha1.SystemNamespace) // fails if it is gone
			}
		}
	}
}

func (s *fixture) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// restart ends the session of the controller and starts another one.
func (s *fixture) restart() {
	s.t.Helper()
	s.stop()
	s.watches.Clear()
	s.start()
}

// start runs a controller as a new leader would.
func (s *fixture) start() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	session, err := fleet.NewSessionWithClients(ctx, fleet.Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)},
		kubefake.NewClientset(), s.control, nil, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	c := newController(session, []byte("the CA of Atoll"), func(c *v1alpha1.Cluster) (memberAccess, error) {
		if m, ok := s.members[c.Name]; ok {
			return memberAccess{m, "digest", func(context.Context) (map[schema.GroupVersion]bool, error) { return s.listed(m), nil }}, nil
		}
		return memberAccess{}, errors.New("no kubeconfig")
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.metrics.lead(c)()
		if err := c.run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	s.stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(s.stop)
}

func listKinds() map[schema.GroupVersionResource]string {
	out := map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
		v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList", {Version: "v1", Resource: "namespaces"}: "NamespaceList",
		v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList", v1alpha1.APIResourceImportResource: "APIResourceImportList",
		v1alpha1.ResourceInterpretationResource: "ResourceInterpretationList",
		crdResource:                             "CustomResourceDefinitionList", v1alpha1.SharedAPIResource: "SharedAPIList",
		leaseResource: "LeaseList",
		apiServices:   "APIServiceList", bindingResource: "ClusterRoleBindingList", {Version: "v1", Resource: "pods"}: "PodList",
	}
	for _, k := range kinds() {
		out[k.gvr] = k.name + "List"
	}
	for _, k := range interpret.Kinds() {
		out[k.GVR()] = k.Kind + "List"
	}
	return out
}

// fake returns a client with a minimal server-side apply and finalizers. An applied object replaces
// the previous one except for its identity, a status is merged by field, and a deleted object is
// removed with its last finalizer.
func (s *fixture) fake(name string, objects []*unstructured.Unstructured) *dynamicfake.FakeDynamicClient {
	var initial []runtime.Object
	for _, o := range objects {
		if o.GetUID() == "" {
			o.SetUID(types.UID(o.GetKind() + "-" + o.GetName()))
		}
		initial = append(initial, o)
	}
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds(), initial...)
	c.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := c.Tracker().Watch(action.GetResource(), action.GetNamespace())
		if err == nil {
			s.watches.Store([2]string{name, action.GetResource().Resource}, true)
		}
		return true, w, err
	})
	c.PrependReactor("delete", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		// The fake client loses events between a list and the following watch, which no API server
		// does.
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if _, ok := s.watches.Load([2]string{name, action.GetResource().Resource}); ok {
				break
			}
		}
		return false, nil, nil
	})
	c.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a, ok := action.(interface{ GetName() string }); ok && action.GetVerb() != "get" {
			who := name
			if who == "" {
				who = "control"
			}
			s.journal = append(s.journal, strings.Join([]string{who, action.GetVerb(), action.GetResource().Resource, a.GetName()}, " "))
		}
		if a, ok := action.(clienttesting.PatchActionImpl); ok {
			if a.PatchType == types.ApplyPatchType {
				return s.apply(c, a)
			}
			return s.finalize(c, a)
		}
		return false, nil, nil
	})
	return c
}

func (s *fixture) apply(c *dynamicfake.FakeDynamicClient, a clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	desired := &unstructured.Unstructured{}
	if err := desired.UnmarshalJSON(a.Patch); err != nil {
		return true, nil, err
	}
	found, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), a.Name)
	if apierrors.IsNotFound(err) {
		s.uids++
		desired.SetUID(types.UID(fmt.Sprintf("made-%d", s.uids)))
		s.available(desired)
		return true, desired, c.Tracker().Create(a.GetResource(), desired, a.GetNamespace())
	}
	if err != nil {
		return true, nil, err
	}
	live := found.(*unstructured.Unstructured).DeepCopy()
	if desired.GetUID() != "" && desired.GetUID() != live.GetUID() {
		return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.Name, errors.New("another UID"))
	}
	if a.GetSubresource() == "status" {
		status, _, _ := unstructured.NestedMap(live.Object, "status")
		if status == nil {
			status = map[string]any{}
		}
		delete(status, "frontProxy")
		fields, _, _ := unstructured.NestedMap(desired.Object, "status")
		for field, value := range fields {
			status[field] = value
		}
		if live.GetKind() == "SharedAPI" && fields["clusters"] == nil {
			delete(status, "clusters")
		}
		live.Object["status"] = status
	} else {
		if live.GetKind() == "Service" && !covers(live.Object["spec"], desired.Object["spec"]) {
			// A port with another number stays beside the applied one.
			return true, nil, apierrors.NewInvalid(live.GroupVersionKind().GroupKind(), a.Name, nil)
		}
		desired.SetUID(live.GetUID())
		live = desired
		s.available(live)
	}
	return true, live, c.Tracker().Update(a.GetResource(), live, a.GetNamespace())
}

// available plays the member's aggregator.
func (s *fixture) available(u *unstructured.Unstructured) {
	if u.GetKind() == apiServiceKind {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "True", "message": "all checks passed"}}}
	}
}

// listed plays the member's discovery.
func (s *fixture) listed(m *dynamicfake.FakeDynamicClient) map[schema.GroupVersion]bool {
	out := map[schema.GroupVersion]bool{}
	if s.silent.Load() {
		return out
	}
	all, err := m.Resource(apiServices).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.t.Error(err)
		return out
	}
	for i := range all.Items {
		out[versionOf(&all.Items[i])] = true
	}
	return out
}

func (s *fixture) finalize(c *dynamicfake.FakeDynamicClient, a clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	var patch struct {
		Metadata struct {
			Finalizers *[]string
			Labels     map[string]*string
		}
		Spec map[string]any
	}
	if err := json.Unmarshal(a.Patch, &patch); err != nil {
		return true, nil, err
	}
	found, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), a.Name)
	if err != nil {
		return true, nil, err
	}
	live := found.(*unstructured.Unstructured).DeepCopy()
	labels := live.GetLabels()
	for key, value := range patch.Metadata.Labels {
		if value == nil {
			delete(labels, key)
			continue
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[key] = *value
	}
	live.SetLabels(labels)
	if patch.Spec != nil {
		whole := &unstructured.Unstructured{}
		if err := whole.UnmarshalJSON(a.Patch); err != nil && whole.Object == nil {
			return true, nil, err
		}
		live.Object["spec"] = whole.Object["spec"]
	}
	if patch.Metadata.Finalizers != nil {
		live.SetFinalizers(*patch.Metadata.Finalizers)
	}
	if live.GetDeletionTimestamp() != nil && len(live.GetFinalizers()) == 0 {
		return true, live, c.Tracker().Delete(a.GetResource(), a.GetNamespace(), a.Name)
	}
	return true, live, c.Tracker().Update(a.GetResource(), live, a.GetNamespace())
}

func (s *fixture) eventually(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("not: %s\nSharedAPIs: %s\nmembers: %s", what, s.reports(), s.everything())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// reports returns each SharedAPI with the state of its members.
func (s *fixture) reports() string {
	all, err := s.control.Resource(v1alpha1.SharedAPIResource).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for i := range all.Items {
		entries, _, _ := unstructured.NestedSlice(all.Items[i].Object, "status", "clusters")
		line := all.Items[i].GetName()
		for _, e := range entries {
			fields := e.(map[string]any)
			line += fmt.Sprintf(" %v=%v", fields["name"], fields["reason"])
			if fields["exposed"] == true {
				line += fmt.Sprint(fields["versions"])
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func (s *fixture) reporting(want string) {
	s.t.Helper()
	s.eventually("reports "+want, func() bool { return s.reports() == want })
}

// has lists the objects with our label in a member.
func (s *fixture) has(member string) string {
	var out []string
	for _, k := range kinds() {
		list, err := s.members[member].Resource(k.gvr).List(context.Background(), metav1.ListOptions{LabelSelector: ourLabel})
		if err != nil {
			s.t.Fatal(err)
		}
		for i := range list.Items {
			out = append(out, k.name+"/"+list.Items[i].GetName())
		}
	}
	return strings.Join(out, " ")
}

func (s *fixture) everything() string {
	out := ""
	for name := range s.members {
		out += "\n" + name + ": " + s.has(name)
	}
	return out
}

func (s *fixture) having(member, want string) {
	s.t.Helper()
	s.eventually(member+" has "+want, func() bool { return s.has(member) == want })
}

// change edits an object.
func (s *fixture) change(c *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, namespace, name string, edit func(*unstructured.Unstructured)) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := c.Tracker().Get(gvr, namespace, name)
	if err != nil {
		s.t.Fatal(err)
	}
	u := found.(*unstructured.Unstructured).DeepCopy()
	edit(u)
	if err := c.Tracker().Update(gvr, u, namespace); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fixture) exists(c *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, namespace, name string) bool {
	_, err := c.Tracker().Get(gvr, namespace, name)
	return err == nil
}

func (s *fixture) drop(c *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, namespace, name string) {
	s.t.Helper()
	if err := c.Tracker().Delete(gvr, namespace, name); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fixture) add(c *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, u *unstructured.Unstructured) {
	s.t.Helper()
	if err := c.Tracker().Create(gvr, u, u.GetNamespace()); err != nil {
		s.t.Fatal(err)
	}
}

// markDeleted marks an object as deleted, as the API server does if it has a finalizer.
func markDeleted(u *unstructured.Unstructured) {
	now := metav1.Now()
	u.SetDeletionTimestamp(&now)
}

func plain(apiVersion, kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
	u := object(apiVersion, kind, namespace, name, fields)
	u.SetLabels(nil)
	return u
}

func cluster(name string) *unstructured.Unstructured {
	return plain("fleet.atoll.dev/v1alpha1", "Cluster", "", name, map[string]any{
		"spec":   map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": "atoll-system", "name": name}},
		"status": map[string]any{"conditions": []any{ready("True")}}})
}

func ready(status string) map[string]any {
	return map[string]any{"type": "Ready", "status": status, "reason": "Test", "message": "as the test says",
		"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339)}
}

func shared(name string, clusters []string, groups ...string) *unstructured.Unstructured {
	list := func(in []string) (out []any) {
		for _, s := range in {
			out = append(out, s)
		}
		return out
	}
	return plain("fleet.atoll.dev/v1alpha1", "SharedAPI", "", name, map[string]any{
		"spec": map[string]any{"groups": list(groups), "clusters": list(clusters)}})
}

func lease(name, address string) *unstructured.Unstructured {
	u := plain("coordination.k8s.io/v1", "Lease", v1alpha1.SystemNamespace, name, map[string]any{
		"spec": map[string]any{"renewTime": "2026-01-01T00:00:00.000000Z"}})
	u.SetLabels(map[string]string{v1alpha1.MemberEndpointLabel: "true"})
	u.SetAnnotations(map[string]string{v1alpha1.AddressAnnotation: address})
	return u
}

// authority returns the ConfigMap with a member's front-proxy authority.
func authority(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "front-proxy-ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return plain("v1", "ConfigMap", authorityNamespace, authorityName, map[string]any{"data": map[string]any{
		"requestheader-client-ca-file":       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"requestheader-allowed-names":        `["front-proxy-client"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}})
}

func resourceOf(t *testing.T, kind string) schema.GroupVersionResource {
	t.Helper()
	for _, k := range kinds() {
		if k.name == kind {
			return k.gvr
		}
	}
	if kind != "ConfigMap" {
		t.Fatalf("no resource for kind %s", kind)
	}
	return configMapResource
}
