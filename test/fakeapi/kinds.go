package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Kind is a type of objects that a Server serves.
type Kind struct {
	Group, Version, Kind, Plural string
	// ClusterScoped objects are in no namespace.
	ClusterScoped bool
	// NoStatus says that status is no subresource: it is written with the rest.
	NoStatus bool

	types typesFunc // nil: lists are atomic
}

// typesFunc returns how lists of a kind are merged. It reads the kind's schema when it is called
// first: most kinds of a test are never written.
type typesFunc func() (managedfields.TypeConverter, error)

// GVK is the kind with its group and version.
func (k Kind) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}

// GVR is the resource of the kind.
func (k Kind) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Plural}
}

// clusterScoped lists the built-in kinds without a namespace that tests use.
var clusterScoped = map[string]bool{
	"Namespace": true, "Node": true, "PersistentVolume": true, "ClusterRole": true, "ClusterRoleBinding": true, "StorageClass": true,
	"PriorityClass": true, "IngressClass": true, "RuntimeClass": true, "CertificateSigningRequest": true,
	"MutatingWebhookConfiguration": true, "ValidatingWebhookConfiguration": true, "CustomResourceDefinition": true, "APIService": true,
}

// withoutStatus lists the built-in kinds without a subresource status that tests use.
var withoutStatus = map[string]bool{
	"ConfigMap": true, "Secret": true, "Event": true, "ServiceAccount": true, "Lease": true, "Role": true, "RoleBinding": true,
	"ClusterRole": true, "ClusterRoleBinding": true, "Endpoints": true, "EndpointSlice": true,
}

// BuiltIn is a kind of Kubernetes itself, such as BuiltIn("apps", "v1", "Deployment", "deployments").
func BuiltIn(group, version, kind, plural string) Kind {
	k := Kind{Group: group, Version: version, Kind: kind, Plural: plural, ClusterScoped: clusterScoped[kind], NoStatus: withoutStatus[kind]}
	if scheme.Scheme.Recognizes(k.GVK()) {
		k.types = func() (managedfields.TypeConverter, error) {
			return applyconfigurations.NewTypeConverter(scheme.Scheme), nil
		}
	}
	return k
}

// Custom is a custom kind without a schema: server-side apply takes its lists as a whole.
func Custom(kind string, resource schema.GroupVersionResource) Kind {
	return Kind{Group: resource.Group, Version: resource.Version, Kind: kind, Plural: resource.Resource}
}

// BuiltIns are kinds of Kubernetes itself by their names, such as "v1 ConfigMap" and
// "apps/v1 Deployment".
func BuiltIns(names ...string) []Kind {
	out := make([]Kind, len(names))
	for i, name := range names {
		version, kind, _ := strings.Cut(name, " ")
		gvk := schema.FromAPIVersionAndKind(version, kind)
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		out[i] = BuiltIn(gvk.Group, gvk.Version, gvk.Kind, plural.Resource)
	}
	return out
}

// CRDsOf is CRDs for a package that embeds its manifests.
func CRDsOf(t testing.TB, manifests func() ([][]byte, error)) []Kind {
	t.Helper()
	all, err := manifests()
	if err != nil {
		t.Fatalf("read the CustomResourceDefinitions: %v", err)
	}
	return CRDs(t, all...)
}

// crd is what of a CustomResourceDefinition a Kind needs.
type crd struct {
	Kind string
	Spec struct {
		Group, Scope string
		Names        struct{ Kind, Plural string }
		Versions     []struct {
			Name   string
			Schema struct {
				OpenAPIV3Schema json.RawMessage `json:"openAPIV3Schema"`
			}
			Subresources struct{ Status *struct{} }
		}
	}
}

// parsed has the kinds of the manifests that this process has read. Each test starts servers of its
// own, and most serve the same kinds.
var parsed sync.Map // of a manifest to its []Kind

// CRDs are the kinds that CustomResourceDefinitions define, each in all of its versions. Other
// documents in the YAML are left out.
func CRDs(t testing.TB, manifests ...[]byte) []Kind {
	t.Helper()
	var out []Kind
	for _, manifest := range manifests {
		kinds, known := parsed.Load(string(manifest))
		if !known {
			read, err := parse(manifest)
			if err != nil {
				t.Fatalf("read a CustomResourceDefinition: %v", err)
			}
			kinds, _ = parsed.LoadOrStore(string(manifest), read)
		}
		out = append(out, kinds.([]Kind)...)
	}
	return out
}

func parse(manifest []byte) ([]Kind, error) {
	var out []Kind
	documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		var c crd
		err := documents.Decode(&c)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if c.Kind == "CustomResourceDefinition" {
			out = append(out, c.kinds()...)
		}
	}
}

func (c crd) kinds() []Kind {
	var out []Kind
	for _, v := range c.Spec.Versions {
		k := Kind{Group: c.Spec.Group, Version: v.Name, Kind: c.Spec.Names.Kind, Plural: c.Spec.Names.Plural,
			ClusterScoped: c.Spec.Scope == "Cluster", NoStatus: v.Subresources.Status == nil}
		if len(v.Schema.OpenAPIV3Schema) > 0 {
			k.types = sync.OnceValues(func() (managedfields.TypeConverter, error) { return typesOf(k.GVK(), v.Schema.OpenAPIV3Schema) })
		}
		out = append(out, k)
	}
	return out
}

// typesOf is how server-side apply merges objects of a schema. Like a kube-apiserver, it knows
// which lists are maps by x-kubernetes-list-type.
func typesOf(gvk schema.GroupVersionKind, raw []byte) (managedfields.TypeConverter, error) {
	s := &spec.Schema{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("the schema of %s: %w", gvk, err)
	}
	s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}})
	text := spec.StringProperty()
	for field, p := range map[string]*spec.Schema{"apiVersion": text, "kind": text, "metadata": objectMeta()} {
		s.SetProperty(field, *p)
	}
	name := strings.Join([]string{gvk.Group, gvk.Version, gvk.Kind}, ".")
	return managedfields.NewTypeConverter(map[string]*spec.Schema{name: s}, true)
}

// objectMeta is the schema of ObjectMeta as far as merging depends on it.
func objectMeta() *spec.Schema {
	m := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	for field, key := range map[string]string{"finalizers": "", "ownerReferences": "uid"} {
		list := spec.ArrayProperty(spec.StringProperty())
		if key == "" {
			list.AddExtension("x-kubernetes-list-type", "set")
		} else {
			item := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
			item.SetProperty(key, *spec.StringProperty())
			item.AddExtension("x-kubernetes-preserve-unknown-fields", true)
			list = spec.ArrayProperty(item)
			list.AddExtension("x-kubernetes-list-type", "map")
			list.AddExtension("x-kubernetes-list-map-keys", []any{key})
		}
		m.SetProperty(field, *list)
	}
	for _, field := range []string{"labels", "annotations"} {
		m.SetProperty(field, *spec.MapProperty(spec.StringProperty()))
	}
	m.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return m
}

// identity converts, defaults and creates objects that are unstructured already, for upstream's
// field manager.
type identity struct{}

func (identity) Convert(in, out, context any) error { return errors.New("not needed") }

func (identity) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (identity) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

func (identity) Default(runtime.Object) {}
