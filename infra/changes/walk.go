package changes

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
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plan"
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
		return fmt.Errorf("read %s %q: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// walk goes over the changes of a plan that are asked for. It holds one chunk at a time.
type walk struct {
	api      dynamic.Interface
	plan     *v1alpha1.Plan
	contents *plan.Contents
	filter   filter
	// after is where it begins, if not with the first.
	after *plan.Address
	// passed is how many changes that have one of the actions are behind it.
	passed int
}

// each gives the changes, as they are stored, to visit until that says no; between is called after each
// chunk.
func (w *walk) each(ctx context.Context, visit func(change []byte) bool, between func() error) error {
	for n := range w.contents.Chunks {
		chunk := &w.contents.Chunks[n]
		if w.after != nil && chunk.Last.Compare(*w.after) <= 0 {
			w.passed += w.filter.in(chunk)
			continue
		}
		if !w.filter.mayHave(chunk) {
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
			if shown, unreadable = w.shows(text); unreadable != nil {
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

// outline is what has to be known of a change to find it. Reading all of one that is only passed on would
// cost more than everything else.
type outline struct {
	Address plan.Address `json:"address"`
	Drift   *struct{}    `json:"drift"`
}

func outlineOf(change []byte) (o outline, err error) {
	if err := json.Unmarshal(change, &o); err != nil {
		return o, fmt.Errorf("a change cannot be read: %w", err)
	}
	return o, nil
}

// shows tells whether a change, which has one of the actions, is asked for.
func (w *walk) shows(change []byte) (bool, error) {
	if w.after == nil && w.filter.counted() {
		return true, nil
	}
	o, err := outlineOf(change)
	return err == nil && (w.after == nil || o.Address.Compare(*w.after) > 0) && w.filter.has(o), err
}

// total is how many there are to pass, if a plan's status knows.
func (w *walk) total() (n int) {
	for i := range w.contents.Chunks {
		n += w.filter.in(&w.contents.Chunks[i])
	}
	return n
}

// load reads the pieces of a chunk.
func (w *walk) load(ctx context.Context, chunk int) ([][]byte, error) {
	pieces := make([][]byte, w.contents.Chunks[chunk].Pieces)
	for i := range pieces {
		name := infra.PieceName(w.plan.Name, chunk, i)
		var piece v1alpha1.PlanChanges
		err := read(ctx, w.api, v1alpha1.PlanChangesResource, w.plan.Namespace, name, &piece)
		switch {
		case apierrors.IsNotFound(err):
			// They go with their plan.
			return nil, apierrors.NewResourceExpired(fmt.Sprintf("the changes of plan %q are deleted: make another plan", w.plan.Name))
		case err != nil:
			return nil, fmt.Errorf("read a piece of plan %q: %w", w.plan.Name, err)
		}
		pieces[i] = piece.Spec.Content
	}
	return pieces, nil
}

// errGone is of somebody who does not read on.
var errGone = errors.New("nobody reads it any more")
