package changesapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// plan reads a plan.
func (h *Handler) plan(ctx context.Context, namespace, name string) (*v1alpha1.Plan, error) {
	out := &v1alpha1.Plan{}
	if err := read(ctx, h.api, v1alpha1.PlanResource, namespace, name, out); err != nil {
		return nil, err
	}
	return out, nil
}

func read(ctx context.Context, api dynamic.Interface, resource schema.GroupVersionResource, namespace, name string, into any) error {
	u, err := api.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return decode(u, into)
}

func decode(u *unstructured.Unstructured, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
		return fmt.Errorf("decode %s %q: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// changeReader reads the matching changes of a plan. It holds one chunk at a time.
type changeReader struct {
	api      dynamic.Interface
	plan     *v1alpha1.Plan
	contents *planstore.Contents
	filter   filter
	// after is the address to continue after; nil to start with the first change.
	after *change.Address
	// passed counts the changes read so far that have one of the actions.
	passed int
}

// each calls visit with each encoded change until it returns false. It calls between after each
// chunk.
func (w *changeReader) each(ctx context.Context, visit func(change []byte) bool, between func() error) error {
	for n := range w.contents.Chunks {
		chunk := &w.contents.Chunks[n]
		if w.after != nil && chunk.Last.Compare(*w.after) <= 0 {
			w.passed += w.filter.count(chunk)
			continue
		}
		if !w.filter.mayMatch(chunk) {
			continue
		}
		pieces, err := w.load(ctx, n)
		if err != nil {
			return err
		}
		on := true
		var unreadable error
		err = chunk.Lines(pieces, true, w.filter.actions, func(text []byte) bool {
			var shown bool
			if shown, unreadable = w.matches(text); unreadable != nil {
				return false
			}
			if on = !shown || visit(text); on {
				w.passed++
			}
			return on
		})
		if err = errors.Join(err, unreadable); err != nil {
			return corrupt(w.plan, err)
		}
		if !on {
			return nil
		}
		if err := between(); err != nil {
			return err
		}
	}
	return nil
}

// changeHeader is the part of a change that filters need. Decoding whole changes that are only
// passed through would dominate the cost.
type changeHeader struct {
	Address change.Address `json:"address"`
	Drift   *struct{}      `json:"drift"`
}

func headerOf(change []byte) (o changeHeader, err error) {
	if err := json.Unmarshal(change, &o); err != nil {
		return o, fmt.Errorf("invalid change: %w", err)
	}
	return o, nil
}

// matches reports whether a change, which has one of the actions, is requested.
func (w *changeReader) matches(change []byte) (bool, error) {
	if w.after == nil && w.filter.hasCount() {
		return true, nil
	}
	o, err := headerOf(change)
	return err == nil && (w.after == nil || o.Address.Compare(*w.after) > 0) && w.filter.matches(o), err
}

// total returns the number of matching changes, if the plan's status has it.
func (w *changeReader) total() (n int) {
	for i := range w.contents.Chunks {
		n += w.filter.count(&w.contents.Chunks[i])
	}
	return n
}

// load reads the pieces of a chunk.
func (w *changeReader) load(ctx context.Context, chunk int) ([][]byte, error) {
	pieces := make([][]byte, w.contents.Chunks[chunk].Pieces)
	for i := range pieces {
		name := planstore.PieceName(w.plan.Name, chunk, i)
		var piece v1alpha1.PlanChanges
		err := read(ctx, w.api, v1alpha1.PlanChangesResource, w.plan.Namespace, name, &piece)
		switch {
		case apierrors.IsNotFound(err):
			// They are deleted with their plan.
			return nil, apierrors.NewResourceExpired(fmt.Sprintf("the changes of plan %q were deleted: create another plan", w.plan.Name))
		case err != nil:
			return nil, fmt.Errorf("read a piece of plan %q: %w", w.plan.Name, err)
		}
		pieces[i] = piece.Spec.Content
	}
	return pieces, nil
}

// errClientGone is returned when the client has closed the connection.
var errClientGone = errors.New("the client is gone")
