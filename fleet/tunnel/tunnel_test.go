package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// servers are servers of one control plane, with a member that has a tunnel to the first of them unless it moves.
type servers struct {
	t       testing.TB
	control *fakeapi.Server
	hubs    []*Hub
	https   []*httptest.Server
	// current is the server that the agent connects to.
	current atomic.Int32
	// refused is why tunnels are not kept; nil if they are.
	refused atomic.Pointer[error]
	// returned counts the handlers of tunnels that have returned, and ended the tunnels that have ended.
	returned, ended atomic.Int32
}

func newServers(t testing.TB, n int) *servers {
	t.Helper()
	s := &servers{t: t, control: fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("coordination.k8s.io/v1 Lease")...)...)}
	client := kubernetes.NewForConfigOrDie(s.control.Config())
	for i := range n {
		mux := http.NewServeMux()
		server := httptest.NewTLSServer(mux)
		hub := NewHub(HubConfig{Identity: fmt.Sprint("server-", i), Address: server.Listener.Addr().String(), Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
			Client: func() (kubernetes.Interface, error) { return client, nil }, PeerTLS: func() (*tls.Config, error) { return trust(server), nil }})
		mux.HandleFunc("/services/clusters/{cluster}/tunnel", func(w http.ResponseWriter, r *http.Request) {
			if why := s.refused.Load(); why != nil {
				writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, (*why).Error())
				return
			}
			defer s.returned.Add(1)
			hub.Accept(w, r, &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("cluster"), UID: "1"}}, func() error {
				if why := s.refused.Load(); why != nil {
					return *why
				}
				return nil
			}, func() { s.ended.Add(1) })
		})
		mux.HandleFunc(v1alpha1.TunnelsPath+"{cluster}", func(w http.ResponseWriter, r *http.Request) { hub.ServePeer(w, r, r.PathValue("cluster")) })
		s.hubs, s.https = append(s.hubs, hub), append(s.https, server)
		t.Cleanup(func() { _ = hub.Close(); server.CloseClientConnections(); server.Close() })
	}
	return s
}

func trust(server *httptest.Server) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// agent runs the syncer's end of a cluster's tunnel until the test ends, or stop is called.
func (s *servers) agent(cluster string, level Level, member *httptest.Server) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	agent := Agent{Cluster: cluster, Level: level, Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
		Member: &rest.Config{Host: member.URL, BearerToken: "of-the-syncer", TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(member)}},
		Endpoint: func() Endpoint {
			server := s.https[s.current.Load()]
			return Endpoint{URL: server.URL + "/services/clusters/" + cluster, TLS: trust(server), Ended: context.Background()}
		}}
	go func() { defer close(ended); _ = agent.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	s.t.Cleanup(stop)
	return stop
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// client returns a client of a cluster by way of a server.
func (s *servers) client(server int, cluster string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.hubs[server].Dial(ctx, cluster) }}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// connected waits until a server has the tunnel of a cluster itself.
func (s *servers) connected(server int, cluster string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, "the tunnel is open", func() error {
		if s.hubs[server].own(cluster) == nil {
			return errors.New("no tunnel")
		}
		return nil
	})
}

// known waits until a server knows of a tunnel, which another one may have.
func (s *servers) known(server int, cluster string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, "the server knows of the tunnel", func() error {
		if !s.hubs[server].Connected(s.t.Context(), cluster) {
			return errors.New("it does not")
		}
		return nil
	})
}

func get(client *http.Client, url string) (int, string, error) {
	r, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// newMember returns the API server of a cluster, which responds with the request and its identity.
func newMember(t testing.TB) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s as %s %s%s", r.Method, r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("Impersonate-User"), r.Header.Get("X-Remote-User"))
	})
	mux.HandleFunc("/apis/apps/v1/namespaces/shop/replicasets/r", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Accept")) })
	mux.HandleFunc("/api/v1/namespaces/shop/pods/a/log", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "a line")
		w.(http.Flusher).Flush()
		<-r.Context().Done() // as with --follow
	})
	mux.HandleFunc("/api/v1/namespaces/shop/pods/a/exec", func(w http.ResponseWriter, r *http.Request) {
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer ws.Close()
		for {
			kind, text, err := ws.ReadMessage()
			if err != nil || ws.WriteMessage(kind, text) != nil {
				return
			}
		}
	})
	mux.HandleFunc("/api/v1/namespaces/shop/pods/a/proxy/big", func(w http.ResponseWriter, _ *http.Request) {
		part := make([]byte, 64<<10)
		for range 256 {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	})
	server := httptest.NewTLSServer(mux)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

// TestRequestsThroughATunnel: requests reach the cluster with the syncer's credential, by way of the server that has the
// tunnel and of another one, as streams too. What the level does not include is refused with the remedy.
func TestRequestsThroughATunnel(t *testing.T) {
	s := newServers(t, 2)
	s.agent("north", Pods, newMember(t))
	s.connected(0, "north")
	s.known(1, "north")
	for server, name := range []string{"the holder", "another server"} {
		t.Run(name, func(t *testing.T) {
			client := s.client(server, "north")
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://north/api/v1/namespaces/shop/pods", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range map[string]string{"Authorization": "Bearer of-a-user", "Impersonate-User": "admin", "X-Remote-User": "admin"} {
				request.Header.Set(name, value)
			}
			answer, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if body, _ := io.ReadAll(answer.Body); string(body) != "GET /api/v1/namespaces/shop/pods as Bearer of-the-syncer " {
				t.Errorf("the cluster was asked %s", body)
			}
			if code, body, err := get(client, "http://north/api/v1/namespaces/shop/secrets"); code != http.StatusForbidden || !strings.Contains(body, "set --reach pods, and this needs all") {
				t.Errorf("secrets: %d %s %v", code, body, err)
			}
			if code, body, err := get(client, "http://north/api/v1/namespaces/shop/pods/a/proxy/big"); code != http.StatusOK || len(body) != 16<<20 {
				t.Errorf("a large answer: %d, %d bytes, %v", code, len(body), err)
			}
			owner, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://north/apis/apps/v1/namespaces/shop/replicasets/r", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			owner.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
			if answer, err = client.Do(owner); err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if body, _ := io.ReadAll(answer.Body); string(body) != "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1" {
				t.Errorf("metadata was requested as %s", body)
			}
			s.follows(t, client)
			s.echoes(t, server)
		})
	}
}

// follows checks that a line of a log arrives although the log does not end.
func (s *servers) follows(t *testing.T, client *http.Client) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://north/api/v1/namespaces/shop/pods/a/log", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line := make([]byte, len("a line\n"))
	if _, err := io.ReadFull(answer.Body, line); err != nil || string(line) != "a line\n" {
		t.Errorf("the log has %q, %v", line, err)
	}
}

// echoes checks that each key that a user types reaches the container, and its echo the user.
func (s *servers) echoes(t *testing.T, server int) {
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.hubs[server].Dial(ctx, "north") }}
	ws, answer, err := dialer.DialContext(t.Context(), "ws://north/api/v1/namespaces/shop/pods/a/exec?command=sh", nil)
	if err != nil {
		t.Fatal(err, answer)
	}
	defer ws.Close()
	for _, key := range []string{"l", "s", "\n"} {
		if err := ws.WriteMessage(websocket.TextMessage, []byte(key)); err != nil {
			t.Fatal(err)
		}
		if _, echo, err := ws.ReadMessage(); err != nil || string(echo) != key {
			t.Errorf("typed %q, got %q, %v", key, echo, err)
		}
	}
}

// TestTunnelsMove: when its server stops, the syncer opens the tunnel to another one, and all servers find it there.
func TestTunnelsMove(t *testing.T) {
	s := newServers(t, 2)
	s.agent("north", Read, newMember(t))
	s.connected(0, "north")
	s.current.Store(1)
	if err := s.hubs[0].Close(); err != nil || s.ended.Load() != 1 || s.hubs[0].Open() != 0 {
		t.Errorf("the server is closed, and of its tunnels %d have ended and %d are open: %v", s.ended.Load(), s.hubs[0].Open(), err)
	}
	s.connected(1, "north")
	client := s.client(0, "north")
	fakeapi.Eventually(t, "the first server reaches the cluster by way of the second", func() error {
		code, body, err := get(client, "http://north/api/v1/pods")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	lease, err := kubernetes.NewForConfigOrDie(s.control.Config()).CoordinationV1().Leases(v1alpha1.SystemNamespace).Get(t.Context(), v1alpha1.TunnelLease("north"), metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "server-1" || len(lease.OwnerReferences) != 1 {
		t.Errorf("the lease is %v, %v", lease, err)
	}
}

// TestNoTunnel: without a tunnel, or when the server that had it is gone, the error has the reason at once.
func TestNoTunnel(t *testing.T) {
	s := newServers(t, 2)
	if _, err := s.hubs[0].Dial(t.Context(), "north"); err == nil || !strings.Contains(err.Error(), "the syncer of cluster north has no tunnel to Atoll") {
		t.Errorf("no tunnel at all: %v", err)
	}
	stop := s.agent("north", Read, newMember(t))
	s.connected(0, "north")
	s.known(1, "north")
	stop()
	fakeapi.Eventually(t, "the tunnel is gone", func() error {
		if s.hubs[0].Open() > 0 {
			return errors.New("it is there")
		}
		return nil
	})
	if _, err := s.hubs[1].Dial(t.Context(), "north"); err == nil || !strings.Contains(err.Error(), "which has its tunnel: the syncer of cluster north has no tunnel") {
		t.Errorf("a tunnel that was lost: %v", err)
	}
	s.https[0].Close()
	if _, err := s.hubs[1].Dial(t.Context(), "north"); err == nil || !strings.Contains(err.Error(), "reach cluster north by way of the server at") {
		t.Errorf("a server that is gone: %v", err)
	}
}

// TestTunnelIsClosed: a tunnel ends when its syncer may not have it any more, and when another one replaces it.
func TestTunnelIsClosed(t *testing.T) {
	s := newServers(t, 1)
	stop := s.agent("north", Read, newMember(t))
	s.connected(0, "north")
	first := s.hubs[0].own("north")
	s.agent("north", Read, newMember(t))
	fakeapi.Eventually(t, "the second replaces the first", func() error {
		if s.hubs[0].own("north") == first || !first.IsClosed() {
			return errors.New("the first is there")
		}
		return nil
	})
	stop()
	why := errors.New("this credential has been revoked")
	s.refused.Store(&why)
	fakeapi.Eventually(t, "the tunnel is closed", func() error {
		if s.hubs[0].Open() > 0 {
			return errors.New("it is open")
		}
		return nil
	})
}

// TestAnswersBesideAStream: a stream that its reader does not read blocks no other.
func TestAnswersBesideAStream(t *testing.T) {
	s := newServers(t, 1)
	s.agent("north", Pods, newMember(t))
	s.connected(0, "north")
	client := s.client(0, "north")
	slow, err := client.Get("http://north/api/v1/namespaces/shop/pods/a/proxy/big")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close()
	for range 20 {
		if code, _, err := get(client, "http://north/api/v1/pods"); err != nil || code != http.StatusOK {
			t.Fatalf("%d, %v", code, err)
		}
	}
}

// TestClientGo: the clients of Kubernetes work through a tunnel.
func TestClientGo(t *testing.T) {
	s := newServers(t, 1)
	member := fakeapi.New(t, fakeapi.BuiltIns("v1 Pod")...)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	agent := Agent{Cluster: "north", Level: All, Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}, Member: member.Config(), Endpoint: func() Endpoint {
		return Endpoint{URL: s.https[0].URL + "/services/clusters/north", TLS: trust(s.https[0]), Ended: context.Background()}
	}}
	go func() { _ = agent.Run(ctx) }()
	s.connected(0, "north")
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://north", ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.hubs[0].Dial(ctx, "north") }})
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("shop")
	w, err := pods.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case event := <-w.ResultChan():
		if pod, is := event.Object.(*corev1.Pod); !is || pod.Name != "a" {
			t.Errorf("the watch has %v", event)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch sees nothing")
	}
}
