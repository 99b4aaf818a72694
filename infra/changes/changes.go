// Package changes shows what a plan would do: it answers requests for the subresource
// changes of Plans, page by page or as a stream of lines.
//
// What it shows is checked against the digest of the plan, so that whoever approves of that
// digest has seen what it stands for.
package changes

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plan"
)

const (
	// Subresource of plans that is answered here.
	Subresource = "changes"
	// Kind of a page.
	Kind = "PlanChangeList"
	// Lines is the media type of a stream: a change on each line, as JSON. If it cannot go on, the
	// last line is a metav1.Status, of kind Status.
	Lines = "application/x-ndjson"
)

// List is a page of changes, sorted by their addresses.
type List struct {
	metav1.TypeMeta `json:",inline"`
	// ListMeta tells where to go on, and how many are left if that can be known from a plan's status.
	metav1.ListMeta `json:"metadata"`
	Items           []*plan.Change `json:"items"`
}

// Handler answers requests. It reads plans and their pieces by a client that may do so whoever
// asks: the right to read changes is that of the subresource alone.
type Handler struct{ api dynamic.Interface }

// New gives a Handler.
func New(api dynamic.Interface) *Handler { return &Handler{api} }

// Streams tells whether a request is for a stream, which may last for as long as it takes.
func Streams(r *http.Request) bool {
	q, err := parse(r)
	return err == nil && q.stream
}

// Serve answers a request for the changes of a plan.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, namespace, name string) {
	if err := h.serve(w, r, namespace, name); err != nil {
		status := statusOf(err)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		// Who asked may be gone, and there is nobody else to tell.
		_ = json.NewEncoder(w).Encode(status)
	}
}

// serve fails before it has written anything, or not at all.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, namespace, name string) error {
	q, err := parse(r)
	if err != nil {
		return err
	}
	p, err := h.plan(r.Context(), namespace, name)
	if err != nil {
		return err
	}
	if err := ready(p); err != nil {
		return err
	}
	walk := &walk{api: h.api, plan: p, contents: infra.Contents(&p.Status), filter: q.filter}
	if err := walk.contents.Check(walk.contents.Digest); err != nil {
		return corrupt(p, err)
	}
	if q.token != "" {
		if walk.after, err = position(q.token, p); err != nil {
			return err
		}
	}
	if q.stream {
		stream(r.Context(), w, walk)
		return nil
	}
	return page(r.Context(), w, walk, q.limit)
}

// ready tells whether there is something to show.
func ready(p *v1alpha1.Plan) error {
	if p.Status.Digest != "" {
		return nil
	}
	remedy := "wait until its status.phase is Planned"
	if p.Status.Phase == v1alpha1.PlanFailed {
		remedy = "its status.problems say why; put that right and make another plan"
	}
	return apierrors.NewConflict(v1alpha1.PlanResource.GroupResource(), p.Name,
		fmt.Errorf("nothing is planned, it is %s: %s", orPending(p.Status.Phase), remedy))
}

func orPending(phase v1alpha1.PlanPhase) v1alpha1.PlanPhase {
	if phase == "" {
		return v1alpha1.PlanPending
	}
	return phase
}

// corrupt is of a plan of which something else is stored than was planned.
func corrupt(p *v1alpha1.Plan, err error) error {
	return apierrors.NewInternalError(fmt.Errorf("what is stored of plan %q is not what was planned: approve nothing of it, and make another: %w", p.Name, err))
}

// statusOf is what is told of an error.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status
}
