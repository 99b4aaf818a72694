package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

const (
	// markValidity is how long a server relies on a mark that it has written. It must be shorter than settleTime by the time that a
	// request takes between its mark and its end; see workspaces.slowRequest.
	markValidity = 5 * time.Second
	// markTimeout bounds the writing of a mark.
	markTimeout = 10 * time.Second
)

// Work is what a workspace can be due for. Each has marks of its own in the status.
type Work string

const (
	// Controllers of Kubernetes must run.
	Controllers Work = "due"
	// Placement by the parent: objects or statuses must be copied.
	Placement Work = "placementDue"
)

// of returns the mark of the workspace with that path, in the Workspace of the root on the path.
func (work Work) of(root *v1alpha1.Workspace, path string) string {
	own, below := root.Status.Due, root.Status.DueBelow
	if work == Placement {
		own, below = root.Status.PlacementDue, root.Status.PlacementDueBelow
	}
	if path == root.Name {
		return own
	}
	return below[path]
}

// paths returns the paths of the workspaces that have a mark in a Workspace of the root.
func (work Work) paths(root *v1alpha1.Workspace) (all []string) {
	below := root.Status.DueBelow
	if work == Placement {
		below = root.Status.PlacementDueBelow
	}
	for path := range below {
		all = append(all, path)
	}
	return append(all, root.Name)
}

// patch returns the patch of the root's status that sets a mark; nil removes it.
func (work Work) patch(path string, token any) map[string]any {
	if _, nested := rootOf(path); nested {
		return map[string]any{string(work) + "Below": map[string]any{path: token}}
	}
	return map[string]any{string(work): token}
}

// Marker marks workspaces as due: work must be done in them. A server has one.
//
// A mark for Controllers is status.due of the Workspace; for a workspace in another one, it is in status.dueBelow of the root's Workspace on its path, because
// nothing watches the other ones. A server relies only on marks that it wrote itself, and only for markValidity from the moment
// before it wrote them. The elected server saw such a mark later than that moment. It removes a mark only if it has seen it for
// settleTime and then finds nothing to finish. So what a request did under a mark is seen before the mark is removed, and no
// clocks are compared.
type Marker struct {
	client dynamic.Interface
	clock  clock.PassiveClock
	server string

	mu    sync.Mutex
	marks map[markKey]*mark
}

// markKey has the Key of the workspace: one that has moved is marked at its new path.
type markKey struct {
	work Work
	key  string
}

// mark is one that this server has written, or is writing.
type mark struct {
	begun   time.Time
	written chan struct{} // closed when err is set
	err     error
}

// NewMarker returns the marker of the server with that name. The client is that of the API that has the Workspaces.
func NewMarker(client dynamic.Interface, clock clock.PassiveClock, server string) *Marker {
	return &Marker{client: client, clock: clock, server: server, marks: map[markKey]*mark{}}
}

// Mark marks the workspace with that path and UID as due for some work, and returns when the mark is durable. It may be repeated.
func (m *Marker) Mark(ctx context.Context, work Work, path, uid string) error {
	k := m.current(ctx, work, path, uid)
	select {
	case <-k.written:
		return k.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Note marks it too, and does not wait until the mark is durable: for changes that are found later if it is lost.
func (m *Marker) Note(ctx context.Context, work Work, path, uid string) {
	m.current(ctx, work, path, uid)
}

// current returns the mark that requests may rely on now. It begins to write one if none is valid.
func (m *Marker) current(ctx context.Context, work Work, path, uid string) *mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for key, k := range m.marks {
		if now.Sub(k.begun) >= markValidity {
			delete(m.marks, key)
		}
	}
	key := markKey{work, Key(uid, path)}
	k := m.marks[key]
	if k == nil {
		k = &mark{begun: now, written: make(chan struct{})}
		m.marks[key] = k
		go m.write(context.WithoutCancel(ctx), work, path, uid, k)
	}
	return k
}

// write writes a mark. Its context is not that of a request: others wait for it too.
func (m *Marker) write(ctx context.Context, work Work, path, uid string, k *mark) {
	defer close(k.written)
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	token := k.begun.UTC().Format(time.RFC3339Nano) + " " + m.server
	root, nested := rootOf(path)
	preconditions := map[string]any{"uid": uid}
	if nested {
		preconditions = map[string]any{} // the UID is not that of the root's Workspace; too many marks do no harm
	}
	if k.err = patchStatus(ctx, m.client, root, preconditions, work.patch(path, token)); k.err == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if key := (markKey{work, Key(uid, path)}); m.marks[key] == k {
		delete(m.marks, key) // the next request tries again
	}
}

// rootOf returns the name of the workspace of the root on a path, and whether the path leads further.
func rootOf(path string) (name string, nested bool) {
	name, _, nested = strings.Cut(path, ":")
	return name, nested
}

// patchStatus merges a patch into the status of a workspace, if the preconditions in metadata hold.
func patchStatus(ctx context.Context, client dynamic.Interface, name string, metadata map[string]any, status any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "status": status})
	if err != nil {
		return err
	}
	_, err = client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if err != nil {
		return fmt.Errorf("write the status of workspace %s: %w", name, err)
	}
	return nil
}
