package clusters

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// connection tests whether a slow member accepts new connections. The one of the probes proves nothing: it may have
// been made before the network was cut. Syncers share it, so the probes cannot close it either.
type connection struct {
	config *rest.Config
	// testAfter is how long the answer to a probe takes until the connection is tested.
	testAfter time.Duration
	client    *http.Client
}

// test tests the connection if the answer to a probe takes long. The caller passes the probe's error to the returned
// function, which reports whether the probe timed out although the member accepts connections.
func (c *connection) test(ctx context.Context) (connects func(error) bool) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan bool, 1)
	timer := time.AfterFunc(c.testAfter, func() { done <- c.connects(ctx) })
	return func(err error) bool {
		defer cancel()
		if timer.Stop() {
			return false
		}
		if !isSlow(err) {
			cancel()
		}
		return <-done && isSlow(err)
	}
}

// connects reports whether a new connection is made, with TLS if the address has it, before ctx ends.
func (c *connection) connects(ctx context.Context) bool {
	if c.client == nil {
		cfg := rest.CopyConfig(c.config)
		if cfg.Proxy == nil {
			cfg.Proxy = http.ProxyFromEnvironment // client-go shares no transport that has one of its own
		}
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			return false
		}
		c.client = client
	}
	address, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return false
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("readyz").String(), nil)
	if err != nil {
		return false
	}
	if answer, err := c.client.Do(request); err == nil {
		_ = answer.Body.Close()
	}
	c.client.CloseIdleConnections() // the next test needs a new one
	return connected.Load()
}

// isSlow reports whether an error means that the answer did not arrive in time.
func isSlow(err error) bool { return errors.Is(err, context.DeadlineExceeded) || isTimeout(err) }

// isGateway reports whether an answer comes from a proxy that does not reach the API server. An API server answers
// with a Status, or with a list of its checks.
func isGateway(code int32, body []byte) bool {
	switch {
	case code != http.StatusBadGateway && code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout:
		return false
	case body == nil: // of another request, which followed one that was answered
		return false
	}
	return !bytes.HasPrefix(body, []byte("[+]")) && !bytes.HasPrefix(body, []byte("[-]")) && !bytes.Contains(body, []byte(`"Status"`))
}
