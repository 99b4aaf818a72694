package negotiation

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/atoll-dev/atoll/fleet/schema"
)

// TestFieldsOfBuiltInKinds sets every field of Kubernetes' own Go types: the schemas from their OpenAPI
// documents must know all of them. Then it adds an unknown field to each nested object. Each of these
// must be reported by its path.
func TestFieldsOfBuiltInKinds(t *testing.T) {
	if err := apiextensionsv1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	kinds, fields := 0, 0
	for file, doc := range documents(t) {
		if doc.Paths == nil {
			continue
		}
		for path, item := range doc.Paths.Paths {
			if item.Get == nil || !strings.HasSuffix(path, "/{name}") || strings.Contains(path, "/watch/") {
				continue
			}
			gvk := kindOf(item.Get.Extensions["x-kubernetes-group-version-kind"])
			created, err := scheme.Scheme.New(gvk)
			if err != nil {
				continue // aggregated, or without a Go type here
			}
			got, err := schema.FromOpenAPI(doc, gvk)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			kinds++
			fields += everyField(t, gvk, got.Schema, created)
		}
	}
	t.Logf("%d kinds, %d nested objects with an unknown field", kinds, fields)
	if kinds < 60 {
		t.Errorf("found only %d kinds", kinds)
	}
}

func everyField(t *testing.T, gvk runtimeschema.GroupVersionKind, p *schema.Props, created runtime.Object) int {
	t.Helper()
	full := &filling{}
	v := reflect.ValueOf(created).Elem()
	full.fill(v)
	object, err := asJSON(created)
	if err != nil {
		t.Fatalf("%s: %v", gvk, err)
	}
	object["apiVersion"], object["kind"] = gvk.GroupVersion().String(), gvk.Kind
	if got := schema.UnknownPaths(p, object); len(got) > 0 {
		t.Errorf("%s: fields %v of its Go type are unknown", gvk, got)
	}
	var want []string
	invent(v, object, "", &want)
	// All objects have metadata, which is not compared with clusters.
	want = slices.DeleteFunc(want, func(path string) bool { return strings.HasPrefix(path, ".metadata.") })
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(schema.UnknownPaths(p, object)))); diff != "" {
		t.Errorf("%s: unknown (-want +got):\n%s", gvk, diff)
	}
	return len(want)
}

func asJSON(v any) (object map[string]any, err error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return object, json.Unmarshal(raw, &object)
}

// A filling sets every field. It recurses once into types that contain themselves.
type filling struct{ within []reflect.Type }

func (f *filling) fill(v reflect.Value) {
	if v.CanAddr() && special(v.Addr().Interface()) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		to := reflect.New(v.Type().Elem())
		if f.enter(to.Type().Elem()) {
			f.fill(to.Elem())
			f.leave()
			v.Set(to)
		}
	case reflect.Slice:
		list := reflect.MakeSlice(v.Type(), 1, 1)
		if f.enter(v.Type().Elem()) {
			f.fill(list.Index(0))
			f.leave()
			v.Set(list)
		}
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		if f.enter(v.Type().Elem()) {
			f.fill(value)
			f.leave()
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1.5)
	}
}

func (f *filling) enter(t reflect.Type) bool {
	times := 0
	for _, w := range f.within {
		if w == t {
			times++
		}
	}
	if t.Kind() == reflect.Struct && times > 1 {
		return false
	}
	f.within = append(f.within, t)
	return true
}

func (f *filling) leave() { f.within = f.within[:len(f.within)-1] }

// special sets values of types with their own JSON encoding, and reports whether v has such a type.
func special(v any) bool {
	switch v := v.(type) {
	case *metav1.Time:
		*v = metav1.NewTime(time.Unix(1, 0))
	case *metav1.MicroTime:
		*v = metav1.NewMicroTime(time.Unix(1, 0))
	case *resource.Quantity:
		*v = resource.MustParse("1Gi")
	case *intstr.IntOrString:
		*v = intstr.FromString("50%")
	case *runtime.RawExtension:
		v.Raw = []byte(`{"any":{"thing":1}}`)
	case *metav1.FieldsV1:
		v.Raw = []byte(`{"f:spec":{}}`)
	case *apiextensionsv1.JSON:
		v.Raw = []byte(`{"any":{"thing":1}}`)
	default:
		return false
	}
	return true
}

// invent adds an unknown field to every object in value, and appends their paths to want.
func invent(v reflect.Value, value any, path string, want *[]string) {
	if v.CanAddr() && special(v.Addr().Interface()) {
		return // a schema describes them as one value
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			invent(v.Elem(), value, path, want)
		}
	case reflect.Slice:
		list, _ := value.([]any) // []byte is encoded as a string
		for i := range list {
			invent(v.Index(i), list[i], fmt.Sprintf("%s[%d]", path, i), want)
		}
	case reflect.Map:
		entries, _ := value.(map[string]any)
		for _, key := range v.MapKeys() {
			entry := reflect.New(v.Type().Elem()).Elem()
			entry.Set(v.MapIndex(key))
			invent(entry, entries[key.String()], path+"."+key.String(), want)
		}
	case reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok {
			return
		}
		inventIn(v, object, path, want)
		object["invented"] = map[string]any{"further": "in"}
		*want = append(*want, path+".invented")
	}
}

func inventIn(v reflect.Value, object map[string]any, path string, want *[]string) {
	if union := reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool](); v.Type() == union || v.Type() == reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray]() || v.Type() == reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray]() {
		inventIn(v.FieldByName("Schema").Elem(), object, path, want) // its JSON encoding is the schema's
		return
	}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch value, exists := object[name]; {
		case name == "" && v.Type().Field(i).Anonymous:
			inventIn(v.Field(i), object, path, want)
		case exists:
			invent(v.Field(i), value, path+"."+name, want)
		}
	}
}
