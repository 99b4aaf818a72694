package fakeapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is a stored object. Nothing changes it: a write stores another.
type object struct {
	*unstructured.Unstructured
	once, metadataOnce         sync.Once
	encoding, metadataEncoding json.RawMessage
}

// encode returns the JSON of an object in the form that a request wants. A stored object is encoded
// once for all requests and watches.
func (o *object) encode(c *call) json.RawMessage {
	switch {
	case c.metadata:
		o.metadataOnce.Do(func() { o.metadataEncoding = encode(partial(o.Unstructured)) })
		return o.metadataEncoding
	case o.GroupVersionKind() != c.kind.GVK():
		return encode(inVersion(o.Unstructured, c.kind))
	default:
		return o.json()
	}
}

// json returns the JSON of a stored object.
func (o *object) json() json.RawMessage {
	o.once.Do(func() { o.encoding = encode(o.Object) })
	return o.encoding
}

// encode returns the JSON of a value that has one.
func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %v: %v", v, err)) // net/http reports it
	}
	return raw
}

// copied returns a copy of an object whose metadata, spec and status can be set. Values within them
// belong to the object.
func copied(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := maps.Clone(u.Object)
	if metadata, ok := out["metadata"].(map[string]any); ok {
		out["metadata"] = maps.Clone(metadata)
	}
	return &unstructured.Unstructured{Object: out}
}

// collection has the objects of one resource, and their changes for watches.
type collection struct {
	objects  map[types.NamespacedName]*object
	events   []event
	lost     int64         // version of the last event that was compacted
	changed  chan struct{} // closed and replaced at each event
	watching int
	held     bool // watches get no events for now
}

// collection returns the collection of a resource, which may be empty.
func (s *Server) collection(resource schema.GroupResource) *collection {
	c := s.collections[resource]
	if c == nil {
		c = &collection{objects: map[types.NamespacedName]*object{}, changed: make(chan struct{})}
		s.collections[resource] = c
	}
	return c
}

// stored returns the object under a key, or nil.
func (s *Server) stored(k key) *object { return s.collection(k.resource).objects[k.name] }

// identify sets the metadata that a server gives to each new object. What a test has set stays:
// its UIDs have names, and its creation times an order.
func (s *Server) identify(u *unstructured.Unstructured) {
	s.uids++
	if u.GetUID() == "" {
		u.SetUID(types.UID(fmt.Sprintf("uid-%d", s.uids)))
	}
	if u.GetGeneration() == 0 {
		u.SetGeneration(1)
	}
	if at := u.GetCreationTimestamp(); at.IsZero() {
		u.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
}

// inherit keeps in next the metadata of the stored object that no client may change, and raises
// the generation if anything but metadata and status is new.
func (s *Server) inherit(live, next *unstructured.Unstructured) {
	next.SetUID(live.GetUID())
	next.SetCreationTimestamp(live.GetCreationTimestamp())
	next.SetGeneration(live.GetGeneration())
	if at := live.GetDeletionTimestamp(); at != nil {
		next.SetDeletionTimestamp(at)
	}
	if !reflect.DeepEqual(desired(live), desired(next)) {
		next.SetGeneration(live.GetGeneration() + 1)
	}
}

// desired is what of an object its generation counts.
func desired(u *unstructured.Unstructured) map[string]any {
	out := map[string]any{}
	for field, value := range u.Object {
		if field != "metadata" && field != "status" {
			out[field] = value
		}
	}
	return out
}

// same reports whether an update would change nothing, managed fields' times apart.
func same(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(compared(a.Object), compared(b.Object))
}

// compared returns the fields of an object without its resource version and the times in its
// managed fields.
func compared(fields map[string]any) map[string]any {
	out := maps.Clone(fields)
	metadata, _ := fields["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	delete(metadata, "resourceVersion")
	managers, _ := metadata["managedFields"].([]any)
	delete(metadata, "managedFields")
	out["metadata"] = metadata
	for i, m := range managers {
		if entry, ok := m.(map[string]any); ok {
			entry = maps.Clone(entry)
			delete(entry, "time")
			out[fmt.Sprint("managedFields ", i)] = entry
		}
	}
	return out
}

// store keeps an object under the next resource version, and removes it instead if it was only
// waiting for its last finalizer.
func (s *Server) store(k key, u *unstructured.Unstructured) *object {
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 {
		return s.remove(k, u)
	}
	if len(s.atOnce) > 0 {
		u = u.DeepCopy() // it may share values with the object before it
	}
	for _, edit := range s.atOnce {
		edit(u)
	}
	before := s.stored(k)
	kind := "MODIFIED"
	if before == nil {
		kind = "ADDED"
	}
	o := s.announce(k, kind, u, before)
	s.collection(k.resource).objects[k.name] = o
	return o
}

// finalize begins the deletion of an object, and ends it if nothing holds it.
func (s *Server) finalize(k key) *object {
	live := s.stored(k)
	u := copied(live.Unstructured)
	if len(u.GetFinalizers()) == 0 {
		return s.remove(k, u)
	}
	if u.GetDeletionTimestamp() != nil {
		return live
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	u.SetDeletionTimestamp(&now)
	u.SetGeneration(u.GetGeneration() + 1) // as an API server counts it
	return s.store(k, u)
}

// remove deletes an object and, like the garbage collector, its dependents.
func (s *Server) remove(k key, u *unstructured.Unstructured) *object {
	before := s.stored(k)
	delete(s.collection(k.resource).objects, k.name)
	o := s.announce(k, "DELETED", u, before)
	owned := func(r metav1.OwnerReference) bool { return r.UID == u.GetUID() }
	for _, other := range s.keysWhere(func(u *object) bool { return slices.ContainsFunc(u.GetOwnerReferences(), owned) }) {
		candidate := s.stored(other)
		if candidate == nil {
			continue
		}
		owners := candidate.GetOwnerReferences()
		if len(owners) == 1 {
			s.finalize(other)
			continue
		}
		// It is held by its other owners.
		held := copied(candidate.Unstructured)
		held.SetOwnerReferences(slices.DeleteFunc(owners, owned))
		s.store(other, held)
	}
	return o
}

// announce gives an object the next resource version and tells the watches of its resource.
func (s *Server) announce(k key, kind string, u *unstructured.Unstructured, before *object) *object {
	s.version++
	u.SetResourceVersion(strconv.FormatInt(s.version, 10))
	o := &object{Unstructured: u}
	c := s.collection(k.resource)
	c.events = append(c.events, event{s.version, kind, o, before})
	c.wake()
	return o
}

// wake has the watches look for events.
func (c *collection) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// keysWhere returns the keys of all objects that a condition holds for, in order.
func (s *Server) keysWhere(holds func(*object) bool) []key {
	var out []key
	for resource, c := range s.collections {
		for name, o := range c.objects {
			if holds(o) {
				out = append(out, key{resource, name})
			}
		}
	}
	slices.SortFunc(out, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.resource.String(), b.resource.String()), compareNames(a.name, b.name))
	})
	return out
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// sorted lists the objects of a resource in a namespace, or in all if that is empty.
func (s *Server) sorted(resource schema.GroupResource, namespace string) []*object {
	c := s.collection(resource)
	var names []types.NamespacedName
	for name := range c.objects {
		if namespace == "" || name.Namespace == namespace {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, compareNames)
	out := make([]*object, len(names))
	for i, name := range names {
		out[i] = c.objects[name]
	}
	return out
}
