package test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"
)

// watchFlows are watches as clients and informers use them.
func watchFlows() []flow {
	return []flow{
		{"watch", watchEvents},
		{"watchlist", watchLists},
		{"bookmarks", watchBookmarks},
	}
}

// watch notes the events of a watch while do changes things, until there were so
// many, or it ends.
func (s *side) watch(query, accept string, count int, do func()) {
	s.say("> watch %s %s", query, accept)
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	response, err := s.send(ctx, "GET", s.gadgets()+"?watch=true&"+query, "", "Accept", accept)
	if err != nil {
		s.t.Errorf("%s: watch %s: %v", s.cluster, query, err)
		return
	}
	defer response.Body.Close()
	s.say("< %d %s", response.StatusCode, response.Header["Content-Type"])
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		s.say("%s", readable(body))
		return
	}
	if do != nil {
		do()
	}
	in := bufio.NewReader(response.Body)
	for ; count != 0; count-- {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			s.say("it ends")
			return
		}
		if err != nil {
			s.t.Errorf("%s: watch %s: %v", s.cluster, query, err)
			return
		}
		s.say("%s", readable([]byte(line)))
	}
}

// revision is that of a list now.
func (s *side) revision() string {
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	s.decode(s.quietly(s.gadgets(), "application/json"), &list)
	return list.Metadata.ResourceVersion
}

// make creates a Gadget without a note.
func (s *side) make(name, spec string) { s.change("POST", "", gadgetJSON(name, spec)) }

func (s *side) change(method, name, body string) {
	response, err := s.send(s.t.Context(), method, s.gadgets()+name, body, "Content-Type", map[string]string{
		"PATCH": "application/merge-patch+json"}[method])
	if err != nil {
		s.t.Error(err)
		return
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		body, _ := io.ReadAll(response.Body)
		s.t.Errorf("%s: %s %s: %s: %s", s.cluster, method, name, response.Status, body)
	}
}

func watchEvents(s *side) {
	const plain, meta, table = "application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1"
	s.make("a", `{"color":"red"}`)
	began := s.revision()
	s.watch("resourceVersion="+began, plain, 4, func() {
		s.make("b", `{"color":"blue"}`)
		s.change("PATCH", "/a", `{"spec":{"size":5}}`)
		s.change("PATCH", "/b/status", `{"status":{"phase":"Well"}}`)
		s.change("DELETE", "/b", "")
	})
	// From the past, in each form.
	for _, accept := range []string{plain, meta, table, table + ";includeObject=None", "application/json;stream=watch", "application/yaml", "application/cbor-seq", "application/vnd.kubernetes.protobuf;stream=watch"} {
		s.watch("resourceVersion="+began, accept, 4, nil)
	}
	// A selector makes objects come and go.
	s.watch("fieldSelector=spec.color%3Dred&resourceVersion="+s.revision(), plain, 4, func() {
		s.make("c", `{"color":"red"}`)
		s.change("PATCH", "/c", `{"spec":{"color":"green"}}`)
		s.change("PATCH", "/c", `{"spec":{"size":2}}`)
		s.change("PATCH", "/c", `{"spec":{"color":"red"}}`)
		s.change("DELETE", "/c", "")
	})
	s.watch("labelSelector=in&resourceVersion="+s.revision(), plain, 2, func() {
		s.change("PATCH", "/a", `{"metadata":{"labels":{"in":""}}}`)
		s.change("PATCH", "/a", `{"metadata":{"labels":{"in":null}}}`)
	})
	s.watch("fieldSelector=metadata.name%3Da", plain, 1, nil)
	s.watch("resourceVersion=0", plain, 1, nil)
	s.watch("resourceVersion=1", plain, 2, nil)
	s.watch("resourceVersion=x", plain, 1, nil)
	s.watch("resourceVersion=0&timeoutSeconds=1", plain, -1, nil)
	s.watch("resourceVersionMatch=Exact&resourceVersion=0", plain, 1, nil)
	s.watch("continue=x", plain, 1, nil)
	s.watch("fieldSelector=spec.size%3D1", plain, 1, nil)
}

func watchLists(s *side) {
	const plain, meta = "application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	for i := range 3 {
		s.make(fmt.Sprintf("a%d", i), `{"color":"red"}`)
	}
	s.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", plain, 5, func() { s.make("b", `{}`) })
	s.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=spec.color%3Dred", meta, 4, nil)
	s.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=none&resourceVersion="+s.revision(), plain, 1, nil)
	s.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "application/json;as=Table;g=meta.k8s.io;v=v1", 5, nil)
	for _, query := range []string{
		"sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1", "sendInitialEvents=x",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=x&allowWatchBookmarks=true",
	} {
		s.watch(query, plain, 1, nil)
	}
	s.watch("sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion="+s.revision()+"&allowWatchBookmarks=true", plain, 1, func() { s.make("c", `{}`) })
}

// watchBookmarks come before a watch is ended by the server: two seconds before, so a server that
// gets no processor for as long sends none, and the watch is repeated.
func watchBookmarks(s *side) {
	s.make("a", `{}`)
	for range 5 {
		if s.watchBookmark() {
			return
		}
	}
	s.t.Errorf("%s: no bookmark in five watches", s.cluster)
}

// watchBookmark notes which events one watch has, once there is a bookmark among them.
func (s *side) watchBookmark() bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	response, err := s.send(ctx, "GET", s.gadgets()+"?watch=true&allowWatchBookmarks=true&timeoutSeconds=4&resourceVersion="+s.revision(), "")
	if err != nil {
		s.t.Error(err)
		return true
	}
	defer response.Body.Close()
	seen := map[string]bool{}
	for in := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string
			Object struct{ Kind string }
		}
		if err := in.Decode(&event); err == io.EOF {
			break
		} else if err != nil {
			s.t.Errorf("%s: %v", s.cluster, err)
			return true
		}
		// How many depends on when the server last sent bookmarks to all watches.
		seen[event.Type+" "+event.Object.Kind] = true
	}
	if len(seen) == 0 {
		return false
	}
	for _, said := range slices.Sorted(maps.Keys(seen)) {
		s.say("%s", said)
	}
	return true
}
