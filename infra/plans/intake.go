package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/reference"
)

// written is what is read of an object as it is stored.
type written struct {
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

// readObject gives the object that is stored, without the type that is behind its kind.
func readObject(group, plural string, text []byte, revision int64) (*infra.Object, bool, error) {
	var w written
	if err := json.Unmarshal(text, &w); err != nil {
		return nil, false, fmt.Errorf("it is not an object in JSON: %w", err)
	}
	if len(w.Spec) == 0 || string(w.Spec) == "null" {
		w.Spec = json.RawMessage("{}")
	}
	m := &w.Metadata
	o := &infra.Object{
		Ref:   reference.Ref{Namespace: m.Namespace, Name: m.Name},
		Group: group, Kind: w.Kind, Plural: plural,
		UID: m.UID, ResourceVersion: strconv.FormatInt(revision, 10), Generation: m.Generation, Labels: m.Labels,
		Deleting: m.DeletionTimestamp != nil, Held: slices.Contains(m.Finalizers, infra.Finalizer), Free: len(m.Finalizers) == 0,
		ImportID: m.Annotations[infra.ImportAnnotation], Forget: m.Annotations[infra.DeletionAnnotation] == infra.DeletionForget,
		Spec: w.Spec,
	}
	drifted := false
	for _, c := range w.Status.Conditions {
		drifted = drifted || c.Type == infra.ConditionDrifted && c.Status == string(metav1.ConditionTrue)
	}
	return o, drifted, nil
}

// keyParts are the plural, namespace and name that a key ends with.
func keyParts(prefix, key string) (plural, namespace, name string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, prefix), "/")
	if len(parts) != 3 {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// plain decodes a value.
func (f *Feed) plain(ctx context.Context, resource schema.GroupResource, key string, value []byte) ([]byte, error) {
	if f.cfg.Decode == nil {
		return value, nil
	}
	return f.cfg.Decode(ctx, resource, key, value)
}

// objects takes in those of one group.
type objects struct {
	feed  *Feed
	group string
	known map[string]*known

	mu    sync.Mutex
	drift map[reference.Ref]bool
}

// known is an object that was taken in. Its type is empty as long as nobody serves it: then the World does not
// have it.
type known struct {
	revision int64
	object   *infra.Object
	drifted  bool
}

func (o *objects) prefix() string { return o.feed.cfg.Prefix + "/" + o.group + "/" }

func (o *objects) put(ctx context.Context, key string, value []byte, revision int64) error {
	plural, _, _, ok := keyParts(o.prefix(), key)
	if !ok {
		return nil // nothing that the API server would store there
	}
	text, err := o.feed.plain(ctx, schema.GroupResource{Group: o.group, Resource: plural}, key, value)
	if err != nil {
		return err
	}
	object, drifted, err := readObject(o.group, plural, text, revision)
	if err != nil {
		return err
	}
	o.name(object)
	was := o.known[key]
	if o.known == nil {
		o.known = map[string]*known{}
	}
	o.known[key] = &known{revision: revision, object: object, drifted: drifted}
	if was != nil && was.object.Ref.Type != "" && was.object.Ref != object.Ref {
		o.feed.cfg.World.RemoveObject(was.object.Ref)
	}
	if object.Ref.Type != "" {
		o.feed.cfg.World.SetObject(object)
		o.setDrifted(object.Ref, drifted)
	}
	if was == nil || was.object.UID != object.UID || was.object.Generation != object.Generation || was.object.Deleting != object.Deleting {
		o.feed.cfg.Written(object.Ref.Namespace, false)
	}
	return nil
}

// name says in a new object which type is behind its kind, if one is.
func (o *objects) name(object *infra.Object) {
	served, ok := o.feed.cfg.Types.ByPlural(o.group, object.Plural)
	if !ok {
		return
	}
	object.Ref.Type = served.Type
	if served.Data {
		object.Ref.Kind = reference.Data
	}
}

func (o *objects) gone(key string, _ int64) {
	was := o.known[key]
	if was == nil {
		return
	}
	delete(o.known, key)
	if was.object.Ref.Type != "" {
		o.feed.cfg.World.RemoveObject(was.object.Ref)
		o.setDrifted(was.object.Ref, false)
	}
	o.feed.cfg.Written(was.object.Ref.Namespace, false)
}

func (o *objects) revision(key string) int64 {
	if was := o.known[key]; was != nil {
		return was.revision
	}
	return 0
}

func (o *objects) keys() []string {
	out := make([]string, 0, len(o.known))
	for key := range o.known {
		out = append(out, key)
	}
	return out
}

// rename removes first and sets then: one type may have got the name of another. What nobody serves any more
// stays what it was, for it is still written.
func (o *objects) rename() {
	var renamed []*known
	for _, k := range o.known {
		next := *k.object
		next.Ref.Type, next.Ref.Kind = "", reference.Resource
		o.name(&next)
		if next.Ref.Type == "" || next.Ref == k.object.Ref {
			continue
		}
		if k.object.Ref.Type != "" {
			o.feed.cfg.World.RemoveObject(k.object.Ref)
			o.setDrifted(k.object.Ref, false)
		}
		k.object = &next
		renamed = append(renamed, k)
	}
	for _, k := range renamed {
		o.feed.cfg.World.SetObject(k.object)
		o.setDrifted(k.object.Ref, k.drifted)
	}
}

func (o *objects) setDrifted(ref reference.Ref, drifted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !drifted:
		delete(o.drift, ref)
	case o.drift == nil:
		o.drift = map[reference.Ref]bool{ref: true}
	default:
		o.drift[ref] = true
	}
}

func (o *objects) drifted(ref reference.Ref) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.drift[ref]
}

// states takes in all ResourceStates.
type states struct {
	feed  *Feed
	known map[string]*infra.State

	mu       sync.Mutex
	byGroups map[string]int
}

func (s *states) put(ctx context.Context, key string, value []byte, revision int64) error {
	text, err := s.feed.plain(ctx, v1alpha1.ResourceStateResource.GroupResource(), key, value)
	if err != nil {
		return err
	}
	var stored v1alpha1.ResourceState
	if err := json.Unmarshal(text, &stored); err != nil {
		return fmt.Errorf("it is not a ResourceState in JSON: %w", err)
	}
	state := stateOf(&stored)
	state.ResourceVersion = strconv.FormatInt(revision, 10)
	if state.Ref.Type == "" || state.Ref.Name == "" {
		return fmt.Errorf("the ResourceState does not say what it is of: spec.type and spec.object.name are needed")
	}
	was := s.known[key]
	if s.known == nil {
		s.known = map[string]*infra.State{}
	}
	s.known[key] = state
	if was != nil && was.Ref != state.Ref {
		s.feed.cfg.World.RemoveState(was.Ref)
	}
	s.count(was, -1)
	s.count(state, 1)
	// Who carries something out tells the World at once what it stored: the same may come later by this way,
	// after more was stored.
	if now := s.feed.cfg.World.State(state.Ref); now == nil || revisionOf(now.ResourceVersion) < revision {
		s.feed.cfg.World.SetState(state)
	}
	s.feed.cfg.Written(state.Ref.Namespace, true)
	return nil
}

// stateOf is a ResourceState as the engine has it.
func stateOf(stored *v1alpha1.ResourceState) *infra.State {
	return &infra.State{
		Ref: reference.Ref{Type: stored.Spec.Type, Namespace: stored.Namespace, Name: stored.Spec.Object.Name},
		UID: string(stored.UID), ResourceVersion: stored.ResourceVersion, Spec: stored.Spec,
	}
}

func (s *states) gone(key string, revision int64) {
	was := s.known[key]
	if was == nil {
		return
	}
	delete(s.known, key)
	s.count(was, -1)
	if now := s.feed.cfg.World.State(was.Ref); now == nil || revisionOf(now.ResourceVersion) <= revision {
		s.feed.cfg.World.RemoveState(was.Ref)
	}
	s.feed.cfg.Written(was.Ref.Namespace, true)
}

func (s *states) revision(key string) int64 {
	if was := s.known[key]; was != nil {
		return revisionOf(was.ResourceVersion)
	}
	return 0
}

func (s *states) keys() []string {
	out := make([]string, 0, len(s.known))
	for key := range s.known {
		out = append(out, key)
	}
	return out
}

func (s *states) rename() {}

func (s *states) count(state *infra.State, by int) {
	if state == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byGroups == nil {
		s.byGroups = map[string]int{}
	}
	if s.byGroups[state.Spec.Object.Group] += by; s.byGroups[state.Spec.Object.Group] <= 0 {
		delete(s.byGroups, state.Spec.Object.Group)
	}
}

// groups are those of the objects that there are states of.
func (s *states) groups() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.byGroups))
	for group := range s.byGroups {
		// What does not end so is no provider's, whatever somebody wrote into a state.
		if strings.HasSuffix(group, "."+v1alpha1.ProvidersDomain) {
			out = append(out, group)
		}
	}
	return out
}
