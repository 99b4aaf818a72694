package view

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// list answers with all things of a kind.
func (r *request) list(w http.ResponseWriter, what place) {
	want, err := r.wants(what)
	if err != nil {
		refuse(w, err)
		return
	}
	there, version := r.view.ledger.now(want)
	slices.SortFunc(there, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := things{TypeMeta: metav1.TypeMeta{APIVersion: groupVersion(what.resource), Kind: r.listKind(what)},
		ListMeta: metav1.ListMeta{ResourceVersion: formatVersion(version)}, Items: []json.RawMessage{}}
	for _, record := range there {
		item, err := r.view.render(r.Context(), record)
		if err != nil {
			refuse(w, err)
			return
		}
		if item != nil {
			out.Items = append(out.Items, item)
		}
	}
	answer(w, http.StatusOK, out)
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
