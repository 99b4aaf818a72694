package hostile

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/test/fakeapi"
	"github.com/atoll-dev/atoll/test/programs"
)

// hostileMember is a cluster that joined, and attacks from some time on.
type hostileMember struct {
	t      *testing.T
	stage  *stage
	name   string
	server *httptest.Server

	mu sync.Mutex
	// attack answers a request, and reports whether it did. Others are answered as an API server does.
	attack func(w http.ResponseWriter, r *http.Request) bool
}

// joined returns a member that has joined, and is Ready. It leaves at the end of the test.
func joined(t *testing.T, name string) *hostileMember {
	t.Helper()
	m := &hostileMember{t: t, stage: attacked(t), name: name}
	api := fakeapi.New(t, fakeapi.BuiltIns("v1 Namespace", "v1 Node", "v1 Pod", "v1 ConfigMap", "v1 Secret", "v1 Event", "v1 ResourceQuota", "apps/v1 Deployment")...)
	for _, namespace := range []string{"kube-system", "default"} {
		api.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace, "uid": "7d0e2a1c-5b1f-4c1e-9d5a-" + fmt.Sprintf("%012x", len(name)*1000+len(namespace))}})
	}
	m.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		attack := m.attack
		m.mu.Unlock()
		switch {
		case attack != nil && attack(w, r):
		case r.URL.Path == "/readyz":
			_, _ = io.WriteString(w, "ok")
		case strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/"): // whose bodies are not JSON
			http.Error(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`, http.StatusForbidden)
		default:
			api.ServeHTTP(w, r)
		}
	}))
	m.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	m.server.EnableHTTP2 = true
	m.server.StartTLS()
	t.Cleanup(m.server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.server.Certificate().Raw})
	kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}], "users": [{"name": "u", "user": {"token": "swordfish"}}]}`, m.server.URL, base64.StdEncoding.EncodeToString(authority))
	ctx, stop := context.WithTimeout(t.Context(), settle)
	defer stop()
	if err := join.Push(ctx, m.stage.admin, join.Options{Name: name, Kubeconfig: []byte(kubeconfig)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.attacks(nil)
		ctx, stop := context.WithTimeout(context.Background(), settle)
		defer stop()
		if err := join.Leave(ctx, m.stage.admin, join.LeaveOptions{Name: name, Cascade: v1alpha1.LeaveOrphan}); err != nil {
			t.Errorf("leave: %v", err)
		}
	})
	return m
}

func (m *hostileMember) attacks(attack func(w http.ResponseWriter, r *http.Request) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attack = attack
}

// ready returns the condition Ready of the member's Cluster, and all that the Cluster's status says as one text.
func (m *hostileMember) ready(ctx context.Context) (c metav1.Condition, status string, err error) {
	u, err := m.stage.api.Resource(v1alpha1.ClusterResource).Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return c, "", err
	}
	var cluster v1alpha1.Cluster
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &cluster); err != nil {
		return c, "", err
	}
	if found := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady); found != nil {
		c = *found
	}
	text, err := (&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Status", "status": u.Object["status"]}}).MarshalJSON()
	return c, string(text), err
}

// endless answers without an end, until the other side does not read any more.
func endless(w http.ResponseWriter, prefix string, sent *atomic.Int64) {
	w.Header().Set("Content-Type", "application/json")
	n, err := io.WriteString(w, prefix)
	for chunk := []byte(strings.Repeat("x", 64<<10)); err == nil; n, err = w.Write(chunk) {
		sent.Add(int64(n))
	}
}

// someNodes answers with a page of so many nodes, and says that there are more.
func someNodes(w http.ResponseWriter, n int, sent *atomic.Int64) {
	w.Header().Set("Content-Type", "application/json")
	nodes := make([]string, n)
	for i := range nodes {
		nodes[i] = aNode(sent)
	}
	_, _ = fmt.Fprintf(w, `{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": "more"}, "items": [%s]}`, strings.Join(nodes, ","))
}

// moreNodes sends events of new nodes without an end, until the other side does not read any more.
func moreNodes(w http.ResponseWriter, sent *atomic.Int64) {
	w.Header().Set("Content-Type", "application/json")
	var err error
	for err == nil {
		_, err = fmt.Fprintf(w, `{"type": "ADDED", "object": %s}`+"\n", aNode(sent))
	}
}

// aNode returns a node that no other has the name of.
func aNode(sent *atomic.Int64) string {
	node := fmt.Sprintf(`{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n%d", "labels": {"l": %q}, "resourceVersion": "1"}}`, sent.Load(), strings.Repeat("x", 2000))
	sent.Add(int64(len(node)))
	return node
}

const (
	// mostRead is how much of one answer the server reads, with what connections buffer.
	mostRead = 24 << 20
	// mostNodes is how much the nodes of a cluster may be, with what connections buffer: 48 MiB are several times the largest
	// cluster.
	mostNodes = 56 << 20
	// mostMemory is how much more memory the server may take during an attack. Between two collections of garbage its memory
	// grows by more than an attack costs, which is 5 to 50 MiB; unbounded answers took gigabytes.
	mostMemory = 256 << 20
)

// TestEndlessAnswers: answers without an end cost the server little memory, and others notice nothing.
func TestEndlessAnswers(t *testing.T) {
	other := joined(t, "other")
	for name, tt := range map[string]struct {
		prefix  string
		matches func(r *http.Request) bool
		// answer, if not nil, answers instead, and has to end so often.
		answer func(w http.ResponseWriter, r *http.Request, sent *atomic.Int64)
		ends   int64
		read   int64 // how much of one answer the server may read; 0 is mostRead
	}{
		"readyz":    {prefix: "ok", matches: func(r *http.Request) bool { return r.URL.Path == "/readyz" }},
		"namespace": {prefix: `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "`, matches: func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") }},
		"event":     {prefix: `{"type": "ADDED", "object": {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "`, matches: func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }},
		"page":      {prefix: `{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "`, matches: func(r *http.Request) bool { return r.URL.Path == "/api/v1/nodes" }, ends: 8},
		"list": {matches: func(r *http.Request) bool { return r.URL.Path == "/api/v1/nodes" }, ends: 100,
			answer: func(w http.ResponseWriter, r *http.Request, sent *atomic.Int64) {
				if r.URL.Query().Get("watch") != "" { // as an API server that sends no lists as events
					http.Error(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}`, http.StatusUnprocessableEntity)
					return
				}
				someNodes(w, 500, sent)
			}},
		"watch": {matches: func(r *http.Request) bool { return r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("watch") != "" }, read: mostNodes,
			answer: func(w http.ResponseWriter, _ *http.Request, sent *atomic.Int64) { moreNodes(w, sent) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := joined(t, "endless-"+name)
			if err := m.stage.resetPeak(); err != nil {
				t.Log("the peak is the one since the server's start: ", err) // which may only be higher
			}
			before, err := m.stage.memory("VmRSS")
			if err != nil {
				t.Fatal(err)
			}
			var sent, begun, ended atomic.Int64
			m.attacks(func(w http.ResponseWriter, r *http.Request) bool {
				if !tt.matches(r) {
					return false
				}
				begun.Add(1)
				if tt.answer != nil {
					tt.answer(w, r, &sent)
				} else {
					endless(w, tt.prefix, &sent)
				}
				ended.Add(1)
				return true
			})
			m.server.CloseClientConnections() // the server lists and watches again
			programs.Eventually(t, settle, "the server has ended the answers", func(context.Context) error {
				if n := ended.Load(); n < max(tt.ends, 3) {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			peak, err := m.stage.memory("VmHWM")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d MiB sent in %d answers; the server's memory grew from %d by %d MiB", sent.Load()>>20, ended.Load(), before>>20, (peak-before)>>20)
			if n := begun.Load(); sent.Load() > n*max(tt.read, mostRead) {
				t.Errorf("the server read %d MiB of %d answers", sent.Load()>>20, n)
			}
			if peak-before > mostMemory {
				t.Errorf("the server's memory grew by %d MiB", (peak-before)>>20)
			}
			if c, _, err := other.ready(t.Context()); err != nil || c.Status != metav1.ConditionTrue {
				t.Errorf("the other cluster: %+v (%v)", c, err)
			}
		})
	}
}

// TestRedirects: the server follows no redirect of a member, so that it cannot be led to addresses that only it reaches.
func TestRedirects(t *testing.T) {
	var led atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { led.Add(1) }))
	defer inside.Close()
	m := joined(t, "redirects")
	var answered atomic.Int64
	m.attacks(func(w http.ResponseWriter, r *http.Request) bool {
		answered.Add(1)
		http.Redirect(w, r, inside.URL+"/latest/meta-data/", http.StatusTemporaryRedirect)
		return true
	})
	m.isNotReady(v1alpha1.ReasonInvalidKubeConfig, "is a redirect, which is not followed")
	if n := led.Load(); n > 0 || answered.Load() == 0 {
		t.Errorf("%d of %d redirects were followed", n, answered.Load())
	}
}

// TestTextsOfMembers: nothing of the text that a member sends where an API server reports its checks is shown.
func TestTextsOfMembers(t *testing.T) {
	const said = "come to http://evil.example"
	m := joined(t, "texts")
	m.attacks(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/readyz" {
			return false
		}
		http.Error(w, said+"\n[-]etcd failed: "+said, http.StatusInternalServerError)
		return true
	})
	if status := m.isNotReady(v1alpha1.ReasonClusterNotReady, "failed checks: etcd"); strings.Contains(status, "evil.example") {
		t.Errorf("the status has what the member said: %s", status)
	}
}

// isNotReady waits until the member's Cluster is not Ready, and returns its status.
func (m *hostileMember) isNotReady(reason, words string) (status string) {
	m.t.Helper()
	programs.Eventually(m.t, settle, m.name+" is not Ready", func(ctx context.Context) error {
		c, all, err := m.ready(ctx)
		if err != nil || c.Reason != reason || !strings.Contains(c.Message, words) {
			return fmt.Errorf("%+v (%v)", c, err)
		}
		status = all
		return nil
	})
	return status
}
