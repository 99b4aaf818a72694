package schema

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// A Kind is one resource type or data source of a provider as the API serves it. It is cheap to
// create and holds no other state.
type Kind struct {
	Name
	Group  string
	Schema *providerapi.Schema
}

func specPath() *field.Path { return field.NewPath("spec") }

// Validate validates the spec of an object. It returns all errors at once, and warnings about
// deprecated arguments. Expressions and references to Secrets count as valid.
func (k Kind) Validate(spec map[string]any, checks Checks) (field.ErrorList, []string) {
	_, errs := k.MetaArguments(spec)
	return append(errs, Validate(&k.Schema.Block, specPath(), k.arguments(spec), checks)...),
		Warnings(&k.Schema.Block, specPath(), k.arguments(spec))
}

// Config converts a spec to the provider's configuration value, of the schema's implied type.
// Values are marked providerapi.Sensitive where the schema or the resolver says so. If there are
// errors, it returns no value.
func (k Kind) Config(spec map[string]any, resolve Resolver) (cty.Value, field.ErrorList) {
	return Config(&k.Schema.Block, specPath(), k.arguments(spec), resolve)
}

// arguments returns the spec without Atoll's meta-arguments.
func (k Kind) arguments(spec map[string]any) map[string]any {
	arguments := make(map[string]any, len(spec))
	for name, value := range spec {
		if !isMetaArgument(name) {
			arguments[name] = value
		}
	}
	return arguments
}

// Columns returns the columns of kubectl get, apart from the name.
func (k Kind) Columns() []apiextensionsv1.CustomResourceColumnDefinition {
	columns := []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Ready", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].status`, Description: "Whether the resource exists and is complete."},
		{Name: "Reconciled", Type: "string", JSONPath: `.status.conditions[?(@.type=="Reconciled")].status`, Description: "Whether the spec has been applied."},
	}
	if id := k.Schema.Block.Attribute("id"); id != nil && !isSensitive(id) {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "ID", Type: "string", JSONPath: ".status.attributes.id", Description: "The provider's ID of the resource.",
		})
	}
	return append(columns,
		apiextensionsv1.CustomResourceColumnDefinition{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp", Description: "The age of the object."},
		apiextensionsv1.CustomResourceColumnDefinition{Name: "Provider", Type: "string", JSONPath: ".spec.provider", Priority: 1, Description: "The ProviderConfig, unless it is the default one."},
	)
}
