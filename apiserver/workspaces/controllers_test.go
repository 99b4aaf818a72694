package workspaces

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// marked counts how often a workspace was marked as due.
type marked struct {
	atomic.Int64
	fails atomic.Bool
}

func (m *marked) mark(context.Context) error {
	if m.fails.Load() {
		return fmt.Errorf("the database does not answer")
	}
	m.Add(1)
	return nil
}

// count returns how often it was marked since the last call.
func (m *marked) count() int64 { return m.Swap(0) }

// finish runs the controllers of a workspace until nothing is left, and returns the first thing that was left.
func (s *stage) finish(path string) (first string) {
	s.t.Helper()
	err := s.server.RunControllers(s.t.Context(), path, s.awake[path], func(p Progress, current func() (Progress, error)) bool {
		if p.Synced && p.Left == 0 {
			if again, err := current(); err != nil || again != p {
				s.t.Errorf("the caches show %+v, the API %+v, %v", p, again, err)
			}
		}
		if p.Synced && p.Left > 0 && first == "" {
			first = p.First
		}
		return !p.Synced || p.Left > 0
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return first
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// owned creates a ConfigMap with an owner.
func (s *stage) owned(path, name, apiVersion, kind, owner, uid string) {
	s.t.Helper()
	s.want(201, s.as(admin, "POST", "/clusters/"+path+configMaps, fmt.Sprintf(
		`{"metadata":{"name":%q,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"blockOwnerDeletion":true}]}}`, name, apiVersion, kind, owner, uid)))
}

func (s *stage) create(path, url, body string) (uid string) {
	s.t.Helper()
	return s.want(201, s.as(admin, "POST", "/clusters/"+path+url, body)).field(s.t, "metadata", "uid").(string)
}

// TestControllers: controllers that run on demand finish all that requests have left, of built-in and of custom kinds, and end without
// a trace. Another workspace does not change.
func TestControllers(t *testing.T) {
	s := newStage(t, "a", "b")
	const a = "/clusters/a"
	s.finish("a") // so that what all workspaces share is there
	if s.awake["a"].running() != nil {
		t.Error("a workspace without definitions has a server for them")
	}
	for _, path := range []string{"a", "b"} {
		s.create(path, "/api/v1/namespaces", `{"metadata":{"name":"shop"}}`)
		s.create(path, "/api/v1/namespaces/shop/configmaps", `{"metadata":{"name":"config"}}`)
	}
	s.create("a", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("colour"))
	const widget = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"%s},"spec":{"colour":"red"}}`
	s.eventually("widgets are served", func() bool {
		return s.as(admin, "POST", a+"/apis/example.com/v1/namespaces/shop/widgets", fmt.Sprintf(widget, "")).code == 201
	})
	before := runtime.NumGoroutine()

	// The namespace has built-in and custom objects.
	s.want(200, s.as(admin, "DELETE", a+"/api/v1/namespaces/shop", ""))
	// One owner for each policy of deletion, one that stays, and one of a custom object.
	for _, owner := range []string{"background", "foreground", "orphan", "kept"} {
		s.owned("a", owner+"-dependent", "v1", "ConfigMap", owner, s.create("a", configMaps, fmt.Sprintf(`{"metadata":{"name":%q}}`, owner)))
	}
	uid := s.create("a", configMaps, `{"metadata":{"name":"of-widget"}}`)
	s.create("a", "/apis/example.com/v1/namespaces/default/widgets",
		fmt.Sprintf(widget, fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"of-widget","uid":%q}]`, uid)))
	s.want(200, s.as(admin, "DELETE", a+configMaps+"/of-widget", ""))
	for owner, policy := range map[string]string{"background": "Background", "foreground": "Foreground", "orphan": "Orphan"} {
		s.want(200, s.as(admin, "DELETE", a+configMaps+"/"+owner+"?propagationPolicy="+policy, ""))
	}
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	s.create("a", roles, `{"metadata":{"name":"sum"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"sum":"yes"}}]}}`)
	s.create("a", roles, `{"metadata":{"name":"part","labels":{"sum":"yes"}},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`)
	s.want(200, s.as(admin, "DELETE", a+"/api/v1/namespaces/default/serviceaccounts/default", ""))
	s.want(200, s.as(admin, "DELETE", a+configMaps+"/kube-root-ca.crt", ""))

	marks := &marked{}
	s.awake["a"].OnDue(marks.mark)
	if first := s.finish("a"); first == "" || marks.count() > 0 {
		t.Errorf("left at first: %q; the controllers marked the workspace themselves %d times", first, marks.count())
	}
	for path, code := range map[string]int{
		"/api/v1/namespaces/shop": 404, "/apis/example.com/v1/namespaces/shop/widgets/w": 404, "/apis/example.com/v1/namespaces/default/widgets/w": 404,
		configMaps + "/background-dependent": 404, configMaps + "/foreground": 404, configMaps + "/foreground-dependent": 404,
		configMaps + "/orphan": 404, configMaps + "/kept-dependent": 200,
		"/api/v1/namespaces/default/serviceaccounts/default": 200, configMaps + "/kube-root-ca.crt": 200,
	} {
		if got := s.as(admin, "GET", a+path, ""); got.code != code {
			t.Errorf("%s: status %d, want %d", path, got.code, code)
		}
	}
	if got := s.want(200, s.as(admin, "GET", a+configMaps+"/orphan-dependent", "")); strings.Contains(got.body, "ownerReferences") {
		t.Error(got.body)
	}
	if got := s.want(200, s.as(admin, "GET", a+roles+"/sum", "")); !strings.Contains(got.body, "secrets") {
		t.Error(got.body)
	}
	s.want(200, s.as(admin, "GET", "/clusters/b/api/v1/namespaces/shop/configmaps/config", ""))
	s.eventually("the goroutines of the controllers end", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestControllersEnd: controllers stop when the workspace is being deleted, also if something keeps them from finishing.
func TestControllersEnd(t *testing.T) {
	s := newStage(t, "a")
	s.create("a", "/api/v1/namespaces", `{"metadata":{"name":"shop"}}`)
	s.create("a", "/api/v1/namespaces/shop/configmaps", `{"metadata":{"name":"held","finalizers":["example.com/held"]}}`)
	s.want(200, s.as(admin, "DELETE", "/clusters/a/api/v1/namespaces/shop", ""))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.server.RunControllers(ctx, "a", s.awake["a"], func(p Progress, _ func() (Progress, error)) bool {
			if p.Synced {
				if p.Left != 1 || p.First != "namespaces shop is being deleted" {
					t.Errorf("%+v", p)
				}
				cancel()
			}
			return true
		})
	}()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
