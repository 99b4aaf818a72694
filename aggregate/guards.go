package aggregate

import (
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// A controller is one of a member's own, which takes what it sees for the
// member's alone and would destroy what is everybody's.
type controller int

const (
	none controller = iota
	namespaceController
	// collector is the garbage collector, and the cache of metadata that it
	// shares with kube-controller-manager's quota.
	collector
	migrator
)

const controllerAccount = "system:serviceaccount:kube-system:"

// recognise tells which controller speaks: by its service account; or, since
// many distributions run all controllers as one user, by the name that each
// puts at the end of its user agent:
//
//	kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/1a2b3c4/namespace-controller
//
// Anybody can send such a user agent. It gains them nothing: being recognised
// takes away, and what it grants is granted by user (see guardOwners).
func recognise(userName, userAgent string) controller {
	name, ok := strings.CutPrefix(userName, controllerAccount)
	if ok {
		if c := named(name); c != none {
			return c
		}
	}
	_, build, ok := strings.Cut(userAgent, ") kubernetes/")
	if !ok {
		return none
	}
	_, name, _ = strings.Cut(build, "/")
	return named(strings.TrimPrefix(name, controllerAccount))
}

func named(name string) controller {
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

// guardNamespaces keeps shared objects when a member deletes a namespace. Its
// namespace controller deletes all content and waits until none is left, so it
// is told that nothing was there. This is answered here and not by the
// workspace: the namespace has to finish whatever roles the controller has.
func (h *Handler) guardNamespaces(w http.ResponseWriter, in *http.Request, info *request.RequestInfo) {
	switch info.Verb {
	case "deletecollection":
		writeStatus(w, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK})
	case "list":
		h.codec.writeEmptyList(w, in.Header.Get("Accept"))
	case "get", "watch":
		h.next.ServeHTTP(w, in)
	default:
		refuse(w, guarded("namespace controller", info))
	}
}

// guardOwners keeps a member's garbage collector from following references that
// it cannot judge: an owner that exists only in another cluster looks deleted
// here. It sees shared objects without owners and finalizers, so it never finds
// one to collect or to finish, and still sees when a shared owner of its own
// local objects is gone. Only metadata is given, whatever it asks for.
func (h *Handler) guardOwners(w http.ResponseWriter, in *http.Request, who speaker, info *request.RequestInfo) {
	reads := info.Verb == "get" || info.Verb == "list" || info.Verb == "watch"
	if !reads || info.Subresource != "" {
		refuse(w, guarded("garbage collector", info))
		return
	}
	if isCollector(who.name) {
		// The context of the request carries this very value.
		who.info.Groups = append(who.info.Groups, GroupCollectors)
	}
	if info.Verb == "watch" {
		h.watchWithoutOwners(w, in)
		return
	}
	h.readWithoutOwners(w, in, info.Verb == "list")
}

// isCollector goes by user alone: a user agent proves nothing.
func isCollector(userName string) bool {
	return userName == controllerAccount+"generic-garbage-collector" || userName == "system:kube-controller-manager"
}

// guardStorage lets no member rewrite shared objects for the sake of a storage
// version: the member stores none of them.
func (h *Handler) guardStorage(w http.ResponseWriter, in *http.Request, info *request.RequestInfo) {
	if info.Verb == "get" || info.Verb == "list" || info.Verb == "watch" {
		h.next.ServeHTTP(w, in)
		return
	}
	refuse(w, guarded("storage version migrator", info))
}
