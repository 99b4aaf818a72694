package schema

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	explain "k8s.io/kubectl/pkg/explain/v2"
	"sigs.k8s.io/yaml"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (go test -update writes it): -want +got %s", file, diff)
	}
}

func TestOpenAPI(t *testing.T) {
	text, err := yaml.Marshal(map[string]any{"kind": serverKind().OpenAPI(), "components": Components()})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/server.openapi.yaml", text)
}

func TestOpenAPIOfData(t *testing.T) {
	k := serverKind()
	k.Data = true
	if _, there := k.OpenAPI().Properties["spec"].Properties["lifecycle"]; there {
		t.Error("a data source is described with a lifecycle")
	}
}

// TestExplain runs kubectl explain on a kind.
func TestExplain(t *testing.T) {
	k := serverKind()
	var out bytes.Buffer
	for _, path := range []string{"", "spec", "spec.password.secretKeyRef", "spec.login", "spec.disk", "spec.lifecycle", "status.attributes", "status.conditions"} {
		fmt.Fprintf(&out, "$ kubectl explain server.%s\n", path)
		gvr := apischema.GroupVersionResource{Group: k.Group, Version: v1alpha1.ProvidersVersion, Resource: k.Plural}
		var fields []string
		if path != "" {
			fields = strings.Split(path, ".")
		}
		if err := explain.PrintModelDescription(fields, &out, document{k}, gvr, false, "plaintext"); err != nil {
			t.Fatal(err)
		}
	}
	// kubectl explain pads columns with trailing spaces.
	var trimmed bytes.Buffer
	for line := range strings.Lines(out.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	golden(t, "testdata/server.explain", trimmed.Bytes())
}

// A document has the least that kubectl needs to find a kind.
type document struct{ kind Kind }

func (d document) Paths() (map[string]openapi.GroupVersion, error) {
	return map[string]openapi.GroupVersion{"apis/" + d.kind.Group + "/" + v1alpha1.ProvidersVersion: d}, nil
}

func (document) ServerRelativeURL() string { return "" }

func (d document) Schema(string) ([]byte, error) {
	schemas := map[string]any{"kind": d.kind.OpenAPI()}
	for name, component := range Components() {
		schemas[name] = component
	}
	get := map[string]any{"x-kubernetes-group-version-kind": map[string]any{"group": d.kind.Group, "version": v1alpha1.ProvidersVersion, "kind": d.kind.Kind}}
	return json.Marshal(map[string]any{
		"paths":      map[string]any{"/apis/" + d.kind.Group + "/" + v1alpha1.ProvidersVersion + "/" + d.kind.Plural: map[string]any{"get": get}},
		"components": map[string]any{"schemas": schemas},
	})
}

// TestClientsAccept: a client that validates by OpenAPI accepts whatever Validate accepts,
// including expressions in any place, and rejects some of the specs that Validate rejects.
func TestClientsAccept(t *testing.T) {
	k := serverKind()
	client := validate.NewSchemaValidator(Inline(k.OpenAPI()), nil, "", strfmt.Default)
	accepted := []string{
		`{name: web, network: {}, cpus: 0.5, enabled: true, groups: [a], tags: {a: b}, extra: [1, {}], timeouts: {}}`,
		`{name: "${x}", network: "${x}", cpus: "${x}", enabled: "${x}", groups: "${x}", dns: ["${x}"], tags: "${x}", size: "${x}", extra: "${x}", disk: "${x}", label: "${x}"}`,
		`{name: web, network: [{cidrs: "${x}"}], cpus: "12345678901234567890", disk: [{gigabytes: "${x}"}, "${x}"], label: {a: "${x}"}, login: "${x}"}`,
		`{name: web, network: {}, password: "${x}", keys: {a: {secretKeyRef: {name: s, key: k}}}, boot_token: {secretKeyRef: {name: s, key: k}}}`,
	}
	for _, text := range accepted {
		o := object(t, text)
		if errs, _ := k.Validate(o, Checks{}); len(errs) > 0 {
			t.Errorf("%s: %v", text, errs)
		}
		if text == accepted[2] {
			continue // OpenAPI does not show the list form of network
		}
		if result := client.Validate(map[string]any{"spec": o}); !result.IsValid() {
			t.Errorf("a client refuses %s: %v", text, result.Errors)
		}
	}
	for _, text := range []string{`{enabled: "yes"}`, `{name: [x]}`, `{password: {secretKeyRef: {name: s}}}`, `{groups: [[]]}`} {
		if client.Validate(map[string]any{"spec": object(t, text)}).IsValid() {
			t.Errorf("a client accepts %s", text)
		}
	}
}

// TestStatusMatchesOpenAPI: Attributes conforms to OpenAPI, for random types and values.
func TestStatusMatchesOpenAPI(t *testing.T) {
	for seed := range uint64(500) {
		m := newMaker(seed)
		k := Kind{Schema: m.schema()}
		v := m.value(&k.Schema.Block)
		client := validate.NewSchemaValidator(Inline(k.OpenAPI()), nil, "", strfmt.Default)
		spec, _ := k.Spec(v, SpecOptions{Secret: "s", Computed: true})
		whole := map[string]any{"spec": spec, "status": map[string]any{"attributes": k.Attributes(v, nil)}}
		if result := client.Validate(whole); !result.IsValid() {
			t.Fatalf("seed %d: %v of %v", seed, result.Errors, whole)
		}
	}
}

func TestColumns(t *testing.T) {
	var got []string
	for _, c := range serverKind().Columns() {
		got = append(got, fmt.Sprintf("%s %s %d", c.Name, c.JSONPath, c.Priority))
	}
	want := []string{
		`Ready .status.conditions[?(@.type=="Ready")].status 0`, `Reconciled .status.conditions[?(@.type=="Reconciled")].status 0`,
		`ID .status.attributes.id 0`, `Age .metadata.creationTimestamp 0`, `Provider .spec.provider 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	without := Kind{Schema: &providerapi.Schema{Block: providerapi.Block{Attributes: []providerapi.Attribute{{Name: "id", Type: cty.String, Sensitive: true}}}}}
	for _, c := range without.Columns() {
		if c.Name == "ID" {
			t.Error("a sensitive id is shown")
		}
	}
}
