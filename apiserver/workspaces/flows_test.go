package workspaces

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	clientset "k8s.io/client-go/kubernetes"
)

// withFlows replaces the stage's server by one with other limits.
func (s *stage) withFlows(limits flowLimits) {
	s.t.Helper()
	config := s.server.config
	config.flows = limits
	var err error
	if s.server, err = New(s.t.Context(), config); err != nil {
		s.t.Fatal(err)
	}
}

// uploads are requests whose bodies do not end.
type uploads struct {
	s       *stage
	ends    chan struct{}
	codes   chan int
	running sync.WaitGroup
}

func (s *stage) newUploads() *uploads {
	u := &uploads{s: s, ends: make(chan struct{}), codes: make(chan int, 1000)}
	s.t.Cleanup(u.end)
	return u
}

func (u *uploads) end() {
	select {
	case <-u.ends:
	default:
		close(u.ends)
	}
	u.running.Wait()
}

// begin begins to create an object, and does not finish.
func (u *uploads) begin(path string) {
	body, writer := io.Pipe()
	ctx := request.WithUser(context.WithoutCancel(u.s.t.Context()), admin)
	r := httptest.NewRequest("POST", "/clusters/"+path+"/api/v1/namespaces/default/configmaps", body).WithContext(ctx)
	u.running.Go(func() {
		<-u.ends
		_ = writer.CloseWithError(io.ErrUnexpectedEOF)
	})
	u.running.Go(func() { u.codes <- u.s.serve(r).code })
}

// TestFlowOfOneWorkspace: a workspace whose requests take long and fill its queue gets 429, and another one is served, by users and by
// the server itself.
func TestFlowOfOneWorkspace(t *testing.T) {
	s := newStage(t, "flood", "quiet")
	s.withFlows(flowLimits{seats: 10, serverSeats: 1, requests: 8, queue: 5, watches: 10})
	u := s.newUploads()
	for range 8 {
		u.begin("flood")
	}
	flood := s.awake["flood"]
	s.eventually("the workspace has as many requests as it may", func() bool { return flood.requests.Load() == 8 })
	if a := s.as(admin, "GET", "/clusters/flood/api/v1/namespaces", ""); a.code != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429: %s", a.code, a.body)
	}
	for i := range 20 {
		s.want(201, s.as(admin, "POST", "/clusters/quiet/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, i)))
	}
	chain, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	own, err := clientset.NewForConfig(chain.clientConfig(flood))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the server's own request: %v", err)
	}
	u.end()
	s.want(200, s.as(admin, "GET", "/clusters/flood/api/v1/namespaces", ""))
}

// TestFlowsWait: requests beyond the seats wait, and a workspace with a full queue gets 429 while one without is queued and served.
func TestFlowsWait(t *testing.T) {
	s := newStage(t, "flood", "quiet")
	s.withFlows(flowLimits{seats: 2, serverSeats: 1, requests: 1000, queue: 3, watches: 10})
	u := s.newUploads()
	const waiting = queuesOfWorkspace * 3
	for range 2 + waiting {
		u.begin("flood")
	}
	flood := s.awake["flood"]
	s.eventually("all seats and queues are taken", func() bool { return flood.requests.Load() == 2+waiting })
	s.eventually("one more gets 429", func() bool {
		u.begin("flood")
		select {
		case code := <-u.codes:
			return code == http.StatusTooManyRequests
		default:
			return false
		}
	})
	served := make(chan response)
	go func() { served <- s.as(admin, "GET", "/clusters/quiet/api/v1/namespaces", "") }()
	s.eventually("the other workspace's request waits", func() bool { return s.awake["quiet"].requests.Load() == 1 })
	u.end()
	s.want(200, <-served)
}

// TestPace: while others have requests, a workspace runs a few at a time; more of them wait, and the others do not wait for them.
func TestPace(t *testing.T) {
	s := newStage(t, "flood", "quiet")
	s.withFlows(flowLimits{seats: 20, serverSeats: 1, requests: 20, queue: 5, watches: 10, together: 2, pause: time.Hour})
	list := func(path string) response { return s.as(admin, "GET", "/clusters/"+path+"/api/v1/namespaces", "") }
	u := s.newUploads()
	for range 4 {
		u.begin("flood")
	}
	flood := s.awake["flood"]
	s.eventually("all run, because no one else has requests", func() bool { return flood.requests.Load() == 4 && len(flood.slots(2)) == 2 })
	s.want(200, list("flood"))
	s.want(200, list("quiet"))
	served := make(chan response, 1)
	go func() { served <- list("flood") }()
	s.eventually("one more waits", func() bool { return flood.requests.Load() == 5 })
	s.want(200, list("quiet"))
	select {
	case a := <-served:
		t.Errorf("status %d: it has not waited", a.code)
	default:
	}
	u.end()
	s.want(200, <-served)
}

// TestPaceEnds: a request that another one waits for, which has a slot, runs after the pause.
func TestPaceEnds(t *testing.T) {
	s := newStage(t, "flood", "quiet")
	s.withFlows(flowLimits{seats: 20, serverSeats: 1, requests: 20, queue: 5, watches: 10, together: 1, pause: time.Millisecond})
	u := s.newUploads()
	u.begin("flood")
	s.eventually("its slot is taken", func() bool { return len(s.awake["flood"].slots(1)) == 1 })
	s.want(200, s.as(admin, "GET", "/clusters/quiet/api/v1/namespaces", ""))
	s.want(200, s.as(admin, "GET", "/clusters/flood/api/v1/namespaces", ""))
}

// TestIsShared: several workspaces have requests until one has been alone for a while.
func TestIsShared(t *testing.T) {
	f, now := &flows{}, time.Now()
	a, b := NewWorkspace("a", nil), NewWorkspace("b", nil)
	f.isShared(a, now)
	for _, step := range []struct {
		w     *Workspace
		after time.Duration
		want  bool
	}{{a, 2 * time.Second, false}, {b, 2 * time.Second, true}, {b, 2500 * time.Millisecond, true}, {a, 2600 * time.Millisecond, true}, {a, 4 * time.Second, false}} {
		if got := f.isShared(step.w, now.Add(step.after)); got != step.want {
			t.Errorf("a request of %s after %v: %v", step.w.uid, step.after, got)
		}
	}
}

// TestBoundWatches: a workspace has a limited number of watches; one more is refused with the time to wait, and another workspace has
// its own.
func TestBoundWatches(t *testing.T) {
	s := newStage(t, "a", "b")
	s.withFlows(flowLimits{seats: 10, serverSeats: 10, requests: 10, queue: 5, watches: 2})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.server.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), admin)))
	}))
	t.Cleanup(server.Close)
	watch := func(path string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/clusters/"+path+"/api/v1/configmaps?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Body.Close() })
		return a
	}
	first := watch("a")
	if second := watch("a"); first.StatusCode != 200 || second.StatusCode != 200 {
		t.Fatalf("status %d and %d", first.StatusCode, second.StatusCode)
	}
	refused := watch("a")
	body, err := io.ReadAll(refused.Body)
	if err != nil || refused.StatusCode != 429 || refused.Header.Get("Retry-After") != "10" || !strings.Contains(string(body), "has 2 watches") {
		t.Errorf("status %d, %v: %s", refused.StatusCode, err, body)
	}
	if other := watch("b"); other.StatusCode != 200 {
		t.Errorf("another workspace: status %d", other.StatusCode)
	}
	_ = first.Body.Close()
	s.eventually("there is room for another watch", func() bool { return watch("a").StatusCode == 200 })
}
