// Package changesapi serves the changes subresource of Plans, in pages or as a stream of lines.
//
// It verifies all changes against the digest of the plan, so that a user who approves the
// digest has seen exactly these changes.
package changesapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
)

const (
	// Subresource is the name of the subresource of plans.
	Subresource = "changes"
	// ListKind is the kind of a page.
	ListKind = "PlanChangeList"
	// StreamMediaType is the media type of a stream: one change per line, as JSON. If the stream
	// fails, its last line is a metav1.Status.
	StreamMediaType = "application/x-ndjson"
)

// List is a page of changes, sorted by address.
type List struct {
	metav1.TypeMeta `json:",inline"`
	// ListMeta has the continue token, and the number of remaining changes if the plan's status
	// implies it.
	metav1.ListMeta `json:"metadata"`
	Items           []*change.Change `json:"items"`
}

// Handler serves requests. It reads plans and their pieces with a client of its own: permission to
// read changes depends on the subresource alone.
type Handler struct{ api dynamic.Interface }

// New returns a Handler.
func New(api dynamic.Interface) *Handler { return &Handler{api} }

// IsStream reports whether a request is for a stream, which must not time out.
func IsStream(r *http.Request) bool {
	q, err := parse(r)
	return err == nil && q.stream
}

// Serve serves a request for the changes of a plan.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, namespace, name string) {
	if err := h.serve(w, r, namespace, name); err != nil {
		status := statusOf(err)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		// The client may be gone, and there is no one else to report this to.
		_ = json.NewEncoder(w).Encode(status)
	}
}

// serve returns an error only if it has written nothing.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, namespace, name string) error {
	q, err := parse(r)
	if err != nil {
		return err
	}
	p, err := h.plan(r.Context(), namespace, name)
	if err != nil {
		return err
	}
	if err := checkPlanned(p); err != nil {
		return err
	}
	walk := &changeReader{api: h.api, plan: p, contents: planstore.ContentsOf(&p.Status), filter: q.filter}
	if err := walk.contents.Check(walk.contents.Digest); err != nil {
		return corrupt(p, err)
	}
	if q.token != "" {
		if walk.after, err = parseToken(q.token, p); err != nil {
			return err
		}
	}
	if q.stream {
		stream(r.Context(), w, walk)
		return nil
	}
	return page(r.Context(), w, walk, q.limit)
}

// checkPlanned returns an error if the plan has no changes to show yet.
func checkPlanned(p *v1alpha1.Plan) error {
	if p.Status.Digest != "" {
		return nil
	}
	remedy := "wait until its status.phase is Planned"
	if p.Status.Phase == v1alpha1.PlanFailed {
		remedy = "see its status.problems, correct them and create another plan"
	}
	return apierrors.NewConflict(v1alpha1.PlanResource.GroupResource(), p.Name,
		fmt.Errorf("the plan is %s: %s", orPending(p.Status.Phase), remedy))
}

func orPending(phase v1alpha1.PlanPhase) v1alpha1.PlanPhase {
	if phase == "" {
		return v1alpha1.PlanPending
	}
	return phase
}

// corrupt returns the error for a plan whose stored changes do not match its digest.
func corrupt(p *v1alpha1.Plan, err error) error {
	return apierrors.NewInternalError(fmt.Errorf("the stored changes of plan %q do not match its digest: do not approve it, and create another plan: %w", p.Name, err))
}

// statusOf converts an error to a Status.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status
}
