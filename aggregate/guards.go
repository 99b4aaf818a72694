package aggregate

import (
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// controller is one of a member's own controllers that would destroy shared objects,
// because it takes every object that it sees for the member's own.
type controller int

const (
	none controller = iota
	namespaceController
	// collector is the garbage collector, and the metadata cache that it shares with
	// the quota controller of kube-controller-manager.
	collector
	migrator
)

const controllerAccount = "system:serviceaccount:kube-system:"

// identifyController returns which controller sent a request. It compares the service
// account. Many distributions run all controllers as one user, so it also compares the
// name that each puts at the end of its user agent:
//
//	kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/1a2b3c4/namespace-controller
//
// Any client can send such a user agent and gains nothing by it: a guard only takes
// permissions away. The one permission that a guard grants depends on the user (see
// guardOwners).
func identifyController(userName, userAgent string) controller {
	name, ok := strings.CutPrefix(userName, controllerAccount)
	if ok {
		if c := controllerByName(name); c != none {
			return c
		}
	}
	_, build, ok := strings.Cut(userAgent, ") kubernetes/")
	if !ok {
		return none
	}
	_, name, _ = strings.Cut(build, "/")
	return controllerByName(strings.TrimPrefix(name, controllerAccount))
}

func controllerByName(name string) controller {
	switch name {
	case "namespace-controller":
		return namespaceController
	case "generic-garbage-collector", "metadata-informers":
		return collector
	case "storage-version-migrator-controller":
		return migrator
	}
	return none
}

// guardNamespaces keeps shared objects when a member deletes a namespace. The member's
// namespace controller deletes all content and waits until none is left, so the handler
// reports an empty namespace. The handler answers without the workspace, because the
// namespace must finish whatever roles the controller has.
func (h *Handler) guardNamespaces(w http.ResponseWriter, in *http.Request, info *request.RequestInfo) {
	switch info.Verb {
	case "deletecollection":
		writeStatus(w, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK})
	case "list":
		h.codec.writeEmptyList(w, in.Header.Get("Accept"))
	case "get", "watch":
		h.next.ServeHTTP(w, in)
	default:
		writeError(w, guardForbidden("namespace controller", info))
	}
}

// guardOwners keeps a member's garbage collector from following owner references that
// it cannot judge: an owner that exists only in another cluster looks deleted here. The
// collector gets shared objects without owners and finalizers, so it never finds one to
// collect or to finalize. It still sees when a shared owner of its local objects is
// gone. It gets only metadata, whatever it asks for.
func (h *Handler) guardOwners(w http.ResponseWriter, in *http.Request, who requester, info *request.RequestInfo) {
	reads := info.Verb == "get" || info.Verb == "list" || info.Verb == "watch"
	// A collector selects nothing. Selectors would reveal labels and fields that the answers lack.
	if !reads || info.Subresource != "" || info.LabelSelector != "" || in.URL.Query().Get("labelSelector") != "" || selectsFields(in) {
		writeError(w, guardForbidden("garbage collector", info))
		return
	}
	if isCollector(who.name) {
		// The request's context holds this same pointer.
		who.info.Groups = append(who.info.Groups, GroupCollectors)
	}
	if info.Verb == "watch" {
		h.watchWithoutOwners(w, in)
		return
	}
	h.readWithoutOwners(w, in, info.Verb == "list")
}

// selectsFields reports whether a request selects by a field other than the name. A watch of one object selects it by
// its name.
func selectsFields(in *http.Request) bool {
	for _, term := range strings.Split(in.URL.Query().Get("fieldSelector"), ",") {
		field, _, _ := strings.Cut(term, "=")
		if field = strings.TrimRight(field, "!="); field != "" && field != "metadata.name" && field != "metadata.namespace" {
			return true
		}
	}
	return false
}

// isCollector considers only the user: a user agent proves nothing.
func isCollector(userName string) bool {
	return userName == controllerAccount+"generic-garbage-collector" || userName == "system:kube-controller-manager"
}

// guardStorage rejects writes by a member's storage version migrator. The member stores
// none of the shared objects.
func (h *Handler) guardStorage(w http.ResponseWriter, in *http.Request, info *request.RequestInfo) {
	if info.Verb == "get" || info.Verb == "list" || info.Verb == "watch" {
		h.next.ServeHTTP(w, in)
		return
	}
	writeError(w, guardForbidden("storage version migrator", info))
}
