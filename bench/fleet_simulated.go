package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

func newSimulatedMember(name string) *simulatedMember {
	m := &simulatedMember{name: name, collections: map[string]*collection{}, version: 1}
	m.put(address{groupVersion: "v1", resource: "namespaces", name: "kube-system"}, map[string]json.RawMessage{})
	m.put(address{groupVersion: "v1", resource: "nodes", name: name + "-1"}, map[string]json.RawMessage{"status": []byte(
		`{"capacity":{"cpu":"64","memory":"256Gi","pods":"5000"},"allocatable":{"cpu":"64","memory":"256Gi","pods":"5000"},"conditions":[{"type":"Ready","status":"True"}]}`)})
	return m
}

func (m *simulatedMember) stats() (watched bool, objects int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.collection(address{groupVersion: "apps/v1", resource: "deployments"})
	return len(s.watching) > 0, len(s.objects)
}

// collection returns the collection of an address. The caller holds mu.
func (m *simulatedMember) collection(a address) *collection {
	key := a.groupVersion + " " + a.resource
	s := m.collections[key]
	if s == nil {
		s = &collection{kind: simulatedKind(a), groupVersion: a.groupVersion, objects: map[string]*storedObject{}, watching: map[chan []byte]bool{}}
		m.collections[key] = s
	}
	return s
}

func (m *simulatedMember) serve(w http.ResponseWriter, r *http.Request) {
	a, ok := addressOf(r.URL.Path)
	if !ok || simulatedKind(a) == "" {
		refuseWith(w, http.StatusNotFound, "NotFound")
		return
	}
	switch {
	case r.Method == http.MethodGet && a.name != "":
		m.mu.Lock()
		o := m.collection(a).objects[a.namespace+"/"+a.name]
		m.mu.Unlock()
		if o == nil {
			refuseWith(w, http.StatusNotFound, "NotFound")
			return
		}
		writeObject(w, http.StatusOK, json.RawMessage(o.raw))
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		m.watch(w, r, a)
	case r.Method == http.MethodGet:
		m.list(w, r, a)
	case r.Method == http.MethodPost, r.Method == http.MethodPatch:
		m.write(w, r, a)
	case r.Method == http.MethodDelete && a.name != "":
		m.remove(a)
		writeObject(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		refuseWith(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// write handles a create or an apply. The body is the whole desired object.
func (m *simulatedMember) write(w http.ResponseWriter, r *http.Request, a address) {
	body, err := io.ReadAll(r.Body)
	object := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(body, &object)
	}
	if r.Method == http.MethodPost && err == nil {
		var named struct{ Name string }
		err = json.Unmarshal(object["metadata"], &named)
		a.name = named.Name
	}
	if err != nil {
		refuseWith(w, http.StatusBadRequest, "BadRequest")
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.collection(a).objects[a.namespace+"/"+a.name] != nil && r.Method == http.MethodPost {
		refuseWith(w, http.StatusConflict, "AlreadyExists")
		return
	}
	answer := m.put(a, object)
	if a.resource == "deployments" {
		object["status"] = m.readyStatus(a, object["spec"])
		m.put(a, object)
	}
	writeObject(w, http.StatusOK, json.RawMessage(answer))
}

// readyStatus returns the final status that a cluster's controllers would give a Deployment.
func (m *simulatedMember) readyStatus(a address, spec json.RawMessage) json.RawMessage {
	var fields struct{ Replicas int }
	_ = json.Unmarshal(spec, &fields) // without replicas it runs none
	n := fields.Replicas
	return fmt.Appendf(nil, `{"observedGeneration":%[1]d,"replicas":%[2]d,"updatedReplicas":%[2]d,"readyReplicas":%[2]d,"availableReplicas":%[2]d,"conditions":[
{"type":"Available","status":"True","reason":"MinimumReplicasAvailable","message":"Deployment has minimum availability.","lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"},
{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable","message":"ReplicaSet has successfully progressed.","lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`,
		m.collection(a).objects[a.namespace+"/"+a.name].generation, n)
}

// put creates or replaces an object, sends the event to all watches and returns the
// object. The caller holds mu, unless the member serves no requests yet.
func (m *simulatedMember) put(a address, object map[string]json.RawMessage) []byte {
	m.version++
	s := m.collection(a)
	key := a.namespace + "/" + a.name
	o, kind := s.objects[key], "MODIFIED"
	if o == nil {
		kind = "ADDED"
		o = &storedObject{uid: fmt.Sprintf("%s-%d", m.name, m.version), namespace: a.namespace, name: a.name}
		s.objects[key] = o
	}
	if string(o.spec) != string(object["spec"]) || o.generation == 0 {
		o.generation++
	}
	o.spec = object["spec"]
	metadata := map[string]any{}
	_ = json.Unmarshal(object["metadata"], &metadata) // an invalid body has no metadata
	metadata["name"], metadata["uid"], metadata["generation"], metadata["resourceVersion"] = a.name, o.uid, o.generation, strconv.Itoa(m.version)
	metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
	if a.namespace != "" {
		metadata["namespace"] = a.namespace
	}
	whole := map[string]any{"apiVersion": s.groupVersion, "kind": s.kind, "metadata": metadata}
	for field, value := range object {
		if whole[field] == nil {
			whole[field] = value
		}
	}
	o.raw, _ = json.Marshal(whole) // it was decoded from JSON
	s.notify(kind, o.raw)
	return o.raw
}

func (m *simulatedMember) remove(a address) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, key := m.collection(a), a.namespace+"/"+a.name
	if o := s.objects[key]; o != nil {
		m.version++
		delete(s.objects, key)
		s.notify("DELETED", o.raw)
	}
}

func eventOf(kind string, object []byte) []byte {
	return append(fmt.Appendf(nil, `{"type":%q,"object":%s`, kind, object), "}\n"...)
}

// notify sends an event to all watches, and closes those that do not read.
func (s *collection) notify(kind string, object []byte) {
	for w := range s.watching {
		select {
		case w <- eventOf(kind, object):
		default:
			close(w)
			delete(s.watching, w)
		}
	}
}

func (m *simulatedMember) list(w http.ResponseWriter, r *http.Request, a address) {
	m.mu.Lock()
	s := m.collection(a)
	items := make([]json.RawMessage, 0, len(s.objects))
	for _, o := range s.objects {
		items = append(items, o.raw)
	}
	version := m.version
	m.mu.Unlock()
	kind, groupVersion := s.kind+"List", s.groupVersion
	if asMetadata(r) {
		kind, groupVersion = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	writeObject(w, http.StatusOK, map[string]any{"kind": kind, "apiVersion": groupVersion,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(version)}, "items": items})
}

func asMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// watch sends all changes from now on. If the client asks for initial events, as
// informers do, it sends all existing objects first.
func (m *simulatedMember) watch(w http.ResponseWriter, r *http.Request, a address) {
	events := make(chan []byte, 1000)
	m.mu.Lock()
	s := m.collection(a)
	var first []byte
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, o := range s.objects {
			first = append(first, eventOf("ADDED", o.raw)...)
		}
		kind, groupVersion := s.kind, s.groupVersion
		if asMetadata(r) {
			kind, groupVersion = "PartialObjectMetadata", "meta.k8s.io/v1"
		}
		first = append(first, eventOf("BOOKMARK", fmt.Appendf(nil,
			`{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, kind, groupVersion, m.version))...)
	}
	s.watching[events] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(s.watching, events)
		m.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	for next := first; ; {
		if _, err := w.Write(next); err != nil || flush.Flush() != nil {
			return
		}
		var open bool
		select {
		case <-r.Context().Done():
			return
		case next, open = <-events:
			if !open {
				return
			}
		}
	}
}
