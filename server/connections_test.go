package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// While a server's Lease is not renewed, members are disconnected first when other
// servers consider it gone, and then at growing intervals. A renewal resets the
// schedule.
func TestDisconnects(t *testing.T) {
	var l disconnects
	var due []time.Duration
	for age := time.Duration(0); age <= 5*time.Minute; age += time.Second {
		if l.due(age) {
			due = append(due, age/time.Second)
		}
	}
	if want := []time.Duration{10, 15, 20, 25, 30, 40, 60, 100, 160, 220, 280}; !slices.Equal(due, want) {
		t.Errorf("members are disconnected after %d s, want %d", due, want)
	}
	if l.due(time.Second) || l.due(9*time.Second) || !l.due(11*time.Second) || l.due(12*time.Second) || !l.due(17*time.Second) {
		t.Error("a second lapse does not start like the first")
	}
}

// serveConnections serves over HTTP/2: /watch until it is canceled, /slow its header at once
// and its body when rest is closed, /stuck only a header.
func serveConnections(t *testing.T, open *connections, rest <-chan struct{}) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(open.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var until <-chan struct{}
		switch r.URL.Path {
		case "/watch", "/stuck":
			until = r.Context().Done()
		case "/slow":
			until = rest
		default:
			return
		}
		w.(http.Flusher).Flush()
		<-until
		_, _ = io.WriteString(w, "end")
	})))
	server.Config.ConnState = open.track
	server.Config.ConnContext = open.connContext
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, server *httptest.Server, path string) *http.Response {
	t.Helper()
	answer, err := server.Client().Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

// awaitNone waits until no connection is tracked.
func awaitNone(t *testing.T, open *connections) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		open.mu.Lock()
		left := len(open.open)
		open.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are still open", left)
		}
	}
}

// Watches end at once, an answer that has begun is sent whole, and the client may
// reconnect.
func TestConnectionsCloseAll(t *testing.T) {
	var open connections
	rest := make(chan struct{})
	server := serveConnections(t, &open, rest)
	watch := get(t, server, "/watch?watch=true")
	slow := get(t, server, "/slow?watch=false")

	open.closeAll()
	if body, err := io.ReadAll(watch.Body); err != nil || string(body) != "end" {
		t.Errorf("the watch ended with %q, %v; want its end", body, err)
	}
	if answer := get(t, server, "/"); answer.StatusCode != http.StatusOK {
		t.Errorf("a request while the connection is being closed: %s", answer.Status)
	}
	close(rest)
	if body, err := io.ReadAll(slow.Body); err != nil || string(body) != "end" {
		t.Errorf("the answer in flight was %q, %v; want it whole", body, err)
	}
	get(t, server, "/").Body.Close()
	server.CloseClientConnections()
	awaitNone(t, &open)
}

// A connection without requests is closed.
func TestConnectionsCloseIdle(t *testing.T) {
	var open connections
	get(t, serveConnections(t, &open, nil), "/").Body.Close()
	open.closeAll()
	awaitNone(t, &open)
}

// A request that does not end, because the datastore does not answer, keeps its
// connection open for a short time only.
func TestConnectionsCloseStuck(t *testing.T) {
	var open connections
	stuck := get(t, serveConnections(t, &open, nil), "/stuck")
	open.closeAll()
	if body, err := io.ReadAll(stuck.Body); err == nil {
		t.Errorf("the answer %q ended without an error: its client would take it for whole", body)
	}
	awaitNone(t, &open)
}
