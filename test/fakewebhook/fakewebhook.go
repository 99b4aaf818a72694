// Package fakewebhook is a webhook that interprets kinds in the protocol of Karmada's resource interpreter
// webhooks, for tests. It has types of its own for the protocol, so that it is a second reading of it.
package fakewebhook

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Request is the request part of a ResourceInterpreterContext.
type Request struct {
	UID              string            `json:"uid"`
	Kind             map[string]string `json:"kind"`
	Name             string            `json:"name"`
	Namespace        string            `json:"namespace"`
	Operation        string            `json:"operation"`
	Object           map[string]any    `json:"object"`
	ObservedObject   map[string]any    `json:"observedObject"`
	Replicas         *int              `json:"replicas"`
	AggregatedStatus []struct {
		ClusterName string         `json:"clusterName"`
		Status      map[string]any `json:"status"`
		Applied     bool           `json:"applied"`
		Health      string         `json:"health"`
	} `json:"aggregatedStatus"`
}

// Response has the fields of a response, apart from uid. Without "successful", it was successful.
type Response map[string]any

// Patch returns a response with operations by RFC 6902.
func Patch(operations ...map[string]any) Response {
	data, err := json.Marshal(operations)
	if err != nil {
		panic(err)
	}
	return Response{"patchType": "JSONPatch", "patch": base64.StdEncoding.EncodeToString(data)}
}

// Set returns the operation that sets a field. It also replaces.
func Set(path string, value any) map[string]any {
	return map[string]any{"op": "add", "path": path, "value": value}
}

// Refuse returns a response that was not successful.
func Refuse(message string) Response {
	return Response{"successful": false, "status": map[string]any{"message": message, "code": 400}}
}

// Webhook is a running webhook.
type Webhook struct {
	// URL and CABundle are what a client needs.
	URL      string
	CABundle []byte

	mu       sync.Mutex
	answer   map[string]func(Request) Response
	requests map[string]int
	isDown   bool
	replace  http.HandlerFunc
}

// New starts a webhook, which is closed when the test ends. It refuses operations without an answer.
func New(t testing.TB) *Webhook {
	t.Helper()
	w := &Webhook{answer: map[string]func(Request) Response{}, requests: map[string]int{}}
	server := httptest.NewTLSServer(http.HandlerFunc(w.serve))
	t.Cleanup(server.Close)
	w.URL = server.URL + "/secret-path"
	w.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return w
}

// On sets the answer to an operation.
func (w *Webhook) On(operation string, answer func(Request) Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer[operation] = answer
}

// Down makes the webhook fail, or work again.
func (w *Webhook) Down(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isDown = is
}

// Handle serves all requests by another handler.
func (w *Webhook) Handle(f http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replace = f
}

// Requests returns how often an operation was asked, failures included.
func (w *Webhook) Requests(operation string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests[operation]
}

func (w *Webhook) serve(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	replace := w.replace
	w.mu.Unlock()
	if replace != nil {
		replace(out, r)
		return
	}
	var in struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Request    *Request `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Request == nil || in.Kind != "ResourceInterpreterContext" || in.APIVersion != "config.karmada.io/v1alpha1" {
		http.Error(out, "not a ResourceInterpreterContext", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	w.requests[in.Request.Operation]++
	answer, isDown := w.answer[in.Request.Operation], w.isDown
	w.mu.Unlock()
	if isDown {
		http.Error(out, "down", http.StatusServiceUnavailable)
		return
	}
	response := Refuse("no answer to " + in.Request.Operation)
	if answer != nil {
		response = answer(*in.Request)
	}
	complete := map[string]any{"uid": in.Request.UID, "successful": true}
	for key, value := range response {
		complete[key] = value
	}
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(map[string]any{"apiVersion": in.APIVersion, "kind": in.Kind, "response": complete})
}
