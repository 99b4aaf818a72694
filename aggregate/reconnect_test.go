package aggregate

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestReconnectOn503(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w = reconnectOn503(w, r)
		if _, ok := w.(http.Flusher); !ok {
			t.Error("cannot flush")
		}
		if r.URL.Path == "/unavailable" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, r.Proto)
	}))
	server.EnableHTTP2 = true
	note := ConnContext(clock)
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		connections.Add(1)
		return note(ctx, c)
	}
	server.StartTLS()
	defer server.Close()
	get := func(path string) {
		t.Helper()
		response, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "HTTP/2.0" {
			t.Fatalf("%s, %v", body, err)
		}
	}
	get("/unavailable")
	get("/")
	clock.SetTime(start.Add(minConnectionAge))
	get("/")
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	get("/unavailable")
	for deadline := time.Now().Add(20 * time.Second); connections.Load() == 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the connection was not closed")
		}
		get("/")
	}
	get("/unavailable")
	get("/")
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections: a new one was closed too", n)
	}
}
