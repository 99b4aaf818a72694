package view

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// get responds with one object.
func (r *request) get(w http.ResponseWriter, what objectKey) {
	record, ok := r.view.log.find(what)
	if !ok {
		writeError(w, notInView(what, r.cluster))
		return
	}
	body, err := r.view.render(r.Context(), record)
	if err == nil && body == nil {
		err = notInView(what, r.cluster)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

func notInView(what objectKey, cluster string) error {
	return newStatusError(metav1.StatusReasonNotFound, "%s is not bound to cluster %s", what, cluster)
}

// list responds with the objects of a resource, in full or one page. Objects are read and
// written one at a time, so that a view is never in memory as a whole. The pages of a list come
// from different points in time, and have the version of the first page: a watch from there
// reports what changed meanwhile.
func (r *request) list(w http.ResponseWriter, what objectKey) {
	want, err := r.selector(what)
	from, limit, wrong := r.page()
	if err = errors.Join(err, wrong); err != nil {
		writeError(w, err)
		return
	}
	entries, left, version := r.view.log.page(want, from.After, limit)
	if from.Version != 0 {
		version = from.Version
		if !r.view.log.contains(version) {
			writeError(w, newStatusError(metav1.StatusReasonExpired, "the continue token was issued by another server or is too old: restart the list"))
			return
		}
	}
	head := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: groupVersion(what.resource), Kind: r.listKind(what)},
		ListMeta: metav1.ListMeta{ResourceVersion: formatVersion(version)}}
	if left > 0 {
		head.Continue, head.RemainingItemCount = continueToken(version, entries), &left
	}
	out := listWriter{w: w, head: head}
	for _, record := range entries {
		item, err := r.view.render(r.Context(), record)
		if err != nil {
			out.fail(err)
			return
		}
		if item != nil {
			out.add(item)
		}
	}
	out.end()
}

// listWriter streams a list response.
type listWriter struct {
	w     http.ResponseWriter
	head  metav1.PartialObjectMetadataList
	begun bool
}

// add writes an item. Write errors mean that the client is gone.
func (l *listWriter) add(item json.RawMessage) {
	if l.begun {
		_, _ = l.w.Write([]byte(","))
	}
	l.begin()
	_, _ = l.w.Write(item)
}

func (l *listWriter) begin() {
	if l.begun {
		return
	}
	l.begun = true
	// The head ends with the list of items, which is empty.
	l.head.Items = []metav1.PartialObjectMetadata{}
	head, err := json.Marshal(l.head)
	if err != nil {
		http.Error(l.w, "the response cannot be encoded as JSON", http.StatusInternalServerError)
		return
	}
	l.w.Header().Set("Content-Type", "application/json")
	// The response may contain Secrets.
	l.w.Header().Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
	_, _ = l.w.Write(bytes.TrimSuffix(head, []byte("]}")))
}

func (l *listWriter) end() {
	l.begin()
	_, _ = l.w.Write([]byte("]}"))
}

// fail responds with an error. A list that has been started is cut off: the invalid JSON tells
// the client that it is incomplete.
func (l *listWriter) fail(err error) {
	if !l.begun {
		writeError(l.w, err)
	}
}

// position is the decoded continue token of a list.
type position struct {
	Version uint64               `json:"v"`
	After   types.NamespacedName `json:"after"`
}

func continueToken(version uint64, entries []logEntry) string {
	data, err := json.Marshal(position{version, entries[len(entries)-1].NamespacedName})
	if err != nil {
		return "" // numbers and names can always be encoded
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// page parses the requested part of a list; limit 0 means all of it.
func (r *request) page() (from position, limit int, err error) {
	q := r.URL.Query()
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 {
			return from, 0, newStatusError(metav1.StatusReasonBadRequest, "limit %q is not a valid number of objects", text)
		}
	}
	if text := q.Get("continue"); text != "" {
		data, err := base64.RawURLEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(data, &from)
		}
		if err != nil || from.Version == 0 {
			return from, 0, newStatusError(metav1.StatusReasonBadRequest, "the continue token was not issued by a list of this view")
		}
	}
	return from, limit, nil
}

// listKind returns the list kind of a resource.
func (r *request) listKind(what objectKey) string {
	for _, k := range r.view.resources() {
		if k.resource == what.resource {
			return k.kind + "List"
		}
	}
	return "List"
}

// confirm responds with one binding, read live: whether its object is to leave the cluster, and
// the cluster's entry.
func (r *request) confirm(w http.ResponseWriter, what objectKey) {
	b, err := r.view.view.session.LiveBinding(r.Context(), what.NamespacedName)
	if err != nil {
		writeError(w, err)
		return
	}
	if b == nil || !concerns(b, r.cluster) {
		writeError(w, notInView(what, r.cluster))
		return
	}
	removal, err := r.view.view.ConfirmRemoval(r.Context(), b)
	if err != nil {
		writeError(w, err)
		return
	}
	if removal.Binding != nil {
		b = removal.Binding
	}
	out := reduced(b, r.cluster)
	// A removal that waits is not confirmed: a syncer of an earlier version must not make it either.
	out.Leaves, out.Decided, out.Waits = removal.Binding != nil && removal.Waits == "", removal.Decided, removal.Waits
	if record, ok := r.view.log.find(what); ok {
		out.ResourceVersion = formatVersion(record.version)
	}
	writeJSON(w, http.StatusOK, out)
}

// namespace reports, by a live read, whether the control plane has a namespace. A syncer may
// ask only for namespaces that contain, or recently contained, objects of its cluster.
func (r *request) namespace(w http.ResponseWriter, name string) {
	if !r.view.log.hasNamespace(name) {
		writeError(w, newStatusError(metav1.StatusReasonForbidden, "no object in namespace %q is bound to cluster %s", name, r.cluster))
		return
	}
	gone, err := r.view.view.ConfirmNamespaceGone(r.Context(), name)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, BoundNamespace{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: boundNamespace},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Gone: gone})
}
