package fakeapi

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

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
	strip := func(u *unstructured.Unstructured) *unstructured.Unstructured {
		u = u.DeepCopy()
		fields := u.GetManagedFields()
		for i := range fields {
			fields[i].Time = nil
		}
		u.SetManagedFields(fields)
		u.SetResourceVersion("")
		return u
	}
	return reflect.DeepEqual(strip(a).Object, strip(b).Object)
}

// store keeps an object under the next resource version, and removes it instead if it was only
// waiting for its last finalizer.
func (s *Server) store(k key, u *unstructured.Unstructured) *unstructured.Unstructured {
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 {
		return s.remove(k, u)
	}
	for _, edit := range s.atOnce {
		edit(u)
	}
	before := s.objects[k]
	s.version++
	u.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.objects[k] = u
	kind := "MODIFIED"
	if before == nil {
		kind = "ADDED"
	}
	s.announce(event{s.version, kind, k, u, before})
	return u
}

// finalize begins the deletion of an object, and ends it if nothing holds it.
func (s *Server) finalize(k key) *unstructured.Unstructured {
	u := s.objects[k].DeepCopy()
	if len(u.GetFinalizers()) == 0 {
		return s.remove(k, u)
	}
	if u.GetDeletionTimestamp() != nil {
		return u
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	u.SetDeletionTimestamp(&now)
	u.SetGeneration(u.GetGeneration() + 1) // as an API server counts it
	return s.store(k, u)
}

// remove deletes an object and, like the garbage collector, its dependents.
func (s *Server) remove(k key, u *unstructured.Unstructured) *unstructured.Unstructured {
	before := s.objects[k]
	delete(s.objects, k)
	s.version++
	u.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.announce(event{s.version, "DELETED", k, u, before})
	for _, other := range s.keys() {
		candidate := s.objects[other]
		if candidate == nil {
			continue
		}
		owned := func(r metav1.OwnerReference) bool { return r.UID == u.GetUID() }
		owners := candidate.GetOwnerReferences()
		switch {
		case !slices.ContainsFunc(owners, owned):
		case len(owners) == 1:
			s.finalize(other)
		default: // it is held by its other owners
			candidate = candidate.DeepCopy()
			candidate.SetOwnerReferences(slices.DeleteFunc(owners, owned))
			s.store(other, candidate)
		}
	}
	return u
}

func (s *Server) announce(e event) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) keys() []key {
	var out []key
	for k := range s.objects {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.resource.String(), b.resource.String()), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return out
}

// sorted lists the objects of a resource in a namespace, or in all if that is empty.
func (s *Server) sorted(resource schema.GroupResource, namespace string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, k := range s.keys() {
		if k.resource == resource && (namespace == "" || k.namespace == namespace) {
			out = append(out, s.objects[k])
		}
	}
	return out
}
