package fakeapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

func unmarshal(raw []byte, into *map[string]any) error { return utiljson.Unmarshal(raw, into) }

// watch sends events from a resource version on, until the client or the test ends. Without a
// version, or if the client asks for initial events, it begins with what exists.
func (s *Server) watch(w http.ResponseWriter, c *call) {
	q := c.http.URL.Query()
	chosen, err := c.selection()
	if err != nil {
		refuse(w, err)
		return
	}
	timeout := time.Hour
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil {
		timeout = time.Duration(seconds) * time.Second
	}
	end := time.NewTimer(timeout)
	defer end.Stop()

	s.mu.Lock()
	from, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	marksEnd := q.Get("sendInitialEvents") == "true"
	if marksEnd {
		from = 0
	}
	if from != 0 && from < s.oldest {
		s.mu.Unlock()
		refuse(w, apierrors.NewResourceExpired("too old resource version: "+q.Get("resourceVersion")))
		return
	}
	var initial []*unstructured.Unstructured
	if from == 0 {
		initial, from = s.sorted(c.Resource.GroupResource(), c.Namespace), s.version
	}
	s.watching[c.Resource.GroupResource()]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watching[c.Resource.GroupResource()]--
	}()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	send := func(kind string, u *unstructured.Unstructured) {
		_ = out.Encode(map[string]any{"type": kind, "object": c.shape(u)}) // an error means that the client has gone, which its context reports
	}
	for _, u := range initial {
		if chosen.matches(u) {
			send("ADDED", u)
		}
	}
	if marksEnd {
		send("BOOKMARK", c.initialEventsEnd(from))
	}
	for {
		s.mu.Lock()
		if from < s.oldest {
			s.mu.Unlock()
			status := apierrors.NewResourceExpired("the history was compacted").Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			_ = out.Encode(map[string]any{"type": "ERROR", "object": status})
			return
		}
		var due []event
		for _, e := range s.events {
			if e.version > from && e.key.resource == c.Resource.GroupResource() && (c.Namespace == "" || e.key.namespace == c.Namespace) {
				due = append(due, e)
			}
		}
		from = s.version
		changed := s.changed
		s.mu.Unlock()
		for _, e := range due {
			if kind := e.seenBy(chosen); kind != "" {
				send(kind, e.object)
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-end.C:
			return
		case <-c.http.Context().Done():
			return
		}
	}
}

// initialEventsEnd is the bookmark after the initial events of a watch.
func (c *call) initialEventsEnd(version int64) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(c.kind.GVK())
	u.SetResourceVersion(strconv.FormatInt(version, 10))
	u.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return u
}

// seenBy is the kind of an event for a watch with a selector: an object that begins or ceases to
// match is added or deleted for it. It is empty if the watch does not see the event.
func (e event) seenBy(chosen selection) string {
	was, is := chosen.matches(e.before), e.kind != "DELETED" && chosen.matches(e.object)
	switch {
	case was && is:
		return "MODIFIED"
	case is:
		return "ADDED"
	case was:
		return "DELETED"
	}
	return ""
}
