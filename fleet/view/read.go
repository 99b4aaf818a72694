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

// get answers with one thing.
func (r *request) get(w http.ResponseWriter, what place) {
	record, ok := r.view.ledger.find(what)
	if !ok {
		refuse(w, notInView(what, r.cluster))
		return
	}
	body, err := r.view.render(r.Context(), record)
	if err == nil && body == nil {
		err = notInView(what, r.cluster)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, body)
}

func notInView(what place, cluster string) error {
	return refusal(metav1.StatusReasonNotFound, "%s is not bound to cluster %s", what, cluster)
}

// list answers with the things of a kind, all of them or a page. They are read and
// written one after another, so that no view is ever in memory as a whole. The pages of
// a list are of different moments, and have the version of the first: who watches from
// there on hears of what has changed meanwhile.
func (r *request) list(w http.ResponseWriter, what place) {
	want, err := r.wants(what)
	from, limit, wrong := r.page()
	if err = errors.Join(err, wrong); err != nil {
		refuse(w, err)
		return
	}
	there, left, version := r.view.ledger.page(want, from.After, limit)
	if from.Version != 0 {
		version = from.Version
		if !r.view.ledger.knows(version) {
			refuse(w, refusal(metav1.StatusReasonExpired, "the list that continue is of is of another server or too old: begin it anew"))
			return
		}
	}
	head := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: groupVersion(what.resource), Kind: r.listKind(what)},
		ListMeta: metav1.ListMeta{ResourceVersion: formatVersion(version)}}
	if left > 0 {
		head.Continue, head.RemainingItemCount = next(version, there), &left
	}
	out := listing{w: w, head: head}
	for _, record := range there {
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

// listing is a list on its way out.
type listing struct {
	w     http.ResponseWriter
	head  metav1.PartialObjectMetadataList
	begun bool
}

// add writes an item. If it cannot, the client is gone.
func (l *listing) add(item json.RawMessage) {
	if l.begun {
		_, _ = l.w.Write([]byte(","))
	}
	l.begin()
	_, _ = l.w.Write(item)
}

func (l *listing) begin() {
	if l.begun {
		return
	}
	l.begun = true
	// The head ends with the list of items, which is empty.
	l.head.Items = []metav1.PartialObjectMetadata{}
	head, err := json.Marshal(l.head)
	if err != nil {
		http.Error(l.w, "the answer cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	l.w.Header().Set("Content-Type", "application/json")
	// Secrets may be in it.
	l.w.Header().Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
	_, _ = l.w.Write(bytes.TrimSuffix(head, []byte("]}")))
}

func (l *listing) end() {
	l.begin()
	_, _ = l.w.Write([]byte("]}"))
}

// fail says why there is no list. What has been begun breaks off in the middle: nobody
// takes that for a whole one.
func (l *listing) fail(err error) {
	if !l.begun {
		refuse(l.w, err)
	}
}

// position is where a list goes on: what continue says.
type position struct {
	Version uint64               `json:"v"`
	After   types.NamespacedName `json:"after"`
}

func next(version uint64, there []record) string {
	data, err := json.Marshal(position{version, there[len(there)-1].NamespacedName})
	if err != nil {
		return "" // numbers and names can be written
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// page reads which part of a list is asked for; limit is 0 for all of it.
func (r *request) page() (from position, limit int, err error) {
	q := r.URL.Query()
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 {
			return from, 0, refusal(metav1.StatusReasonBadRequest, "limit %q is no number of things", text)
		}
	}
	if text := q.Get("continue"); text != "" {
		data, err := base64.RawURLEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(data, &from)
		}
		if err != nil || from.Version == 0 {
			return from, 0, refusal(metav1.StatusReasonBadRequest, "continue is not what a list of this view has said")
		}
	}
	return from, limit, nil
}

// listKind names the list of a resource.
func (r *request) listKind(what place) string {
	for _, k := range r.view.kinds() {
		if k.resource == what.resource {
			return k.kind + "List"
		}
	}
	return "List"
}

// confirm answers with one binding, asked for live: whether its object is to leave the
// cluster, and what the cluster's entry says.
func (r *request) confirm(w http.ResponseWriter, what place) {
	b, err := r.view.view.term.BindingNow(r.Context(), what.NamespacedName)
	if err != nil {
		refuse(w, err)
		return
	}
	if b == nil || !concerns(b, r.cluster) {
		refuse(w, notInView(what, r.cluster))
		return
	}
	left, decided, err := r.view.view.Leaving(r.Context(), b)
	if err != nil {
		refuse(w, err)
		return
	}
	if left != nil {
		b = left
	}
	out := reduced(b, r.cluster)
	out.Leaves, out.Decided = left != nil, decided
	if record, ok := r.view.ledger.find(what); ok {
		out.ResourceVersion = formatVersion(record.version)
	}
	answer(w, http.StatusOK, out)
}

// namespace tells whether the control plane has a namespace, live. A syncer may ask
// only for those that it has, or lately had, something in.
func (r *request) namespace(w http.ResponseWriter, name string) {
	if !r.view.ledger.holds(name) {
		refuse(w, refusal(metav1.StatusReasonForbidden, "nothing in namespace %q is bound to cluster %s", name, r.cluster))
		return
	}
	gone, err := r.view.view.NamespaceGone(r.Context(), name)
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, BoundNamespace{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: boundNamespace},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Gone: gone})
}
