package view

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Caller is who sends a request, as the server has found out.
type Caller struct {
	Name   string
	Groups []string
}

// isSyncer tells whether somebody has any sign of a syncer, and so may do no more than
// one.
func (c Caller) isSyncer() bool {
	return slices.Contains(c.Groups, v1alpha1.SyncersGroup) || strings.HasPrefix(c.Name, v1alpha1.SyncerUserPrefix)
}

// Allows tells whether somebody is the syncer of the cluster whose view a path is in.
// Nobody else may see a view but whom RBAC allows the path. What the syncer may do
// there, and whether its credential still counts, the Host finds out.
func Allows(caller Caller, path string) bool {
	cluster, _, ok := v1alpha1.ViewOf(path)
	return ok && caller.Name == v1alpha1.SyncerUser(cluster) && slices.Contains(caller.Groups, v1alpha1.SyncersGroup)
}

// Watches tells whether a request below ViewsPath goes on for as long as the client
// likes.
func Watches(r *http.Request) bool {
	_, _, ok := v1alpha1.ViewOf(r.URL.Path)
	return ok && r.Method == http.MethodGet && isTrue(r, "watch")
}

func isTrue(r *http.Request, parameter string) bool {
	switch r.URL.Query().Get(parameter) {
	case "true", "1":
		return true
	}
	return false
}

// request is a request for a view.
type request struct {
	*http.Request
	caller  Caller
	cluster string
	caches  *caches
	view    *projection
	path    []string // below the view
}

// Serve answers a request below ViewsPath of somebody who is allowed the path.
func (h *Host) Serve(w http.ResponseWriter, r *http.Request, caller Caller) {
	cluster, rest, err := locate(r)
	if err != nil {
		refuse(w, err)
		return
	}
	if caller.isSyncer() && !Allows(caller, r.URL.Path) {
		refuse(w, refusal(metav1.StatusReasonForbidden, "%q may not see the view of cluster %q", caller.Name, cluster))
		return
	}
	c, release, err := h.use(r.Context())
	if err != nil {
		refuse(w, err)
		return
	}
	defer release()
	joined, exists := c.term.Cluster(cluster)
	if !exists && !caller.isSyncer() {
		err = refusal(metav1.StatusReasonNotFound, "there is no Cluster %q", cluster)
	} else if caller.isSyncer() {
		err = admit(joined, exists, cluster, caller.Groups)
	}
	if rest == credentialRest && !caller.isSyncer() {
		err = nil // the caches may not know a Cluster yet that was made for this request
	}
	if err != nil {
		refuse(w, err)
		return
	}
	in := &request{Request: r, caller: caller, cluster: cluster, caches: c, path: strings.Split(strings.Trim(rest, "/"), "/")}
	if rest == credentialRest {
		h.credential(w, in)
		return
	}
	if in.view, err = h.viewOf(c, cluster); err != nil {
		refuse(w, err)
		return
	}
	h.route(w, in)
}

// locate finds out which view a request is for. A path that could mean something else
// to somebody else (`..`, `//`, what is escaped without need) means nothing here.
func locate(r *http.Request) (cluster, rest string, err error) {
	cluster, rest, ok := v1alpha1.ViewOf(r.URL.Path)
	if !ok || r.URL.RawPath != "" {
		return "", "", refusal(metav1.StatusReasonBadRequest, "the path is not one of a view: write %sCLUSTER/api…, with nothing escaped in it", v1alpha1.ViewsPath)
	}
	for _, element := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/"), "/") {
		if element == "" || element == "." || element == ".." || strings.ContainsAny(element, "\\;%\x00") {
			return "", "", refusal(metav1.StatusReasonBadRequest, "the path is not a plain one: leave out what is empty, . and ..")
		}
	}
	return cluster, rest, nil
}

func (h *Host) route(w http.ResponseWriter, r *request) {
	if r.discovery(w) {
		return
	}
	what, name, sub, ok := r.resource()
	if !ok || !slices.ContainsFunc(r.view.kinds(), func(k served) bool { return k.resource == what.resource }) {
		refuse(w, refusal(metav1.StatusReasonNotFound, "a view has no %s", r.URL.Path))
		return
	}
	switch own := what.resource; {
	case r.Method == http.MethodGet && own.Resource == boundNamespaces && own.Group == v1alpha1.Group && name != "" && sub == "":
		r.namespace(w, name)
	case r.Method == http.MethodGet && sub == "" && own == boundObjectResource() && name != "":
		r.confirm(w, what)
	case r.Method == http.MethodGet && sub == "" && name == "" && isTrue(r.Request, "watch"):
		h.watch(w, r, what)
	case r.Method == http.MethodGet && sub == "" && name == "":
		r.list(w, what)
	case r.Method == http.MethodGet && sub == "":
		r.get(w, what)
	case !Allows(r.caller, r.URL.Path):
		refuse(w, refusal(metav1.StatusReasonForbidden, "only the syncer of cluster %q reports on what is bound to it", r.cluster))
	case r.Method == http.MethodPut && sub == "status" && own == boundObjectResource():
		r.report(w, what)
	case r.Method == http.MethodPost && sub == "events" && own == boundObjectResource():
		r.event(w, what)
	case r.Method == http.MethodPut && sub == "status" && own == v1alpha1.ClusterResource:
		r.heartbeat(w, name)
	case r.Method == http.MethodPut && sub == haltedResource && own == v1alpha1.ClusterResource:
		r.halted(w, name)
	case r.Method == http.MethodPut && sub == typesResource && own == v1alpha1.ClusterResource:
		h.takeTypes(w, r, name)
	case r.Method == http.MethodPut && sub == groupResource && own == v1alpha1.ClusterResource:
		h.takeGroup(w, r, name)
	default:
		refuse(w, refusal(metav1.StatusReasonMethodNotAllowed,
			"a view takes no %s of %s: a syncer reports (PUT …/%s/NAME/status, POST …/%s/NAME/events, PUT …/%s/%s/status) and changes nothing else",
			r.Method, r.URL.Path, boundObjects, boundObjects, clusters, r.cluster))
	}
}

// resource reads the path as Kubernetes lays paths out: /api/v1 or /apis/GROUP/VERSION,
// then namespaces/NAMESPACE if there is one, then the resource, a name, a subresource.
func (r *request) resource() (what place, name, sub string, ok bool) {
	path := r.path
	switch {
	case len(path) >= 3 && path[0] == "api":
		what.resource.Version, path = path[1], path[2:]
	case len(path) >= 4 && path[0] == "apis":
		what.resource.Group, what.resource.Version, path = path[1], path[2], path[3:]
	default:
		return what, "", "", false
	}
	if path[0] == "namespaces" && len(path) >= 3 {
		what.Namespace, path = path[1], path[2:]
	}
	if len(path) > 3 {
		return what, "", "", false
	}
	path = append(slices.Clone(path), "", "")
	what.resource.Resource, what.Name = path[0], path[1]
	return what, path[1], path[2], true
}

// wants tells what a list or a watch of a place is of.
func (r *request) wants(what place) (func(place) bool, error) {
	q := r.URL.Query()
	if q.Get("labelSelector") != "" {
		return nil, refusal(metav1.StatusReasonBadRequest, "a view selects by namespace and by metadata.name alone: leave labelSelector out")
	}
	name := what.Name
	if selector := q.Get("fieldSelector"); selector != "" {
		only, ok := strings.CutPrefix(strings.Replace(selector, "==", "=", 1), "metadata.name=")
		if !ok || strings.ContainsAny(only, ",=!") {
			return nil, refusal(metav1.StatusReasonBadRequest, "a view selects by namespace and by metadata.name alone: leave fieldSelector %q out", selector)
		}
		name = only
	}
	return func(p place) bool {
		return p.resource == what.resource && (what.Namespace == "" || p.Namespace == what.Namespace) && (name == "" || p.Name == name)
	}, nil
}

// most is how much a report may be: what a control plane takes of an object.
const most = 3 << 20

// read reads the body of a request.
func (r *request) read(w http.ResponseWriter, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return refusal(metav1.StatusReasonBadRequest, "the request cannot be read: %s", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return refusal(metav1.StatusReasonBadRequest, "the request is not the JSON that belongs here: %s", err)
	}
	return nil
}

// group gives how a group and version are written in apiVersion.
func groupVersion(r schema.GroupVersionResource) string { return r.GroupVersion().String() }

func (p place) String() string {
	return fmt.Sprintf("%s %s", p.resource.Resource, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
}
