package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestHandlerReturns: the handler of a tunnel has returned, and its request has ended, while the tunnel works. Then ended
// is called once.
func TestHandlerReturns(t *testing.T) {
	s := newServers(t, 1)
	requestEnded := make(chan struct{})
	handler := s.https[0].Config.Handler
	s.https[0].Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(requestEnded) })
		handler.ServeHTTP(w, r)
	})
	stop := s.agent("north", Pods, newMember(t))
	s.connected(0, "north")
	<-requestEnded
	client := s.client(0, "north")
	for range 3 {
		if code, body, err := get(client, "http://north/api/v1/pods"); err != nil || code != http.StatusOK {
			t.Fatal(code, body, err)
		}
	}
	if s.returned.Load() != 1 || s.ended.Load() != 0 {
		t.Errorf("%d handlers returned and %d tunnels ended", s.returned.Load(), s.ended.Load())
	}
	stop()
	fakeapi.Until(t, "the tunnel has ended", func() bool { return s.ended.Load() == 1 })
	s.nothingRuns(0, "north")
}

// TestCloseEndsTunnels: Close returns when all tunnels have ended, also that of a syncer that reads nothing. Later requests
// are refused with the reason, and no goroutine is left.
func TestCloseEndsTunnels(t *testing.T) {
	const syncers = 8
	s := newServers(t, 1)
	member := newMember(t)
	var stops []func()
	for i := range syncers {
		stops = append(stops, s.agent(fmt.Sprint("cluster-", i), Read, member))
	}
	tunnelOf := func(cluster string) (io.Closer, error) {
		return dial(t.Context(), s.https[0].URL+"/services/clusters/"+cluster+"/tunnel", protocol, websocket.Dialer{TLSClientConfig: trust(s.https[0])}, nil)
	}
	silent, err := tunnelOf("silent")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s.opened(0, syncers+1)
	if err := s.hubs[0].Close(); err != nil {
		t.Error(err)
	}
	if s.ended.Load() != syncers+1 {
		t.Errorf("%d of %d tunnels have ended", s.ended.Load(), syncers+1)
	}
	s.nothingRuns(0, "cluster-0")
	if _, err := tunnelOf("late"); err == nil || !strings.Contains(err.Error(), "this server is stopping and accepts no tunnel of cluster late; retry") {
		t.Errorf("a tunnel after Close: %v", err)
	}
	for _, stop := range stops {
		stop()
	}
	fakeapi.Until(t, "ended is called for refused requests, too", func() bool { return s.ended.Load() == s.returned.Load() })
	if err := s.hubs[0].Close(); err != nil {
		t.Errorf("close it once more: %v", err)
	}
	fakeapi.Eventually(t, "no session is left", func() error { return noGoroutine("hashicorp/yamux") })
}

// nothingRuns checks that a server has no goroutine for tunnels, and counts none of a cluster.
func (s *servers) nothingRuns(server int, cluster string) {
	s.t.Helper()
	s.hubs[server].running.Wait()
	if err := errors.Join(noGoroutine("fleet/tunnel.(*accepted)"), noGoroutine("fleet/tunnel.(*peers)")); err != nil {
		s.t.Error(err)
	}
	if open := testutil.ToFloat64(s.hubs[server].cfg.Metrics.open.WithLabelValues(cluster)); s.hubs[server].Open() != 0 || open != 0 {
		s.t.Errorf("%d tunnels are open, and the metric has %v", s.hubs[server].Open(), open)
	}
}

// noGoroutine returns an error if a goroutine has a function in its stack.
func noGoroutine(function string) error {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
		return err
	}
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, function) {
			return fmt.Errorf("a goroutine is left:\n%s", stack)
		}
	}
	return nil
}
