package schema

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// A Kind is one type of a provider as the API serves it. It can be made whenever it is
// needed: it holds nothing but what it is given.
type Kind struct {
	Name
	Group  string
	Schema *contract.Schema
}

func specPath() *field.Path { return field.NewPath("spec") }

// Validate judges the spec of an object, with all that is wrong in it at once, and what its author should know in
// warnings. Expressions and Secrets are taken for whatever is needed in their place.
func (k Kind) Validate(spec map[string]any, checks Checks) (field.ErrorList, []string) {
	_, errs := k.Own(spec)
	return append(errs, Validate(&k.Schema.Block, specPath(), k.arguments(spec), checks)...),
		Warnings(&k.Schema.Block, specPath(), k.arguments(spec))
}

// Config is what the provider is told, of the schema's implied type. It is marked contract.Sensitive where the schema
// or the resolver says so. There is no value if there are complaints.
func (k Kind) Config(spec map[string]any, resolve Resolver) (cty.Value, field.ErrorList) {
	return Config(&k.Schema.Block, specPath(), k.arguments(spec), resolve)
}

// arguments is the spec without what is Atoll's own.
func (k Kind) arguments(spec map[string]any) map[string]any {
	arguments := make(map[string]any, len(spec))
	for name, value := range spec {
		if !isOwn(name) {
			arguments[name] = value
		}
	}
	return arguments
}

// Columns are what kubectl get shows besides the name.
func (k Kind) Columns() []apiextensionsv1.CustomResourceColumnDefinition {
	columns := []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Ready", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].status`, Description: "Whether the resource is there and whole."},
		{Name: "Reconciled", Type: "string", JSONPath: `.status.conditions[?(@.type=="Reconciled")].status`, Description: "Whether what is written has been carried out."},
	}
	if id := k.Schema.Block.Attribute("id"); id != nil && !isSensitive(id) {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "ID", Type: "string", JSONPath: ".status.attributes.id", Description: "What the provider calls the resource.",
		})
	}
	return append(columns,
		apiextensionsv1.CustomResourceColumnDefinition{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp", Description: "Since when there is the object."},
		apiextensionsv1.CustomResourceColumnDefinition{Name: "Provider", Type: "string", JSONPath: ".spec.provider", Priority: 1, Description: "The ProviderConfig, if not the default one."},
	)
}
