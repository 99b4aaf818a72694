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

// Caller is the authenticated sender of a request.
type Caller struct {
	Name   string
	Groups []string
}

// isSyncer reports whether the caller has any attribute of a syncer, and so may do no more than
// one.
func (c Caller) isSyncer() bool {
	return slices.Contains(c.Groups, v1alpha1.SyncersGroup) || strings.HasPrefix(c.Name, v1alpha1.SyncerUserPrefix)
}

// Allows reports whether the caller is the syncer of the cluster whose view path is in. Any
// other user needs RBAC permission for the path. The Host checks the syncer's individual
// requests and its credential.
func Allows(caller Caller, path string) bool {
	cluster, _, ok := v1alpha1.ParseViewPath(path)
	return ok && caller.Name == v1alpha1.SyncerUser(cluster) && slices.Contains(caller.Groups, v1alpha1.SyncersGroup)
}

// LongRunning reports whether a request below ViewsPath is long-running.
func LongRunning(r *http.Request) bool { return Watches(r) || isTunnel(r.URL.Path) }

// tunnelRest is the path of a cluster's tunnel below its view.
const tunnelRest = "/tunnel"

func isTunnel(path string) bool {
	_, rest, ok := v1alpha1.ParseViewPath(path)
	return ok && rest == tunnelRest
}

// Watches reports whether a request below ViewsPath is a watch.
func Watches(r *http.Request) bool {
	_, _, ok := v1alpha1.ParseViewPath(r.URL.Path)
	return ok && r.Method == http.MethodGet && isTrue(r, "watch")
}

func isTrue(r *http.Request, parameter string) bool {
	switch r.URL.Query().Get(parameter) {
	case "true", "1":
		return true
	}
	return false
}

// request is a request to a view.
type request struct {
	*http.Request
	caller  Caller
	cluster string
	caches  *caches
	view    *projection
	path    []string // below the view
}

// Serve handles a request below ViewsPath of a caller who is authorized for the path.
func (h *Host) Serve(w http.ResponseWriter, r *http.Request, caller Caller) {
	cluster, rest, err := parsePath(r)
	if err != nil {
		writeError(w, err)
		return
	}
	if caller.isSyncer() && !Allows(caller, r.URL.Path) {
		writeError(w, newStatusError(metav1.StatusReasonForbidden, "%q is not authorized for the view of cluster %q", caller.Name, cluster))
		return
	}
	c, release, err := h.acquire(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	joined, exists := c.session.Clusters.Get(cluster)
	if exists && rest != tunnelRest {
		var end func()
		w, end = h.cfg.Metrics.begin(w, r, cluster, h.cfg.Clock.Now)
		defer end()
	}
	if !exists && !caller.isSyncer() {
		err = newStatusError(metav1.StatusReasonNotFound, "Cluster %q does not exist", cluster)
	} else if caller.isSyncer() {
		if err = authorizeSyncer(joined, exists, cluster, caller.Groups); err != nil {
			err = h.confirmRefusal(r.Context(), c, cluster, caller.Groups, err)
		}
	}
	if rest == credentialRest && !caller.isSyncer() {
		err = nil // the caches may not have a Cluster that was created just before this request
	}
	if err != nil {
		writeError(w, err)
		return
	}
	in := &request{Request: r, caller: caller, cluster: cluster, caches: c, path: strings.Split(strings.Trim(rest, "/"), "/")}
	if rest == credentialRest {
		h.credential(w, in)
		return
	}
	if rest == tunnelRest {
		h.tunnel(w, in)
		return
	}
	if in.view, err = h.viewOf(c, cluster); err != nil {
		writeError(w, err)
		return
	}
	h.route(w, in)
}

// parsePath returns which view a request is for. It rejects every path that a proxy could
// interpret differently (`..`, `//`, unnecessary escapes).
func parsePath(r *http.Request) (cluster, rest string, err error) {
	cluster, rest, ok := v1alpha1.ParseViewPath(r.URL.Path)
	if !ok || r.URL.RawPath != "" {
		return "", "", newStatusError(metav1.StatusReasonBadRequest, "the path is not that of a view: use %sCLUSTER/api…, without escapes", v1alpha1.ViewsPath)
	}
	for _, element := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/"), "/") {
		if element == "" || element == "." || element == ".." || strings.ContainsAny(element, "\\;%\x00") {
			return "", "", newStatusError(metav1.StatusReasonBadRequest, "invalid path: remove empty elements, . and ..")
		}
	}
	return cluster, rest, nil
}

func (h *Host) route(w http.ResponseWriter, r *request) {
	if r.discovery(w) {
		return
	}
	what, name, sub, ok := r.resource()
	if !ok || !slices.ContainsFunc(r.view.resources(), func(k viewResource) bool { return k.resource == what.resource }) {
		writeError(w, newStatusError(metav1.StatusReasonNotFound, "a view has no resource %s", r.URL.Path))
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
		writeError(w, newStatusError(metav1.StatusReasonForbidden, "only the syncer of cluster %q may report on its bound objects", r.cluster))
	case r.Method == http.MethodPut && sub == "status" && own == boundObjectResource():
		r.report(w, what)
	case r.Method == http.MethodPut && sub == endpointsResource && own == boundObjectResource():
		r.endpoints(w, what)
	case r.Method == http.MethodPost && sub == "events" && own == boundObjectResource():
		r.event(w, what)
	case r.Method == http.MethodPost && sub == answerResource && own == boundObjectResource():
		h.answer(w, r, what)
	case r.Method == http.MethodPut && sub == "status" && own == v1alpha1.ClusterResource:
		r.heartbeat(w, name)
	case r.Method == http.MethodPut && sub == haltedResource && own == v1alpha1.ClusterResource:
		r.halted(w, name)
	case r.Method == http.MethodPut && sub == typesResource && own == v1alpha1.ClusterResource:
		h.handleTypes(w, r, name)
	case r.Method == http.MethodPut && sub == groupResource && own == v1alpha1.ClusterResource:
		h.handleGroup(w, r, name)
	default:
		writeError(w, newStatusError(metav1.StatusReasonMethodNotAllowed,
			"a view does not accept %s of %s: a syncer may only report (PUT …/%s/NAME/status, POST …/%s/NAME/events, PUT …/%s/%s/status)",
			r.Method, r.URL.Path, boundObjects, boundObjects, clusters, r.cluster))
	}
}

// resource parses the path as Kubernetes defines it: /api/v1 or /apis/GROUP/VERSION, then
// namespaces/NAMESPACE if there is one, then the resource, a name, a subresource.
func (r *request) resource() (what objectKey, name, sub string, ok bool) {
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

// selector returns which objects a list or a watch selects.
func (r *request) selector(what objectKey) (func(objectKey) bool, error) {
	q := r.URL.Query()
	if q.Get("labelSelector") != "" {
		return nil, newStatusError(metav1.StatusReasonBadRequest, "a view supports selection by namespace and metadata.name only: remove labelSelector")
	}
	name := what.Name
	if selector := q.Get("fieldSelector"); selector != "" {
		only, ok := strings.CutPrefix(strings.Replace(selector, "==", "=", 1), "metadata.name=")
		if !ok || strings.ContainsAny(only, ",=!") {
			return nil, newStatusError(metav1.StatusReasonBadRequest, "a view supports selection by namespace and metadata.name only: remove fieldSelector %q", selector)
		}
		name = only
	}
	return func(p objectKey) bool {
		return p.resource == what.resource && (what.Namespace == "" || p.Namespace == what.Namespace) && (name == "" || p.Name == name)
	}, nil
}

// maxBodyBytes limits a report: it is the limit of the control plane for an object.
const maxBodyBytes = 3 << 20

// read decodes the body of a request.
func (r *request) read(w http.ResponseWriter, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		return newStatusError(metav1.StatusReasonBadRequest, "the request cannot be read: %s", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return newStatusError(metav1.StatusReasonBadRequest, "the request is not valid JSON for this resource: %s", err)
	}
	return nil
}

// groupVersion returns the apiVersion of a resource.
func groupVersion(r schema.GroupVersionResource) string { return r.GroupVersion().String() }

func (p objectKey) String() string {
	return fmt.Sprintf("%s %s", p.resource.Resource, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
}
