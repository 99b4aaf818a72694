package fakeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"
)

func (s *Server) write(c *call) (answer, error) {
	switch c.Verb {
	case "create":
		return s.create(c)
	case "update":
		u, err := c.object()
		if err != nil {
			return nil, err
		}
		live, err := s.find(c)
		if err != nil {
			return nil, err
		}
		return s.replace(c, live, u)
	case "patch":
		live, err := s.find(c)
		if err != nil {
			return nil, err
		}
		next, err := c.patched(live.json())
		if err != nil {
			return nil, err
		}
		return s.replace(c, live, next)
	case "apply":
		return s.apply(c)
	case "delete":
		return s.delete(c)
	}
	return nil, apierrors.NewMethodNotSupported(c.Resource.GroupResource(), c.http.Method)
}

// object is the object that a request carries.
func (c *call) object() (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	// Not by way of unstructured's decoder, which wants a kind: typed clients send none.
	err := unmarshal(c.body, &u.Object)
	if err != nil && c.Verb == "apply" {
		var raw []byte
		if raw, err = yaml.YAMLToJSON(c.body); err == nil {
			err = unmarshal(raw, &u.Object)
		}
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if kind := u.GetKind(); kind != "" && kind != c.kind.Kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the object is a %s, and the path is of a %s", kind, c.kind.Kind))
	}
	u.SetGroupVersionKind(c.kind.GVK())
	if c.Name != "" && u.GetName() != c.Name && !(c.Verb == "apply" && u.GetName() == "") {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", u.GetName(), c.Name))
	}
	if !c.kind.ClusterScoped {
		u.SetNamespace(c.Namespace)
	}
	return u, nil
}

func (s *Server) create(c *call) (answer, error) {
	u, err := c.object()
	if err != nil {
		return nil, err
	}
	if u.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if u.GetName() == "" {
		if u.GetGenerateName() == "" {
			return nil, apierrors.NewBadRequest("name or generateName is required")
		}
		u.SetName(fmt.Sprintf("%s%d", u.GetGenerateName(), s.uids+1)) // with the number of its UID
	}
	c.Name = u.GetName()
	c.key.name.Name = c.Name
	if s.stored(c.key) != nil {
		return nil, apierrors.NewAlreadyExists(c.Resource.GroupResource(), c.Name)
	}
	if !c.kind.NoStatus {
		delete(u.Object, "status")
	}
	u.SetUID("")
	u.SetGeneration(0)
	s.identify(u)
	fields, err := s.fields(c)
	if err != nil {
		return nil, err
	}
	empty := &unstructured.Unstructured{Object: map[string]any{}}
	empty.SetGroupVersionKind(c.kind.GVK())
	u = fields.UpdateNoErrors(empty, u, c.manager()).(*unstructured.Unstructured)
	if c.DryRun {
		return &object{Unstructured: u}, nil
	}
	return s.store(c.key, u), nil
}

// replace puts next in the place of a stored object, as far as the request may.
func (s *Server) replace(c *call, live *object, next *unstructured.Unstructured) (answer, error) {
	if v := next.GetResourceVersion(); v != "" && v != live.GetResourceVersion() {
		return nil, apierrors.NewConflict(c.Resource.GroupResource(), c.Name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if uid := next.GetUID(); uid != "" && uid != live.GetUID() {
		return nil, apierrors.NewConflict(c.Resource.GroupResource(), c.Name, fmt.Errorf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, live.GetUID()))
	}
	next = c.reset(live.Unstructured, next)
	s.inherit(live.Unstructured, next)
	fields, err := s.fields(c)
	if err != nil {
		return nil, err
	}
	next = fields.UpdateNoErrors(copied(live.Unstructured), next, c.manager()).(*unstructured.Unstructured)
	return s.keep(c, live, next)
}

// reset undoes in next what a request may not change: the status, or all but the status.
func (c *call) reset(live, next *unstructured.Unstructured) *unstructured.Unstructured {
	out, status := next, live
	switch {
	case c.Subresource == "status":
		out, status = copied(live), next
		out.SetManagedFields(next.GetManagedFields())
	case c.kind.NoStatus:
		return next
	}
	if s := status.Object["status"]; s != nil {
		out.Object["status"] = s
	} else {
		delete(out.Object, "status")
	}
	return out
}

// keep stores the result of an update unless nothing has changed.
func (s *Server) keep(c *call, live *object, next *unstructured.Unstructured) (answer, error) {
	next.SetResourceVersion(live.GetResourceVersion())
	if same(live.Unstructured, next) {
		return live, nil
	}
	if c.DryRun {
		return &object{Unstructured: next}, nil
	}
	return s.store(c.key, next), nil
}

// patched is an object with a patch applied to it.
func (c *call) patched(before json.RawMessage) (*unstructured.Unstructured, error) {
	var after []byte
	var err error
	switch contentType, _, _ := strings.Cut(c.http.Header.Get("Content-Type"), ";"); types.PatchType(contentType) {
	case types.JSONPatchType:
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(c.body); err == nil {
			after, err = p.Apply(before)
		}
	case types.StrategicMergePatchType:
		typed, notTyped := scheme.Scheme.New(c.kind.GVK())
		if notTyped != nil {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
				Message: "strategic merge patches are of built-in kinds alone"}}
		}
		after, err = strategicpatch.StrategicMergePatch(before, c.body, typed)
	default:
		after, err = jsonpatch.MergePatch(before, c.body)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	next := &unstructured.Unstructured{}
	if err := unmarshal(after, &next.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return next, nil
}

func (s *Server) apply(c *call) (answer, error) {
	u, err := c.object()
	if err != nil {
		return nil, err
	}
	u.SetName(c.Name)
	fields, err := s.fields(c)
	if err != nil {
		return nil, err
	}
	live, missing := s.find(c)
	var start *unstructured.Unstructured
	if missing != nil {
		if uid := u.GetUID(); uid != "" || c.Subresource != "" {
			return nil, missing
		}
		start = &unstructured.Unstructured{Object: map[string]any{}}
		start.SetGroupVersionKind(c.kind.GVK())
		start.SetName(c.Name)
		if !c.kind.ClusterScoped {
			start.SetNamespace(c.Namespace)
		}
	} else {
		start = copied(live.Unstructured)
		if uid := u.GetUID(); uid != "" && uid != live.GetUID() {
			return nil, apierrors.NewConflict(c.Resource.GroupResource(), c.Name, fmt.Errorf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, live.GetUID()))
		}
		if v := u.GetResourceVersion(); v != "" && v != live.GetResourceVersion() {
			return nil, apierrors.NewConflict(c.Resource.GroupResource(), c.Name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
		}
	}
	u.SetUID("")
	u.SetResourceVersion("")
	unstructured.RemoveNestedField(u.Object, "metadata", "uid")
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	if c.Manager == "" {
		return nil, apierrors.NewBadRequest("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch")
	}
	merged, err := fields.Apply(start, u, c.Manager, c.http.URL.Query().Get("force") == "true")
	if err != nil {
		return nil, err
	}
	next := merged.(*unstructured.Unstructured)
	if missing != nil {
		s.identify(next)
		if c.DryRun {
			return &object{Unstructured: next}, nil
		}
		return s.store(c.key, next), nil
	}
	next = c.reset(live.Unstructured, next)
	s.inherit(live.Unstructured, next)
	return s.keep(c, live, next)
}

func (s *Server) delete(c *call) (answer, error) {
	live, err := s.find(c)
	if err != nil {
		return nil, err
	}
	var options metav1.DeleteOptions
	if len(c.body) > 0 {
		if err := json.Unmarshal(c.body, &options); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if p := options.Preconditions; p != nil {
		if p.UID != nil && *p.UID != live.GetUID() {
			return nil, apierrors.NewConflict(c.Resource.GroupResource(), c.Name, fmt.Errorf("Precondition failed: UID in precondition: %s, UID in object meta: %s", *p.UID, live.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != live.GetResourceVersion() {
			return nil, apierrors.NewConflict(c.Resource.GroupResource(), c.Name, fmt.Errorf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", *p.ResourceVersion, live.GetResourceVersion()))
		}
	}
	if c.DryRun || len(options.DryRun) > 0 {
		c.DryRun = true
		return live, nil
	}
	return s.finalize(c.key), nil
}

// manager is the field manager of a write that names none: what the client calls itself.
func (c *call) manager() string {
	if c.Manager != "" {
		return c.Manager
	}
	name, _, _ := strings.Cut(c.http.UserAgent(), "/")
	return name
}

// managerKey is what a field manager depends on.
type managerKey struct {
	kind        schema.GroupVersionKind
	subresource string
}

// fields is upstream's field manager for a kind. The request's manager does not get ownership of
// fields that the request resets.
func (s *Server) fields(c *call) (*managedfields.FieldManager, error) {
	gvk := c.kind.GVK()
	if m := s.managers[managerKey{gvk, c.Subresource}]; m != nil {
		return m, nil
	}
	converter := managedfields.NewDeducedTypeConverter()
	if types := s.types[gvk]; types != nil {
		var err error
		if converter, err = types(); err != nil {
			return nil, err
		}
	}
	version := fieldpath.APIVersion(gvk.GroupVersion().String())
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	switch {
	case c.Subresource == "status":
		reset[version] = fieldpath.NewIncludeMatcherFilter(fieldpath.MakePrefixMatcherOrDie("status"))
	case !c.kind.NoStatus:
		reset[version] = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	}
	m, err := managedfields.NewDefaultCRDFieldManager(converter, identity{}, identity{}, creator{}, gvk, gvk.GroupVersion(), c.Subresource, reset)
	if err == nil {
		s.managers[managerKey{gvk, c.Subresource}] = m
	}
	return m, err
}

// creator makes empty objects for upstream's field manager.
type creator struct{}

func (creator) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(kind)
	return u, nil
}
