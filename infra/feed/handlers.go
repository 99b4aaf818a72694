package feed

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

// storedObject contains the fields that are read of a stored object.
type storedObject struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		Generation        int64             `json:"generation"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		Finalizers        []string          `json:"finalizers"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec   json.RawMessage `json:"spec"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// DecodeObject decodes the JSON of an object, without the provider's type behind its kind. It
// also reports whether the object's condition Drifted is true.
func DecodeObject(group, plural string, text []byte, revision int64) (object *infra.Object, drifted bool, err error) {
	var w storedObject
	if err := json.Unmarshal(text, &w); err != nil {
		return nil, false, fmt.Errorf("decode the object: %w", err)
	}
	if len(w.Spec) == 0 || string(w.Spec) == "null" {
		w.Spec = json.RawMessage("{}")
	}
	m := &w.Metadata
	// Strings that are unique to the object share one allocation, and common ones are interned. There are a
	// hundred thousand objects, and the garbage collector visits each pointer.
	own := m.Name + m.UID + strconv.FormatInt(revision, 10)
	name, uid := len(m.Name), len(m.Name)+len(m.UID)
	o := &infra.Object{
		Ref:   expr.Ref{Namespace: unique.Make(m.Namespace).Value(), Name: own[:name]},
		Group: group, Kind: unique.Make(w.Kind).Value(), Plural: plural,
		UID: own[name:uid], ResourceVersion: own[uid:], Generation: m.Generation, Labels: m.Labels,
		Deleting: m.DeletionTimestamp != nil, HasFinalizer: slices.Contains(m.Finalizers, infra.Finalizer), NoFinalizers: len(m.Finalizers) == 0,
		ImportID: m.Annotations[infra.ImportAnnotation], Forget: m.Annotations[infra.DeletionAnnotation] == infra.DeletionForget,
		MovedTo: m.Annotations[infra.MovedToAnnotation], Spec: w.Spec,
		Author: unique.Make(m.Annotations[infra.AuthorAnnotation]).Value(), ChangedBy: unique.Make(m.Annotations[infra.ChangedByAnnotation]).Value(),
	}
	for _, c := range w.Status.Conditions {
		drifted = drifted || c.Type == infra.ConditionDrifted && c.Status == string(metav1.ConditionTrue)
	}
	return o, drifted, nil
}

// keyParts returns the plural, namespace and name that a key ends with.
func keyParts(prefix, key string) (plural, namespace, name string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, prefix), "/")
	if len(parts) != 3 {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// decode returns the JSON of a stored value.
func (f *Feed) decode(ctx context.Context, resource schema.GroupResource, key string, value []byte) ([]byte, error) {
	if f.cfg.Decode == nil {
		return value, nil
	}
	return f.cfg.Decode(ctx, resource, key, value)
}

// objectHandler stores the objects of one group.
type objectHandler struct {
	feed  *Feed
	group string
	known map[string]*trackedObject

	mu    sync.Mutex
	drift map[expr.Ref]bool
}

// trackedObject is an object that was stored in the inventory.
type trackedObject struct {
	revision int64
	// ref is the object's key in the inventory. Its type is empty while no provider serves the kind: then
	// unserved has the object and the inventory does not. Of a hundred thousand objects there must not be two
	// copies each.
	ref        expr.Ref
	unserved   *infra.Object
	uid        string
	generation int64
	deleting   bool
	drifted    bool
}

func trackObject(object *infra.Object, revision int64, drifted bool) *trackedObject {
	k := &trackedObject{revision: revision, ref: object.Ref, uid: object.UID, generation: object.Generation, deleting: object.Deleting, drifted: drifted}
	if object.Ref.Type == "" {
		k.unserved = object
	}
	return k
}

// object returns the object, or nil if another writer removed it from the inventory.
func (k *trackedObject) object(inv Inventory) *infra.Object {
	if k.unserved != nil {
		return k.unserved
	}
	return inv.Object(k.ref)
}

func (h *objectHandler) prefix() string { return h.feed.cfg.Prefix + "/" + h.group + "/" }

func (h *objectHandler) put(ctx context.Context, key string, value []byte, revision int64) error {
	plural, _, _, ok := keyParts(h.prefix(), key)
	if !ok {
		return nil // not a key of the API server
	}
	text, err := h.feed.decode(ctx, schema.GroupResource{Group: h.group, Resource: plural}, key, value)
	if err != nil {
		return err
	}
	object, drifted, err := DecodeObject(h.group, plural, text, revision)
	if err != nil {
		return err
	}
	h.setType(object)
	prior := h.known[key]
	if h.known == nil {
		h.known = map[string]*trackedObject{}
	}
	h.known[key] = trackObject(object, revision, drifted)
	if prior != nil && prior.ref == object.Ref {
		h.known[key].ref = prior.ref // share the strings
	}
	if prior != nil && prior.ref.Type != "" && prior.ref != object.Ref {
		h.feed.cfg.Inventory.RemoveObject(prior.ref)
	}
	if object.Ref.Type != "" {
		h.feed.cfg.Inventory.SetObject(object)
		h.setDrifted(object.Ref, drifted)
	}
	if prior == nil || prior.uid != object.UID || prior.generation != object.Generation || prior.deleting != object.Deleting {
		h.feed.cfg.OnWrite(object.Ref.Namespace, false)
	}
	return nil
}

// setType sets the type behind a new object's kind, if a provider serves it.
func (h *objectHandler) setType(object *infra.Object) {
	served, ok := h.feed.cfg.Types.ByPlural(h.group, object.Plural)
	if !ok {
		return
	}
	object.Ref.Type = served.Type
	if served.Data {
		object.Ref.Kind = expr.Data
	}
}

func (h *objectHandler) remove(key string, _ int64) {
	prior := h.known[key]
	if prior == nil {
		return
	}
	delete(h.known, key)
	if prior.ref.Type != "" {
		h.feed.cfg.Inventory.RemoveObject(prior.ref)
		h.setDrifted(prior.ref, false)
	}
	h.feed.cfg.OnWrite(prior.ref.Namespace, false)
}

func (h *objectHandler) revision(key string) int64 {
	if prior := h.known[key]; prior != nil {
		return prior.revision
	}
	return 0
}

func (h *objectHandler) keys() []string {
	out := make([]string, 0, len(h.known))
	for key := range h.known {
		out = append(out, key)
	}
	return out
}

// retype removes before it sets, because a type may have taken the name of another. Objects whose type is no
// longer served keep it, because they still exist.
func (h *objectHandler) retype() {
	type retyping struct {
		known  *trackedObject
		object *infra.Object
	}
	var retyped []retyping
	for _, k := range h.known {
		object := k.object(h.feed.cfg.Inventory)
		if object == nil {
			continue
		}
		next := *object
		next.Ref.Type, next.Ref.Kind = "", expr.Resource
		h.setType(&next)
		if next.Ref.Type == "" || next.Ref == k.ref {
			continue
		}
		if k.ref.Type != "" {
			h.feed.cfg.Inventory.RemoveObject(k.ref)
			h.setDrifted(k.ref, false)
		}
		retyped = append(retyped, retyping{k, &next})
	}
	for _, r := range retyped {
		*r.known = *trackObject(r.object, r.known.revision, r.known.drifted)
		h.feed.cfg.Inventory.SetObject(r.object)
		h.setDrifted(r.object.Ref, r.known.drifted)
	}
}

func (h *objectHandler) setDrifted(ref expr.Ref, drifted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !drifted:
		delete(h.drift, ref)
	case h.drift == nil:
		h.drift = map[expr.Ref]bool{ref: true}
	default:
		h.drift[ref] = true
	}
}

func (h *objectHandler) drifted(ref expr.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.drift[ref]
}

func (h *objectHandler) driftedCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.drift)
}

// stateHandler stores ResourceStates.
type stateHandler struct {
	feed  *Feed
	known map[string]trackedState

	mu       sync.Mutex
	byGroups map[string]int
}

// trackedState is a state that was stored in the inventory, which has the rest of it.
type trackedState struct {
	revision int64
	ref      expr.Ref
	group    string
}

func (h *stateHandler) put(ctx context.Context, key string, value []byte, revision int64) error {
	text, err := h.feed.decode(ctx, v1alpha1.ResourceStateResource.GroupResource(), key, value)
	if err != nil {
		return err
	}
	var stored v1alpha1.ResourceState
	if err := json.Unmarshal(text, &stored); err != nil {
		return fmt.Errorf("decode the ResourceState: %w", err)
	}
	state := stateOf(&stored)
	state.ResourceVersion = strconv.FormatInt(revision, 10)
	if state.Ref.Type == "" || state.Ref.Name == "" {
		return fmt.Errorf("invalid ResourceState: spec.type and spec.object.name are required")
	}
	prior, there := h.known[key]
	if h.known == nil {
		h.known = map[string]trackedState{}
	}
	now := trackedState{revision: revision, ref: state.Ref, group: unique.Make(state.Spec.Object.Group).Value()}
	if there && prior.ref == now.ref {
		now.ref = prior.ref // share the strings
	}
	h.known[key] = now
	if there && prior.ref != now.ref {
		h.feed.cfg.Inventory.RemoveState(prior.ref)
	}
	if there {
		h.count(prior.group, -1)
	}
	h.count(now.group, 1)
	// An apply updates the inventory as soon as it stores a state. The same state may arrive here later,
	// after a newer one was stored.
	if held := h.feed.cfg.Inventory.State(state.Ref); held == nil || revisionOf(held.ResourceVersion) < revision {
		h.feed.cfg.Inventory.SetState(state)
	}
	h.feed.cfg.OnWrite(state.Ref.Namespace, true)
	return nil
}

// stateOf converts a ResourceState to the engine's type.
func stateOf(stored *v1alpha1.ResourceState) *infra.State {
	return &infra.State{
		Ref: expr.Ref{Type: stored.Spec.Type, Namespace: stored.Namespace, Name: stored.Spec.Object.Name},
		UID: string(stored.UID), ResourceVersion: stored.ResourceVersion, Spec: stored.Spec,
	}
}

func (h *stateHandler) remove(key string, revision int64) {
	prior, there := h.known[key]
	if !there {
		return
	}
	delete(h.known, key)
	h.count(prior.group, -1)
	if now := h.feed.cfg.Inventory.State(prior.ref); now == nil || revisionOf(now.ResourceVersion) <= revision {
		h.feed.cfg.Inventory.RemoveState(prior.ref)
	}
	h.feed.cfg.OnWrite(prior.ref.Namespace, true)
}

func (h *stateHandler) revision(key string) int64 { return h.known[key].revision }

func (h *stateHandler) keys() []string {
	out := make([]string, 0, len(h.known))
	for key := range h.known {
		out = append(out, key)
	}
	return out
}

func (h *stateHandler) retype() {}

func (h *stateHandler) count(group string, by int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byGroups == nil {
		h.byGroups = map[string]int{}
	}
	if h.byGroups[group] += by; h.byGroups[group] <= 0 {
		delete(h.byGroups, group)
	}
}

// groups returns the groups of objects that have states.
func (h *stateHandler) groups() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]string, 0, len(h.byGroups))
	for group := range h.byGroups {
		// Groups without this suffix belong to no provider, whatever a state says.
		if strings.HasSuffix(group, "."+v1alpha1.ProvidersDomain) {
			out = append(out, group)
		}
	}
	return out
}
