package enginetest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Namespace is the namespace of all objects.
const Namespace = "shop"

// ThingRef returns the reference of a resource.
func ThingRef(name string) expr.Ref {
	return expr.Ref{Kind: expr.Resource, Type: "demo_thing", Namespace: Namespace, Name: name}
}

// ImageRef returns the reference of a data source.
func ImageRef(name string) expr.Ref {
	return expr.Ref{Kind: expr.Data, Type: "demo_image", Namespace: Namespace, Name: name}
}

// NewObject returns an object with a JSON spec.
func NewObject(ref expr.Ref, generation int64, spec string) *infra.Object {
	o := &infra.Object{Ref: ref, Group: "demo.providers.atoll.dev", Kind: "Thing", Plural: "things", UID: "uid-" + ref.Name,
		ResourceVersion: fmt.Sprint("o", generation), Generation: generation, Spec: []byte(spec)}
	if ref.Kind == expr.Data {
		o.Kind, o.Plural = "DataImage", "dataimages"
	}
	return o
}

// NewState returns a state with a value.
func NewState(t testing.TB, ref expr.Ref, version int, value cty.Value, secret []cty.Path, dependencies ...expr.Ref) *infra.State {
	t.Helper()
	text, err := ctyjson.Marshal(value, value.Type())
	if err != nil {
		t.Fatal(err)
	}
	s := &infra.State{Ref: ref, UID: "state-" + ref.Name, ResourceVersion: fmt.Sprint("s", version)}
	s.Spec = v1alpha1.ResourceStateSpec{
		Object: v1alpha1.StateOwner{Group: "demo.providers.atoll.dev", Kind: "Thing", Name: ref.Name, UID: "uid-" + ref.Name},
		Type:   ref.Type, Provider: "demo", ProviderConfig: "demo",
		Current: &v1alpha1.ResourceValue{SchemaVersion: 1, Value: text},
	}
	for _, path := range secret {
		s.Spec.Current.Sensitive = append(s.Spec.Current.Sensitive, providerapi.PathText(path))
	}
	for _, d := range dependencies {
		s.Spec.Current.Dependencies = append(s.Spec.Current.Dependencies, v1alpha1.StateName("things", "demo", d.Name))
	}
	return s
}

// RandomSpec returns a spec that refers to others, mostly to those of lower numbers, so that not
// everything is a cycle.
func RandomSpec(random *rand.Rand, ref expr.Ref, names int) string {
	other := func() string {
		var at int
		if _, err := fmt.Sscanf(ref.Name, "t%d", &at); err != nil || at == 0 || random.IntN(30) == 0 {
			at = names
		}
		if random.IntN(6) == 0 && ref.Kind == expr.Resource {
			return fmt.Sprintf(`data.demo_image["d%d"].id`, random.IntN(3))
		}
		return fmt.Sprintf(`demo_thing["t%d"].id`, random.IntN(at))
	}
	if ref.Kind == expr.Data {
		if random.IntN(4) == 0 {
			return fmt.Sprintf(`{"filter": %q}`, fmt.Sprintf(`${demo_thing["t%d"].content}`, random.IntN(2)))
		}
		return fmt.Sprintf(`{"filter": "x%d"}`, random.IntN(2))
	}
	spec := map[string]any{}
	switch random.IntN(4) {
	case 0:
		spec["content"] = fmt.Sprint("text ", random.IntN(3))
	case 1:
		spec["content"] = "${" + other() + "}"
	case 2:
		spec["content"] = "from ${" + other() + "}"
		spec["password"] = "${" + strings.Replace(other(), ".id", ".id", 1) + "}"
	}
	if random.IntN(3) == 0 {
		spec["zone"] = fmt.Sprint("z", random.IntN(2))
	}
	if random.IntN(5) == 0 {
		spec["depends_on"] = []string{strings.TrimSuffix(other(), ".id")}
	}
	if random.IntN(6) == 0 {
		spec["lifecycle"] = map[string]any{"create_before_destroy": true}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return string(text)
}
