package tenancy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func workspaceWith(spec any) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}
	if spec != nil {
		w.Object["spec"] = spec
	}
	return w
}

// TestSetType: a new Workspace has the contents of its type and the limits that it leaves out, and never contents that a user wrote.
func TestSetType(t *testing.T) {
	small := &v1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: v1alpha1.WorkspaceTypeSpec{
		Limits:            &v1alpha1.WorkspaceLimits{Objects: ptr.To(int64(100)), Bytes: ptr.To(resource.MustParse("1Mi"))},
		WorkspaceContents: v1alpha1.WorkspaceContents{Namespaces: []v1alpha1.InitialNamespace{{Name: "shop"}}}}}
	initial := map[string]any{"namespaces": []any{map[string]any{"name": "shop"}}}
	forged := map[string]any{"namespaces": []any{map[string]any{"name": "forged"}}}
	type object = map[string]any
	for name, c := range map[string]struct {
		of         *v1alpha1.WorkspaceType
		spec, want any
	}{
		"no type":              {nil, nil, nil},
		"no type, forged":      {nil, object{"initial": forged}, object{}},
		"nothing given":        {small, nil, object{"type": "small", "limits": object{"objects": int64(100), "bytes": "1Mi"}, "initial": initial}},
		"all limits given":     {small, object{"limits": object{"objects": int64(500), "bytes": int64(1)}}, object{"type": "small", "limits": object{"objects": int64(500), "bytes": int64(1)}, "initial": initial}},
		"one limit given":      {small, object{"limits": object{"objects": int64(0)}}, object{"type": "small", "limits": object{"objects": int64(0), "bytes": "1Mi"}, "initial": initial}},
		"forged":               {small, object{"initial": forged}, object{"type": "small", "limits": object{"objects": int64(100), "bytes": "1Mi"}, "initial": initial}},
		"a type without these": {&v1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}, object{"initial": forged}, object{"type": "empty"}},
		"a wrong spec":         {small, "text", "text"},
		"wrong limits":         {small, object{"limits": "text"}, object{"type": "small", "limits": "text", "initial": initial}},
	} {
		w := workspaceWith(c.spec)
		if err := SetType(w, c.of); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := w.Object["spec"]; !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestKeepType: an update changes the contents never, and drops the type not by leaving it out.
func TestKeepType(t *testing.T) {
	type object = map[string]any
	contents := object{"namespaces": []any{object{"name": "shop"}}}
	old := object{"type": "small", "initial": contents}
	for name, c := range map[string]struct{ old, spec, want any }{
		"left out":         {old, object{"limits": object{}}, object{"limits": object{}, "type": "small", "initial": contents}},
		"no spec":          {old, nil, old},
		"empty":            {old, object{"type": ""}, old},
		"another type":     {old, object{"type": "large"}, object{"type": "large", "initial": contents}}, // which admission rejects
		"forged":           {old, object{"initial": object{}}, old},
		"never had a type": {object{}, object{"initial": contents}, object{}},
		"no spec at all":   {nil, nil, nil},
		"a wrong spec":     {old, "text", "text"},
	} {
		w := workspaceWith(c.spec)
		KeepType(workspaceWith(c.old), w)
		if got := w.Object["spec"]; !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestKeepAPIs: what the server recorded belongs to a list that is the same.
func TestKeepAPIs(t *testing.T) {
	api := func(path, name, uid string) v1alpha1.InitialAPI {
		return v1alpha1.InitialAPI{ExportReference: v1alpha1.ExportReference{Path: path, Name: name, WorkspaceUID: uid}}
	}
	for name, c := range map[string]struct {
		is   []v1alpha1.InitialAPI
		keep bool
	}{
		"the same":         {[]v1alpha1.InitialAPI{api("apis", "one", "forged"), api("apis", "two", "")}, true},
		"another order":    {[]v1alpha1.InitialAPI{api("apis", "two", ""), api("apis", "one", "")}, true},
		"fewer":            {[]v1alpha1.InitialAPI{api("apis", "one", "")}, false},
		"another path":     {[]v1alpha1.InitialAPI{api("other", "one", ""), api("apis", "two", "")}, false},
		"another name":     {[]v1alpha1.InitialAPI{api("apis", "three", ""), api("apis", "two", "")}, false},
		"more":             {[]v1alpha1.InitialAPI{api("apis", "one", ""), api("apis", "two", ""), api("apis", "three", "")}, false},
		"one for both":     {[]v1alpha1.InitialAPI{api("apis", "one", ""), api("apis", "one", "")}, true}, // which the schema rejects
		"none of the list": {nil, false},
	} {
		old, is := &v1alpha1.WorkspaceType{}, &v1alpha1.WorkspaceType{}
		old.Spec.APIs, is.Spec.APIs = []v1alpha1.InitialAPI{api("apis", "one", "uid-1"), api("apis", "two", "uid-2")}, c.is
		if got := KeepAPIs(old, is); got != c.keep {
			t.Errorf("%s: %v", name, got)
		}
		uids := map[string]string{"one": "uid-1", "two": "uid-2"}
		for _, kept := range is.Spec.APIs {
			if c.keep && kept.WorkspaceUID != uids[kept.Name] {
				t.Errorf("%s: %+v", name, kept)
			}
		}
	}
}

// TestCheckType: what the schema cannot express is refused, and the message names the field.
func TestCheckType(t *testing.T) {
	namespace := func(n v1alpha1.InitialNamespace) v1alpha1.WorkspaceContents {
		return v1alpha1.WorkspaceContents{Namespaces: []v1alpha1.InitialNamespace{n}}
	}
	access := func(a v1alpha1.InitialAccess) v1alpha1.WorkspaceContents {
		return v1alpha1.WorkspaceContents{Access: []v1alpha1.InitialAccess{a}}
	}
	large := map[string]string{}
	for _, key := range []string{"a", "b"} {
		large[key] = strings.Repeat("x", maxContents/2)
	}
	for want, contents := range map[string]v1alpha1.WorkspaceContents{
		"": {Namespaces: []v1alpha1.InitialNamespace{{Name: "shop", Labels: map[string]string{"a": "b", "kubernetes.io/metadata.name": "shop"}}},
			Access: []v1alpha1.InitialAccess{{Role: "system:x", Users: []string{"bob"}}, {Role: "view", Groups: []string{"system:authenticated"}}}},
		"spec.namespaces[0].name: Invalid value: \"Shop\"":                    namespace(v1alpha1.InitialNamespace{Name: "Shop"}),
		"every workspace has this namespace":                                  namespace(v1alpha1.InitialNamespace{Name: "kube-system"}),
		"spec.namespaces[0].labels: Invalid value: \"a b\"":                   namespace(v1alpha1.InitialNamespace{Name: "shop", Labels: map[string]string{"k": "a b"}}),
		"the server sets this label":                                          namespace(v1alpha1.InitialNamespace{Name: "shop", Labels: map[string]string{"kubernetes.io/metadata.name": "other"}}),
		"spec.namespaces[0].annotations: Invalid value: \"a b\"":              namespace(v1alpha1.InitialNamespace{Name: "shop", Annotations: map[string]string{"a b": ""}}),
		"spec.access[0].role: Invalid value: \"a/b\"":                         access(v1alpha1.InitialAccess{Role: "a/b", Users: []string{"bob"}}),
		"spec.access[0].users: Required value":                                access(v1alpha1.InitialAccess{Role: "view"}),
		"spec.access[0].users[1]: Invalid value: \"system:serviceaccount:a:b": access(v1alpha1.InitialAccess{Role: "view", Users: []string{"bob", "system:serviceaccount:a:b"}}),
		"spec: Too long": namespace(v1alpha1.InitialNamespace{Name: "shop", Annotations: large}),
	} {
		problems := CheckType(&v1alpha1.WorkspaceType{Spec: v1alpha1.WorkspaceTypeSpec{WorkspaceContents: contents}})
		if want == "" && len(problems) == 0 {
			continue
		}
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), want) {
			t.Errorf("want %q: %v", want, problems)
		}
	}
}
