package fakeapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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
	var initial []*object
	if from == 0 {
		initial, from = s.sorted(c.Resource.GroupResource(), c.Namespace), s.version
	}
	all := s.collection(c.Resource.GroupResource())
	all.watching++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		all.watching--
	}()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	send := func(kind string, object json.RawMessage) {
		_, _ = fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, object) // an error means that the client has gone, which its context reports
	}
	for _, o := range initial {
		if chosen.matches(o) {
			send("ADDED", o.encode(c))
		}
	}
	if marksEnd {
		send("BOOKMARK", c.initialEventsEnd(from).encode(c))
	}
	for {
		s.mu.Lock()
		if from < all.lost {
			s.mu.Unlock()
			status := apierrors.NewResourceExpired("the history was compacted").Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			send("ERROR", encode(status))
			return
		}
		var due []event
		if !all.held {
			due, from = all.since(from), s.version
		}
		changed := all.changed
		s.mu.Unlock()
		for _, e := range due {
			if c.Namespace != "" && e.object.GetNamespace() != c.Namespace {
				continue
			}
			if kind := e.seenBy(chosen); kind != "" {
				send(kind, e.object.encode(c))
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

// since returns the events after a version.
func (c *collection) since(version int64) []event {
	i, _ := slices.BinarySearchFunc(c.events, version+1, func(e event, v int64) int { return cmp.Compare(e.version, v) })
	return slices.Clone(c.events[i:])
}

// initialEventsEnd is the bookmark after the initial events of a watch.
func (c *call) initialEventsEnd(version int64) *object {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(c.kind.GVK())
	u.SetResourceVersion(strconv.FormatInt(version, 10))
	u.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return &object{Unstructured: u}
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
