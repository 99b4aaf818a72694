package workspaces

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/overlay"
)

// TestLeaves: what requests leave for controllers.
func TestLeaves(t *testing.T) {
	object := func(m metav1.ObjectMeta) runtime.Object { return &api.ConfigMap{ObjectMeta: m} }
	plain := object(metav1.ObjectMeta{Name: "config"})
	owners := func(names ...string) runtime.Object {
		m := metav1.ObjectMeta{Name: "config"}
		for _, name := range names {
			m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: "uid"})
		}
		return object(m)
	}
	now := metav1.Now()
	deleting := object(metav1.ObjectMeta{Name: "config", DeletionTimestamp: &now, Finalizers: []string{"example.com/held"}})
	orphaning := object(metav1.ObjectMeta{Name: "config", Finalizers: []string{metav1.FinalizerOrphanDependents}})
	policy := func(p metav1.DeletionPropagation) runtime.Object { return &metav1.DeleteOptions{PropagationPolicy: &p} }
	yes := true
	role := func(labels map[string]string, rule *rbac.AggregationRule) runtime.Object {
		return &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "role", Labels: labels}, AggregationRule: rule}
	}
	generation := func(n int64) runtime.Object { return object(metav1.ObjectMeta{Name: "policy", Generation: n}) }
	checked := apiserver.PoliciesResource.GroupResource()
	configMaps, roles := schema.GroupResource{Resource: "configmaps"}, schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}
	for name, c := range map[string]struct {
		op           admission.Operation
		resource     schema.GroupResource
		options      runtime.Object
		old, current runtime.Object
		want         remainder
	}{
		"an object is created":                       {admission.Create, configMaps, nil, nil, plain, nothing},
		"with an owner":                              {admission.Create, configMaps, nil, nil, owners("a"), work},
		"an object is changed":                       {admission.Update, configMaps, nil, plain, plain, nothing},
		"the owner stays":                            {admission.Update, configMaps, nil, owners("a"), owners("a"), nothing},
		"an owner is removed":                        {admission.Update, configMaps, nil, owners("a", "b"), owners("a"), nothing},
		"an owner is added":                          {admission.Update, configMaps, nil, owners("a"), owners("a", "b"), work},
		"a finalizer of a deleted object is removed": {admission.Update, configMaps, nil, deleting, plain, work},
		"an object is deleted":                       {admission.Delete, configMaps, &metav1.DeleteOptions{}, plain, nil, dependents},
		"in the background":                          {admission.Delete, configMaps, policy(metav1.DeletePropagationBackground), plain, nil, dependents},
		"in the foreground":                          {admission.Delete, configMaps, policy(metav1.DeletePropagationForeground), plain, nil, work},
		"without its dependents":                     {admission.Delete, configMaps, policy(metav1.DeletePropagationOrphan), plain, nil, work},
		"without its dependents, as before":          {admission.Delete, configMaps, &metav1.DeleteOptions{OrphanDependents: &yes}, plain, nil, work}, //nolint:staticcheck // clients still send it
		"with the collector's finalizer":             {admission.Delete, configMaps, &metav1.DeleteOptions{}, orphaning, nil, work},
		"a namespace is deleted":                     {admission.Delete, overlay.Namespaces, nil, &api.Namespace{}, nil, work},
		"a namespace is created":                     {admission.Create, overlay.Namespaces, nil, nil, &api.Namespace{}, nothing},
		"an event is deleted":                        {admission.Delete, schema.GroupResource{Resource: "events"}, nil, &api.Event{}, nil, nothing},
		"a definition is created":                    {admission.Create, customDefinitions, nil, nil, plain, work},
		"its status is written":                      {admission.Update, customDefinitions, nil, plain, plain, nothing},
		"a definition is deleted":                    {admission.Delete, customDefinitions, nil, plain, nil, work},
		"a policy is created":                        {admission.Create, checked, nil, nil, generation(1), work},
		"a policy is changed":                        {admission.Update, checked, nil, generation(1), generation(2), work},
		"the status of a policy is written":          {admission.Update, checked, nil, generation(1), generation(1), nothing},
		"a policy is deleted":                        {admission.Delete, checked, &metav1.DeleteOptions{}, generation(1), nil, dependents},
		"a role is created":                          {admission.Create, roles, nil, nil, role(nil, nil), nothing},
		"a role that others may aggregate":           {admission.Create, roles, nil, nil, role(map[string]string{"a": "b"}, nil), work},
		"a role that aggregates":                     {admission.Create, roles, nil, nil, role(nil, &rbac.AggregationRule{}), work},
		"a role that others aggregated":              {admission.Update, roles, nil, role(map[string]string{"a": "b"}, nil), role(nil, nil), work},
		"the ConfigMap of authorities is changed": {admission.Update, configMaps, nil,
			object(metav1.ObjectMeta{Name: "kube-root-ca.crt"}), object(metav1.ObjectMeta{Name: "kube-root-ca.crt"}), work},
		"the account of a namespace is deleted": {admission.Delete, schema.GroupResource{Resource: "serviceaccounts"}, nil,
			&api.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, nil, work},
	} {
		if got := leaves(c.op, c.resource, c.options, c.old, c.current); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestDue: a workspace is marked before a request commits that leaves something. Deletions leave nothing while no object has had an
// owner. Without the mark the request fails, and changes nothing.
func TestDue(t *testing.T) {
	s := newStage(t, "a")
	marks := &marked{}
	s.awake["a"].OnDue(marks.mark)
	want := func(what string, due bool) {
		t.Helper()
		if got := marks.count(); got > 0 != due {
			t.Errorf("%s: marked %d times", what, got)
		}
	}
	const base = "/clusters/a/api/v1/namespaces"
	s.create("a", "/api/v1/namespaces", `{"metadata":{"name":"shop"}}`)
	uid := s.create("a", configMaps, `{"metadata":{"name":"owner"}}`)
	s.create("a", configMaps, `{"metadata":{"name":"other"}}`)
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+configMaps+"/other", ""))
	want("objects without owners", false)
	s.want(200, s.as(admin, "DELETE", base+"/shop?dryRun=All", ""))
	want("a dry run", false)

	marks.fails.Store(true)
	a := s.want(503, s.as(admin, "DELETE", base+"/shop", ""))
	if !strings.Contains(a.body, "cannot be recorded now: retry: the database does not answer") {
		t.Error(a.body)
	}
	if got := s.want(200, s.as(admin, "GET", base+"/shop", "")); strings.Contains(got.body, "deletionTimestamp") {
		t.Error(got.body)
	}
	marks.fails.Store(false)
	s.want(200, s.as(admin, "DELETE", base+"/shop", ""))
	want("a namespace", true)
	s.owned("a", "dependent", "v1", "ConfigMap", "owner", uid)
	want("an object with an owner", true)
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+configMaps+"/owner", ""))
	want("an object that may be an owner", true)
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+configMaps, ""))
	want("a collection", true)

	// Another server finds out that objects have owners.
	other := s.open("a")
	other.OnDue(marks.mark)
	s.create("a", configMaps, `{"metadata":{"name":"owner"}}`)
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+configMaps+"/owner", ""))
	want("on another server", true)

	s.create("a", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("colour"))
	want("a definition", true)
	const widgets = "/clusters/a/apis/example.com/v1/namespaces/default/widgets"
	s.eventually("widgets are served", func() bool {
		return s.as(admin, "POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"colour":"red"}}`).code == 201
	})
	want("a custom resource is created", false)
	s.want(200, s.as(admin, "DELETE", widgets+"/w", ""))
	want("a custom resource is deleted", true)
}

// TestSlowRequests: a request that took long marks the workspace again at its end.
func TestSlowRequests(t *testing.T) {
	s := newStage(t, "a")
	marks := &marked{}
	w := s.awake["a"]
	w.OnDue(marks.mark)
	for name, c := range map[string]struct {
		left  remainder
		took  time.Duration
		marks int64
	}{
		"it was fast":                       {work, 0, 0},
		"it was slow":                       {work, 2 * slowRequest, 1},
		"it was slow and left nothing":      {nothing, 2 * slowRequest, 0},
		"it was slow and no owners existed": {dependents, 2 * slowRequest, 0},
	} {
		handler := withDue(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			request := r.Context().Value(dueKey{}).(*dueRequest)
			request.add(c.left)
			request.since = request.since.Add(-c.took)
		}))
		r := httptest.NewRequest("DELETE", "/api/v1/namespaces/shop", nil)
		handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(withWorkspace(t.Context(), w, "a")))
		if got := marks.count(); got != c.marks {
			t.Errorf("%s: marked %d times, want %d", name, got, c.marks)
		}
	}
}
