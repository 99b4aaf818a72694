package turns

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/admission"
)

// Upstream evaluates the matchConditions of webhooks in the same function as it calls them. So a request takes its turn for all of it, and
// has none while it waits for webhooks: one of them may call the workspace, and wait for a turn there.

// OfWebhooks returns upstream's plugin of validating or mutating webhooks, whose matchConditions requests then evaluate in turns. Its calls
// use a transport from WithoutTurn.
func OfWebhooks(plugin admission.Interface) admission.Interface { return hooks{policies{plugin}} }

type hooks struct{ policies }

// Admit implements admission.MutationInterface.
func (h hooks) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return afterCalls(ctx, h.policies.Admit(ctx, a, o))
}

// Validate implements admission.ValidationInterface.
func (h hooks) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return afterCalls(ctx, h.policies.Validate(ctx, a, o))
}

// afterCalls returns an error if the request did not get its turn back after a call. The plugin may have ignored that, as the failure of a
// webhook that may fail.
func afterCalls(ctx context.Context, err error) error {
	t := turnOf(ctx)
	if t == nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if failed := t.failed; failed != nil {
		t.failed = nil
		return failed
	}
	return err
}

// WithoutTurn returns the transport of calls to webhooks: the request has no turn until the webhook has answered.
func WithoutTurn(next http.RoundTripper) http.RoundTripper { return turnlessTransport{next} }

type turnlessTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t turnlessTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	of := turnOf(r.Context())
	of.suspend()
	response, err := t.next.RoundTrip(r)
	if failed := of.resume(r.Context()); failed != nil {
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, failed
	}
	return response, err
}

// WrappedRoundTripper implements net.RoundTripperWrapper, by which clients find the transport to close its connections.
func (t turnlessTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// suspend gives the turn back while a call runs. Several calls may run at the same time.
func (t *turn) suspend() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls++; t.calls == 1 && t.users > 0 {
		<-t.taken
	}
}

// resume takes the turn again after the last call.
func (t *turn) resume(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls--; t.calls > 0 || t.users == 0 {
		return nil
	}
	if err := t.take(ctx); err != nil {
		t.failed, t.users = err, 0 // leave has nothing to give back
		return err
	}
	return nil
}
