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

// A streaming response ends when its connection is closed, and the client may
// reconnect.
func TestConnectionsCloseAll(t *testing.T) {
	var open connections
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/watch" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	server.Config.ConnState = open.track
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()

	watch, err := server.Client().Get(server.URL + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	open.closeAll()
	if _, err := io.ReadAll(watch.Body); err == nil {
		t.Error("the watch ended without an error: a client would not notice the failure")
	}
	again, err := server.Client().Get(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	again.Body.Close()

	server.CloseClientConnections()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		open.mu.Lock()
		left := len(open.open)
		open.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d closed connections are still tracked", left)
		}
	}
}
