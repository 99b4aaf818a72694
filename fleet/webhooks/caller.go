// Package webhooks asks the webhooks of ResourceInterpretations, in the protocol of Karmada's resource
// interpreter webhooks, and keeps their answers. Package interpret decides with these answers, and never
// waits for one: where an answer is missing, everything stays as it is. See DESIGN.md.
package webhooks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// maxResponseBytes bounds a response.
	maxResponseBytes = 4 << 20
	// maxClients bounds the clients that are kept: there is one for each CA bundle.
	maxClients = 64
	// connectionsPerHost bounds the requests to one webhook at a time.
	connectionsPerHost = 8
)

// Caller sends questions to webhooks.
type Caller struct {
	metrics *Metrics
	dial    Dial // nil for any address

	mu      sync.Mutex
	clients map[[sha256.Size]byte]*http.Client // by CA bundle
}

// NewCaller returns a Caller. metrics may be nil.
func NewCaller(metrics *Metrics) *Caller {
	return &Caller{metrics: metrics, clients: map[[sha256.Size]byte]*http.Client{}}
}

// Dial connects to an address that a webhook may have.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// NewRestrictedCaller returns a Caller for webhooks whose URLs come from users who must not choose any address.
func NewRestrictedCaller(metrics *Metrics, dial Dial) *Caller {
	c := NewCaller(metrics)
	c.dial = dial
	return c
}

// Ask sends a question to its webhook and returns the checked answer. It takes no longer than the timeout of
// the webhook. The error contains no more of the URL than its host.
func (c *Caller) Ask(ctx context.Context, q interpret.Question) (interpret.Answer, error) {
	started := time.Now()
	a, err := c.ask(ctx, q)
	c.metrics.asked(q.Operation, err, time.Since(started))
	return a, err
}

func (c *Caller) ask(ctx context.Context, q interpret.Question) (interpret.Answer, error) {
	client, err := c.client(q.Webhook)
	if err != nil {
		return interpret.Answer{}, err
	}
	uid := uuid.NewUUID()
	request, err := encode(q, uid)
	if err != nil {
		return interpret.Answer{}, fmt.Errorf("encode the request: %w", err)
	}
	timeout := time.Duration(ptr.Deref(q.Webhook.TimeoutSeconds, v1alpha1.DefaultWebhookTimeoutSeconds)) * time.Second
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := post(bounded, client, q.Webhook.URL, timeout, request)
	if err != nil {
		if bounded.Err() != nil && ctx.Err() == nil {
			return interpret.Answer{}, fmt.Errorf("no response within %s", timeout)
		}
		return interpret.Answer{}, err
	}
	return decode(q, uid, body)
}

// post sends a request and returns the response.
func post(ctx context.Context, client *http.Client, address string, timeout time.Duration, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL is invalid")
	}
	request.URL.RawQuery = "timeout=" + timeout.String()
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		var whole *url.Error
		if errors.As(err, &whole) {
			err = whole.Err // without the URL
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it responded %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	if len(data) > maxResponseBytes {
		return nil, refuse("the response is larger than %d bytes", maxResponseBytes)
	}
	if !json.Valid(data) {
		return nil, refuse("the response is not JSON")
	}
	return data, nil
}

// client returns the client that trusts the CA bundle of a webhook.
func (c *Caller) client(w *v1alpha1.InterpretationWebhook) (*http.Client, error) {
	key := sha256.Sum256(w.CABundle)
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.clients[key]; ok {
		return client, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(w.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(w.CABundle) {
			return nil, errors.New("spec.webhook.caBundle has no certificate")
		}
	}
	if len(c.clients) >= maxClients {
		for _, old := range c.clients {
			old.CloseIdleConnections()
		}
		clear(c.clients)
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, DialContext: c.dial, ForceAttemptHTTP2: true, MaxConnsPerHost: connectionsPerHost,
			IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10},
		// A redirect leads to another program than the one that was configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.clients[key] = client
	return client, nil
}
