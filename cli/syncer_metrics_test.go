package cli

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/fleet/syncer"
)

func TestSyncerServesMetrics(t *testing.T) {
	m, err := listenForMetrics("127.0.0.1:0", syncer.NewMetrics())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.serve(ctx) }()
	answer, err := http.Get("http://" + m.listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(page), "\ngo_goroutines ") {
		t.Errorf("%d %v\n%s", answer.StatusCode, err, page)
	}
	if _, err := listenForMetrics(m.listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "set --metrics-listen to a free address") {
		t.Errorf("an address in use: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
