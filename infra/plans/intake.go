package plans

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
	// What no other object has is one text, and what many have is there once: there are a hundred thousand, and the garbage
	// collector looks at each.
	own := m.Name + m.UID + strconv.FormatInt(revision, 10)
	name, uid := len(m.Name), len(m.Name)+len(m.UID)
	o := &infra.Object{
		Ref:   reference.Ref{Namespace: unique.Make(m.Namespace).Value(), Name: own[:name]},
		Group: group, Kind: unique.Make(w.Kind).Value(), Plural: plural,
		UID: own[name:uid], ResourceVersion: own[uid:], Generation: m.Generation, Labels: m.Labels,
		Deleting: m.DeletionTimestamp != nil, HasFinalizer: slices.Contains(m.Finalizers, infra.Finalizer), NoFinalizers: len(m.Finalizers) == 0,
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

// known is an object that was taken in.
type known struct {
	revision int64
	// ref is under what the World has it. Its type is empty as long as nobody serves it: then the World does not have it,
	// and unserved does. Of a hundred thousand there shall not be two copies of each.
	ref        reference.Ref
	unserved   *infra.Object
	uid        string
	generation int64
	deleting   bool
	drifted    bool
}

func knownOf(object *infra.Object, revision int64, drifted bool) *known {
	k := &known{revision: revision, ref: object.Ref, uid: object.UID, generation: object.Generation, deleting: object.Deleting, drifted: drifted}
	if object.Ref.Type == "" {
		k.unserved = object
	}
	return k
}

// object is all that is known of it; nil if the World was told otherwise by somebody else.
func (k *known) object(world world) *infra.Object {
	if k.unserved != nil {
		return k.unserved
	}
	return world.Object(k.ref)
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
	o.known[key] = knownOf(object, revision, drifted)
	if was != nil && was.ref == object.Ref {
		o.known[key].ref = was.ref // the texts are there once
	}
	if was != nil && was.ref.Type != "" && was.ref != object.Ref {
		o.feed.cfg.World.RemoveObject(was.ref)
	}
	if object.Ref.Type != "" {
		o.feed.cfg.World.SetObject(object)
		o.setDrifted(object.Ref, drifted)
	}
	if was == nil || was.uid != object.UID || was.generation != object.Generation || was.deleting != object.Deleting {
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
	if was.ref.Type != "" {
		o.feed.cfg.World.RemoveObject(was.ref)
		o.setDrifted(was.ref, false)
	}
	o.feed.cfg.Written(was.ref.Namespace, false)
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
	type renaming struct {
		known  *known
		object *infra.Object
	}
	var renamed []renaming
	for _, k := range o.known {
		object := k.object(o.feed.cfg.World)
		if object == nil {
			continue
		}
		next := *object
		next.Ref.Type, next.Ref.Kind = "", reference.Resource
		o.name(&next)
		if next.Ref.Type == "" || next.Ref == k.ref {
			continue
		}
		if k.ref.Type != "" {
			o.feed.cfg.World.RemoveObject(k.ref)
			o.setDrifted(k.ref, false)
		}
		renamed = append(renamed, renaming{k, &next})
	}
	for _, r := range renamed {
		*r.known = *knownOf(r.object, r.known.revision, r.known.drifted)
		o.feed.cfg.World.SetObject(r.object)
		o.setDrifted(r.object.Ref, r.known.drifted)
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
	known map[string]knownState

	mu       sync.Mutex
	byGroups map[string]int
}

// knownState is a state that was taken in. The World has the rest of it.
type knownState struct {
	revision int64
	ref      reference.Ref
	group    string
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
	was, there := s.known[key]
	if s.known == nil {
		s.known = map[string]knownState{}
	}
	now := knownState{revision: revision, ref: state.Ref, group: unique.Make(state.Spec.Object.Group).Value()}
	if there && was.ref == now.ref {
		now.ref = was.ref // the texts are there once
	}
	s.known[key] = now
	if there && was.ref != now.ref {
		s.feed.cfg.World.RemoveState(was.ref)
	}
	if there {
		s.count(was.group, -1)
	}
	s.count(now.group, 1)
	// Who carries something out tells the World at once what it stored: the same may come later by this way,
	// after more was stored.
	if in := s.feed.cfg.World.State(state.Ref); in == nil || revisionOf(in.ResourceVersion) < revision {
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
	was, there := s.known[key]
	if !there {
		return
	}
	delete(s.known, key)
	s.count(was.group, -1)
	if now := s.feed.cfg.World.State(was.ref); now == nil || revisionOf(now.ResourceVersion) <= revision {
		s.feed.cfg.World.RemoveState(was.ref)
	}
	s.feed.cfg.Written(was.ref.Namespace, true)
}

func (s *states) revision(key string) int64 { return s.known[key].revision }

func (s *states) keys() []string {
	out := make([]string, 0, len(s.known))
	for key := range s.known {
		out = append(out, key)
	}
	return out
}

func (s *states) rename() {}

func (s *states) count(group string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byGroups == nil {
		s.byGroups = map[string]int{}
	}
	if s.byGroups[group] += by; s.byGroups[group] <= 0 {
		delete(s.byGroups, group)
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
