package crds

import (
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Invalid objects are rejected with a message that says what to do.
func TestInfrastructureObjectsAreValidated(t *testing.T) {
	const digest = "zh:0000000000000000000000000000000000000000000000000000000000000000"
	provider := func(spec string) string {
		return "kind: Provider\nmetadata: {name: aws}\nspec: {source: hashicorp/aws, version: 6.1.0, " + spec + "}"
	}
	sha := "sha256:" + strings.Repeat("a", 64)
	for _, tc := range []struct{ name, was, is, want string }{
		{"a provider", "", provider("digests: ['" + digest + "'], origin: {registry: {}}"), ""},
		{"a provider in development", "", provider("origin: {development: {path: /tmp/p}}"), ""},
		{"no digest", "", provider("origin: {registry: {}}"), "digests are required"},
		{"a digest of another algorithm", "", provider("digests: ['md5:0'], origin: {registry: {}}"), "spec.digests[0]"},
		{"no origin", "", provider("digests: ['" + digest + "'], origin: {}"), "exactly one of"},
		{"two origins", "", provider("digests: ['" + digest + "'], origin: {registry: {}, networkMirror: {url: 'https://a/'}}"), "exactly one of"},
		{"a mirror without TLS", "", provider("digests: ['" + digest + "'], origin: {networkMirror: {url: 'http://a/'}}"), "spec.origin.networkMirror.url"},
		{"a range of versions", "", "kind: Provider\nmetadata: {name: a}\nspec: {source: a/b, version: '~> 1.0', digests: ['" + digest + "'], origin: {registry: {}}}", "spec.version"},
		{"a name that is not part of a group", "", "kind: Provider\nmetadata: {name: a.b}\nspec: {source: a/b, version: 1.0.0, digests: ['" + digest + "'], origin: {registry: {}}}", "part of an API group"},
		{"a reserved environment variable", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, process: {environment: [{name: TF_LOG, value: trace}]}"), "reserved for Atoll"},
		{"a contained provider", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, files: [{path: /etc/aws}, {path: /srv/world, access: ReadWrite}], network: {tcpPorts: [443]}"), ""},
		{"a provider that is not contained", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, containment: None"), ""},
		{"files without containment", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, containment: None, files: [{path: /etc/aws}]"), "remove files and network"},
		{"a relative file", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, files: [{path: etc/aws}]"), "spec.files[0].path"},
		{"a file that is not clean", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, files: [{path: /etc/../root}]"), "must be a clean path"},
		{"a directory with a slash", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, files: [{path: /etc/aws/}]"), "must be a clean path"},
		{"another access", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, files: [{path: /etc/aws, access: Execute}]"), "spec.files[0].access"},
		{"a port that does not exist", "", provider("digests: ['" + digest + "'], origin: {registry: {}}, network: {tcpPorts: [0]}"), "spec.network.tcpPorts[0]"},

		{"a config", "", "kind: ProviderConfig\nspec: {provider: aws, configuration: {region: eu, token: {secretKeyRef: {name: a, key: b}}}}", ""},
		{"a config of another provider", "kind: ProviderConfig\nspec: {provider: aws}", "kind: ProviderConfig\nspec: {provider: gcp}", "create another"},

		{"a plan", "", "kind: Plan\nspec: {}", ""},
		{"a changed plan", "kind: Plan\nspec: {mode: Normal}", "kind: Plan\nspec: {mode: Destroy}", "create another"},
		{"a plan of files and a rollback", "", "kind: Plan\nspec: {rollback: a, objects: [{kind: X}]}", "mutually exclusive"},
		{"an unknown mode", "", "kind: Plan\nspec: {mode: Guess}", "spec.mode"},

		{"an approval", "", "kind: Approval\nspec: {plan: p, digest: '" + sha + "'}", ""},
		{"an approval that names another plan", "kind: Approval\nspec: {plan: p, digest: '" + sha + "'}", "kind: Approval\nspec: {plan: q, digest: '" + sha + "'}", "withdraw it"},
		{"an approval without a digest", "", "kind: Approval\nspec: {plan: p, digest: ''}", "spec.digest"},

		{"a cancelled apply", "kind: Apply\nspec: {plan: p, digest: '" + sha + "'}", "kind: Apply\nspec: {plan: p, digest: '" + sha + "', cancel: true}", ""},
		{"an apply of another plan", "kind: Apply\nspec: {plan: p, digest: '" + sha + "'}", "kind: Apply\nspec: {plan: q, digest: '" + sha + "'}", "create another"},
		{"a resumed apply", "kind: Apply\nspec: {plan: p, digest: '" + sha + "', cancel: true}", "kind: Apply\nspec: {plan: p, digest: '" + sha + "'}", "cannot be resumed"},

		{"a policy", "", "kind: SyncPolicy\nspec: {mode: Auto, appliesTo: [Infrastructure, Workloads], approval: {required: 0, auto: [{name: small, expression: 'true'}]}}", ""},
		{"a policy that applies to nothing", "", "kind: SyncPolicy\nspec: {appliesTo: []}", "spec.appliesTo"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := check(t, tc.was, tc.is)
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("error %q, want %q", got, tc.want)
			}
		})
	}
}

// check returns the validation error of an object: of its creation, or of its update from was if that is set.
func check(t *testing.T, was, is string) string {
	t.Helper()
	object := parse(t, is)
	internal, structural := schemaOf(t, object["kind"].(string))
	defaulting.Default(object, structural)
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		t.Fatal(err)
	}
	errs := validation.ValidateCustomResource(nil, object, validator)
	var old any
	if was != "" {
		before := parse(t, was)
		defaulting.Default(before, structural)
		old = before
	}
	ruled, _ := cel.NewValidator(structural, true, celconfig.PerCallLimit).Validate(t.Context(), field.NewPath(""), structural, object, old, celconfig.RuntimeCELCostBudget)
	errs = append(errs, ruled...)
	if len(errs) == 0 {
		return ""
	}
	return errs.ToAggregate().Error()
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	out["apiVersion"] = v1alpha1.Group + "/" + v1alpha1.Version
	if out["metadata"] == nil {
		out["metadata"] = map[string]any{"name": "one"}
	}
	return out
}

func schemaOf(t *testing.T, kind string) (*apiextensions.JSONSchemaProps, *schema.Structural) {
	t.Helper()
	all, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range all {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(raw, crd); err != nil {
			t.Fatal(err)
		}
		if crd.Spec.Names.Kind != kind {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil); err != nil {
			t.Fatal(err)
		}
		structural, err := schema.NewStructural(internal)
		if err != nil {
			t.Fatal(err)
		}
		return internal, structural
	}
	t.Fatalf("unknown kind %s", kind)
	return nil, nil
}
