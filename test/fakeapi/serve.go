package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// call is one request, parsed.
type call struct {
	Request
	kind     Kind
	key      key
	metadata bool // only the metadata of objects is wanted
	body     []byte
	http     *http.Request
	serve    Subresource // nil if the Server itself serves it
}

// Subresource serves a subresource of an object, as an aggregated API server or an extension does.
type Subresource func(w http.ResponseWriter, r *http.Request, namespace, name string)

// ServeSubresource has requests for a subresource of a kind served. Hooks are asked first.
func (s *Server) ServeSubresource(resource schema.GroupVersionResource, name string, serve Subresource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subresources[resource.GroupResource().String()+"/"+name] = serve
}

// errNotServed is returned for a path of no kind.
var errNotServed = errors.New("no such path")

// ServeHTTP is the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.discover(w, r.URL.Path) {
		return
	}
	c, err := s.parse(r)
	if err == nil {
		err = s.ask(c)
	}
	if errors.Is(err, errNotServed) {
		http.NotFound(w, r) // not a Status: clients tell a missing type from a missing object by that
		return
	}
	if err != nil {
		refuse(w, err)
		return
	}
	if c.serve != nil {
		c.serve(w, r, c.Namespace, c.Name)
		return
	}
	if c.Verb == "watch" {
		s.watch(w, c)
		return
	}
	s.mu.Lock()
	answer, err := s.do(c)
	s.mu.Unlock()
	if err != nil {
		refuse(w, err)
		return
	}
	code := http.StatusOK
	if c.Verb == "create" {
		code = http.StatusCreated
	}
	respond(w, code, answer.encode(c))
}

// ask lets the hooks refuse a request.
func (s *Server) ask(c *call) error {
	s.mu.Lock()
	hooks := slices.Clone(s.hooks)
	s.mu.Unlock()
	if len(hooks) > 0 {
		_ = json.Unmarshal(c.body, &c.Object) // a body that is no object is rejected where it is used
	}
	for _, h := range hooks {
		if status := h(c.Request); status != nil {
			return &apierrors.StatusError{ErrStatus: *status}
		}
	}
	return nil
}

// parse reads a request: /api/VERSION or /apis/GROUP/VERSION, then [namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]].
func (s *Server) parse(r *http.Request) (*call, error) {
	c := &call{http: r, metadata: strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		c.Resource.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		c.Resource.Group, c.Resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return nil, errNotServed
	}
	// A namespace is an object too: /namespaces/NAME and its status are of itself.
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		c.Namespace, parts = parts[1], parts[2:]
	}
	for i, part := range []*string{&c.Resource.Resource, &c.Name, &c.Subresource} {
		if i < len(parts) {
			*part = parts[i]
		}
	}
	s.mu.Lock()
	kind, served := s.kinds[c.Resource]
	c.serve = s.subresources[c.Resource.GroupResource().String()+"/"+c.Subresource]
	s.mu.Unlock()
	if !served || c.serve == nil && c.Subresource != "" && (c.Subresource != "status" || kind.NoStatus) {
		return nil, errNotServed
	}
	c.kind, c.key = kind, keyOf(c.Resource, c.Namespace, c.Name)
	var err error
	if c.body, err = io.ReadAll(io.LimitReader(r.Body, 8<<20)); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	c.verb()
	c.DryRun, c.Manager = len(r.URL.Query()["dryRun"]) > 0, r.URL.Query().Get("fieldManager")
	c.User = r.Header.Get("Impersonate-User")
	r.Body = io.NopCloser(bytes.NewReader(c.body))
	return c, nil
}

// verb is the API's verb of an HTTP method.
func (c *call) verb() {
	q := c.http.URL.Query()
	switch c.http.Method {
	case http.MethodGet:
		switch {
		case q.Get("watch") == "true" || q.Get("watch") == "1":
			c.Verb = "watch"
		case c.Name == "":
			c.Verb = "list"
		default:
			c.Verb = "get"
		}
	case http.MethodPost:
		c.Verb = "create"
	case http.MethodPut:
		c.Verb = "update"
	case http.MethodDelete:
		c.Verb = "delete"
	case http.MethodPatch:
		c.Verb = "patch"
		if strings.HasPrefix(c.http.Header.Get("Content-Type"), "application/apply-patch+") {
			c.Verb = "apply"
		}
	}
}

// answer is an object or a list.
type answer interface {
	// encode returns the answer in the form that the client asked for.
	encode(*call) json.RawMessage
}

// do serves all verbs but watch.
func (s *Server) do(c *call) (answer, error) {
	switch c.Verb {
	case "get":
		return s.find(c)
	case "list":
		return s.list(c)
	}
	answer, err := s.write(c)
	if err == nil {
		s.note(c)
	}
	return answer, err
}

func (s *Server) note(c *call) {
	line := c.Verb + " " + c.Resource.Resource
	if c.Subresource != "" {
		line += "/" + c.Subresource
	}
	line += " " + join(c.Namespace, c.Name)
	if c.DryRun {
		line += " (dry run)"
	}
	s.writes = append(s.writes, line)
}

func (s *Server) find(c *call) (*object, error) {
	if live := s.stored(c.key); live != nil {
		return live, nil
	}
	return nil, apierrors.NewNotFound(c.Resource.GroupResource(), c.Name)
}

// selection is what a list or watch asks for.
type selection struct {
	labels labels.Selector
	fields fields.Selector
}

func (c *call) selection() (selection, error) {
	q := c.http.URL.Query()
	out := selection{}
	var err error
	if out.labels, err = labels.Parse(q.Get("labelSelector")); err != nil {
		return out, apierrors.NewBadRequest(err.Error())
	}
	if out.fields, err = fields.ParseSelector(q.Get("fieldSelector")); err != nil {
		return out, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range out.fields.Requirements() {
		switch r.Field {
		case "metadata.name", "metadata.namespace":
			continue
		case "status.phase", "spec.nodeName":
			if c.kind.Kind == "Pod" {
				continue
			}
		case "involvedObject.uid", "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "reason":
			if c.kind.Kind == "Event" {
				continue
			}
		}
		return out, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", r.Field))
	}
	return out, nil
}

func (x selection) matches(o *object) bool {
	return o != nil && (x.labels.Empty() || x.labels.Matches(labels.Set(o.GetLabels()))) &&
		(x.fields.Empty() || x.fields.Matches(fieldsOf(o)))
}

func fieldsOf(o *object) fields.Set {
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	reason, _, _ := unstructured.NestedString(o.Object, "reason")
	involved := func(field string) string {
		value, _, _ := unstructured.NestedString(o.Object, "involvedObject", field)
		return value
	}
	node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
	return fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(), "status.phase": phase, "spec.nodeName": node, "reason": reason,
		"involvedObject.uid": involved("uid"), "involvedObject.kind": involved("kind"), "involvedObject.namespace": involved("namespace"), "involvedObject.name": involved("name")}
}

// list is the answer to a list.
type list struct {
	version int64
	rest    string // the token of the next page
	items   []*object
}

func (l list) encode(c *call) json.RawMessage {
	apiVersion, kind := c.kind.GVK().GroupVersion().String(), c.kind.Kind+"List"
	if c.metadata {
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatInt(l.version, 10), Continue: l.rest}
	out := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":%s,"items":[`, apiVersion, kind, encode(meta))
	for i, o := range l.items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, o.encode(c)...)
	}
	return append(out, "]}"...)
}

// list answers in pages if a limit is given. The token of the next page is the last key: the list
// is not a snapshot, as tests have no need of one.
func (s *Server) list(c *call) (answer, error) {
	chosen, err := c.selection()
	if err != nil {
		return nil, err
	}
	out := list{version: s.version}
	q := c.http.URL.Query()
	limit := 0
	_, _ = fmt.Sscan(q.Get("limit"), &limit)
	for _, o := range s.sorted(c.Resource.GroupResource(), c.Namespace) {
		at := o.GetNamespace() + "/" + o.GetName()
		if !chosen.matches(o) || at <= q.Get("continue") {
			continue
		}
		if limit > 0 && len(out.items) == limit {
			last := out.items[len(out.items)-1]
			out.rest = last.GetNamespace() + "/" + last.GetName()
			break
		}
		out.items = append(out.items, o)
	}
	return out, nil
}

// inVersion is an object as the versions of its kind all show it: there is no conversion.
func inVersion(u *unstructured.Unstructured, k Kind) *unstructured.Unstructured {
	if u.GroupVersionKind() == k.GVK() {
		return u
	}
	u = u.DeepCopy()
	u.SetGroupVersionKind(k.GVK())
	return u
}

func partial(u *unstructured.Unstructured) any {
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": u.Object["metadata"]}
}

func respond(w http.ResponseWriter, code int, answer json.RawMessage) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(answer) // a client that has gone away
}

func refuse(w http.ResponseWriter, err error) {
	status := apierrors.NewInternalError(err).Status()
	var refusal apierrors.APIStatus
	if errors.As(err, &refusal) {
		status = refusal.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	respond(w, int(status.Code), encode(status))
}

// discover answers requests for groups, versions and resources.
func (s *Server) discover(w http.ResponseWriter, path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/version":
		respond(w, http.StatusOK, encode(version.Info{GitVersion: "v1.34.0"}))
	case path == "/api":
		respond(w, http.StatusOK, encode(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}))
	case path == "/apis":
		respond(w, http.StatusOK, encode(s.groups()))
	case len(parts) == 2 && parts[0] == "api":
		respond(w, http.StatusOK, encode(s.resources(schema.GroupVersion{Version: parts[1]})))
	case len(parts) == 3 && parts[0] == "apis":
		list := s.resources(schema.GroupVersion{Group: parts[1], Version: parts[2]})
		if len(list.APIResources) == 0 {
			return false // no kind of it is served, which parse finds too
		}
		respond(w, http.StatusOK, encode(list))
	default:
		return false
	}
	return true
}

func (s *Server) groups() metav1.APIGroupList {
	out := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	groups := map[string][]metav1.GroupVersionForDiscovery{}
	for resource := range s.kinds {
		gv := resource.GroupVersion()
		v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		if gv.Group != "" && !slices.Contains(groups[gv.Group], v) {
			groups[gv.Group] = append(groups[gv.Group], v)
		}
	}
	for name, versions := range groups {
		slices.SortFunc(versions, func(a, b metav1.GroupVersionForDiscovery) int { return strings.Compare(a.Version, b.Version) })
		out.Groups = append(out.Groups, metav1.APIGroup{Name: name, Versions: versions, PreferredVersion: versions[0]})
	}
	slices.SortFunc(out.Groups, func(a, b metav1.APIGroup) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s *Server) resources(gv schema.GroupVersion) metav1.APIResourceList {
	out := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
	for resource, k := range s.kinds {
		if resource.GroupVersion() != gv {
			continue
		}
		out.APIResources = append(out.APIResources, metav1.APIResource{Name: k.Plural, SingularName: strings.ToLower(k.Kind), Kind: k.Kind, Namespaced: !k.ClusterScoped, Verbs: verbs})
		if !k.NoStatus {
			out.APIResources = append(out.APIResources, metav1.APIResource{Name: k.Plural + "/status", Kind: k.Kind, Namespaced: !k.ClusterScoped, Verbs: metav1.Verbs{"get", "patch", "update"}})
		}
		for at := range s.subresources {
			if name, is := strings.CutPrefix(at, resource.GroupResource().String()+"/"); is {
				out.APIResources = append(out.APIResources, metav1.APIResource{Name: k.Plural + "/" + name, Kind: k.Kind, Namespaced: !k.ClusterScoped, Verbs: metav1.Verbs{"get", "patch", "update"}})
			}
		}
	}
	slices.SortFunc(out.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return out
}
