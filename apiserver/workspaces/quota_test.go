package workspaces

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	quota "k8s.io/apiserver/pkg/quota/v1"

	"github.com/atoll-dev/atoll/kv"
)

const inDefault = "/api/v1/namespaces/default/"

// quota creates a ResourceQuota in the namespace default. hard is JSON.
func (s *stage) quota(path, name, hard string) {
	s.t.Helper()
	s.want(201, s.as(admin, "POST", "/clusters/"+path+inDefault+"resourcequotas", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"hard":%s}}`, name, hard)))
}

// used returns the usage of a resource in the status of a quota.
func (s *stage) used(path, name, resource string) any {
	s.t.Helper()
	status, _ := s.want(200, s.as(admin, "GET", "/clusters/"+path+inDefault+"resourcequotas/"+name, "")).field(s.t, "status").(map[string]any)
	used, _ := status["used"].(map[string]any)
	return used[resource]
}

func (s *stage) secret(path, name string) response {
	return s.as(admin, "POST", "/clusters/"+path+inDefault+"secrets", fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
}

// TestQuota: a quota has its status at once and binds its own workspace alone. Deletions and failed creations lower its usage.
func TestQuota(t *testing.T) {
	s := newStage(t, "a", "b")
	s.want(201, s.secret("a", "first"))
	s.quota("a", "small", `{"count/secrets":"2","secrets":"2","count/widgets.example.com":"1"}`)
	for name, want := range map[string]string{"count/secrets": "1", "secrets": "1", "count/widgets.example.com": "0"} {
		if got := s.used("a", "small", name); got != want {
			t.Errorf("%s: used %v, want %s", name, got, want)
		}
	}
	s.want(201, s.as(admin, "POST", "/clusters/a"+inDefault+"secrets?dryRun=All", `{"metadata":{"name":"second"}}`))
	s.want(409, s.secret("a", "first"))
	s.eventually("the charge of a failed request is given back", func() bool { return s.used("a", "small", "secrets") == "1" })
	s.want(201, s.secret("a", "second"))
	if a := s.want(403, s.secret("a", "third")); !strings.Contains(a.body, "exceeded quota: small, requested: count/secrets=1,secrets=1, used: count/secrets=2,secrets=2, limited: count/secrets=2,secrets=2") {
		t.Error(a.body)
	}
	s.want(403, s.as(admin, "POST", "/clusters/a"+inDefault+"secrets?dryRun=All", `{"metadata":{"name":"third"}}`))
	for _, name := range []string{"first", "second", "third"} {
		s.want(201, s.secret("b", name))
	}
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+inDefault+"secrets/first", ""))
	s.eventually("the deletion gives back", func() bool { return s.used("a", "small", "secrets") == "1" })
	s.want(201, s.secret("a", "third"))
	s.want(200, s.as(admin, "PATCH", "/clusters/a"+inDefault+"resourcequotas/small?fieldManager=me&force=true",
		`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"small"},"spec":{"hard":{"secrets":"3","count/secrets":"3","count/services":"1"}}}`))
	if got := s.used("a", "small", "count/services"); got != "0" {
		t.Errorf("services: used %v after the quota was changed, want 0", got)
	}
	s.want(201, s.secret("a", "fourth"))
	s.want(403, s.secret("a", "fifth"))
}

// TestQuotaOfKinds: quotas bind custom resources, also before their definition exists, and updates that need more.
func TestQuotaOfKinds(t *testing.T) {
	s := newStage(t, "a")
	s.quota("a", "kinds", `{"count/widgets.example.com":"1","services.nodeports":"0","count/deployments.apps":"1"}`)
	s.want(201, s.as(admin, "POST", "/clusters/a/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("colour")))
	widgets := "/clusters/a/apis/example.com/v1/namespaces/default/widgets"
	create := func(name string) response {
		return s.as(admin, "POST", widgets, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"colour":"x"}}`, name))
	}
	s.eventually("widgets are served", func() bool { return create("first").code == 201 })
	if a := s.want(403, create("second")); !strings.Contains(a.body, "exceeded quota: kinds, requested: count/widgets.example.com=1") {
		t.Error(a.body)
	}
	s.want(200, s.as(admin, "DELETE", widgets+"/first", ""))
	s.eventually("the deletion gives back", func() bool { return s.used("a", "kinds", "count/widgets.example.com") == "0" })
	s.want(201, create("second"))
	service := func(kind string) response {
		return s.as(admin, "PATCH", "/clusters/a"+inDefault+"services/web?fieldManager=me&force=true",
			fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":%q,"ports":[{"port":80}]}}`, kind))
	}
	s.want(201, service("ClusterIP"))
	if a := s.want(403, service("NodePort")); !strings.Contains(a.body, "services.nodeports") {
		t.Error(a.body)
	}
}

// TestQuotaWithoutWorkloads: a server without the workload kinds has quotas too.
func TestQuotaWithoutWorkloads(t *testing.T) {
	s := newStage(t, "a")
	config := s.server.config
	config.WorkloadAPIs = false
	var err error
	if s.server, err = New(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.quota("a", "one", `{"secrets":"1","pods":"1"}`)
	s.want(201, s.secret("a", "first"))
	s.want(403, s.secret("a", "second"))
}

// TestQuotaAtLimit: a workspace at its limit of bytes still charges and counts.
func TestQuotaAtLimit(t *testing.T) {
	s := newStage(t, "a")
	for i := range 9 {
		s.want(201, s.secret("a", fmt.Sprint("secret-", i)))
	}
	s.quota("a", "ten", `{"secrets":"10"}`)
	none := int64(0)
	s.keyspaces["a"].SetLimits(kv.Limits{Bytes: &none})
	// Its charge makes the quota larger by a digit. The limit refuses the Secret, not the charge.
	if a := s.want(403, s.secret("a", "more")); !strings.Contains(a.body, `secrets \"more\" is forbidden`) || !strings.Contains(a.body, "raise spec.limits.bytes") {
		t.Error(a.body)
	}
	s.eventually("the charge of the refused request is given back", func() bool { return s.used("a", "ten", "secrets") == "9" })
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+inDefault+"secrets/secret-0", ""))
	s.eventually("the deletion gives back", func() bool { return s.used("a", "ten", "secrets") == "8" })
}

// TestQuotaNotUsed: a workspace without quotas has no goroutines for them.
func TestQuotaNotUsed(t *testing.T) {
	s := newStage(t, "a")
	s.want(201, s.secret("a", "first"))
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+inDefault+"secrets/first", ""))
	if w := s.awake["a"]; w.quotas.ctx != nil || len(w.quotas.all) > 0 {
		t.Error("quotas are counted in a workspace that has none")
	}
}

// TestQuotaInParallel: requests at the same time never exceed a quota, also on several servers.
func TestQuotaInParallel(t *testing.T) {
	s := newStage(t, "a")
	s.quota("a", "ten", `{"secrets":"10","count/secrets":"11"}`)
	s.awake["other"] = NewWorkspace(s.awake["a"].uid, s.awake["a"].client) // as another server has it
	t.Cleanup(s.awake["other"].Close)
	var all sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i := range 40 {
		all.Go(func() {
			code := 429 // as a client does, retry
			for range 100 {
				if code = s.secret([]string{"a", "other"}[i%2], fmt.Sprint("secret-", i)).code; code != 429 {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			codes[code]++
		})
	}
	all.Wait()
	list := s.want(200, s.as(admin, "GET", "/clusters/a"+inDefault+"secrets", ""))
	if n := len(list.field(t, "items").([]any)); n > 10 || n != codes[201] || codes[201]+codes[403] != 40 {
		t.Errorf("%d secrets, answers %v", n, codes)
	}
	s.eventually("the usage is that of the objects", func() bool { return s.used("a", "ten", "secrets") == fmt.Sprint(codes[201]) })
}

// TestQuotaWakes: a workspace that wakes counts what a process has charged that ended before it wrote the object.
func TestQuotaWakes(t *testing.T) {
	s := newStage(t, "a")
	s.quota("a", "one", `{"secrets":"1"}`)
	s.want(201, s.secret("a", "first"))
	s.want(403, s.secret("a", "second"))
	client := s.awake["a"].client
	s.awake["a"].Close()
	if _, err := client.KV.Delete(t.Context(), "/registry/secrets/default/first"); err != nil {
		t.Fatal(err)
	}
	s.awake["a"] = NewWorkspace("uid-a", client)
	t.Cleanup(s.awake["a"].Close)
	if got := s.used("a", "one", "secrets"); got != "1" {
		t.Fatalf("used %v before the first write, want 1", got)
	}
	s.want(201, s.secret("a", "second"))
	s.want(403, s.secret("a", "third"))

	// As if another server had ended between its charge and the object, while this workspace is awake.
	if _, err := client.KV.Delete(t.Context(), "/registry/secrets/default/second"); err != nil {
		t.Fatal(err)
	}
	s.eventually("a refusal leads to a count", func() bool { return s.secret("a", "third").code == 201 })
}

// TestQuotaCloses: a workspace that is closed while its objects are counted leaves no goroutine.
func TestQuotaCloses(t *testing.T) {
	s := newStage(t, "a")
	w := s.awake["a"]
	before := runtime.NumGoroutine()
	s.quota("a", "one", `{"secrets":"1"}`)
	state := w.quotas.of("default")
	if err := state.lock(t.Context()); err != nil { // the count waits for it
		t.Fatal(err)
	}
	s.eventually("a count has begun", func() bool { state.mu.Lock(); defer state.mu.Unlock(); return state.counting && !state.again })
	w.Close()
	state.unlock()
	if state.counting {
		t.Error("a goroutine still counts")
	}
	chain, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	chain.quotas.countSoon(w, "default")
	if state.counting {
		t.Error("a closed workspace begins to count")
	}
	s.eventually("the goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestLimitRanges: pods get the defaults of the LimitRanges of their namespace, which quotas then charge, and are refused beyond them.
func TestLimitRanges(t *testing.T) {
	s := newStage(t, "a", "b")
	s.want(201, s.as(admin, "POST", "/clusters/a"+inDefault+"limitranges",
		`{"metadata":{"name":"sizes"},"spec":{"limits":[{"type":"Container","defaultRequest":{"cpu":"600m"},"default":{"cpu":"700m"},"max":{"cpu":"2"}}]}}`))
	s.quota("a", "cpu", `{"requests.cpu":"1","pods":"5"}`)
	pod := func(in, name, resources string) response {
		return s.as(admin, "POST", "/clusters/"+in+inDefault+"pods", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"main","image":"nginx","resources":%s}]}}`, name, resources))
	}
	if a := s.want(201, pod("a", "first", `{}`)); !strings.Contains(a.body, `"cpu":"600m"`) || !strings.Contains(a.body, "LimitRanger plugin set") {
		t.Error(a.body)
	}
	if got := s.used("a", "cpu", "requests.cpu"); got != "600m" {
		t.Errorf("used %v", got)
	}
	if a := s.want(403, pod("a", "second", `{}`)); !strings.Contains(a.body, "exceeded quota: cpu, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1") {
		t.Error(a.body)
	}
	if a := s.want(403, pod("a", "second", `{"limits":{"cpu":"3"}}`)); !strings.Contains(a.body, "maximum cpu usage per Container is 2, but limit is 3") {
		t.Error(a.body)
	}
	if a := s.want(201, pod("b", "first", `{}`)); strings.Contains(a.body, `"cpu"`) {
		t.Error(a.body)
	}
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+inDefault+"pods/first?gracePeriodSeconds=0", ""))
	s.eventually("the deletion gives back", func() bool { return s.used("a", "cpu", "pods") == "0" })
}

// TestCountedStatus: a count does not take back what running requests have charged, unless it sees more.
func TestCountedStatus(t *testing.T) {
	list := func(n string) corev1.ResourceList {
		if n == "" {
			return nil
		}
		return corev1.ResourceList{"secrets": resource.MustParse(n)}
	}
	for _, c := range []struct {
		before, counted, running, want string
		exact                          bool
	}{
		{"", "3", "", "3", true},
		{"5", "3", "", "3", true},
		{"2", "3", "", "3", true},
		{"5", "3", "1", "4", false},
		{"5", "3", "7", "5", false},
		{"3", "3", "1", "3", true},
		{"2", "3", "1", "3", true},
	} {
		of := corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: list("9")}, Status: corev1.ResourceQuotaStatus{Used: list(c.before)}}
		got, exact := countedStatus(of, list(c.counted), list(c.running))
		if !quota.Equals(got.Used, list(c.want)) || !quota.Equals(got.Hard, list("9")) || exact != c.exact {
			t.Errorf("%+v: %v, exact %v", c, got, exact)
		}
	}
}
