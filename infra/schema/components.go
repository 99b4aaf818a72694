package schema

import (
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Components that OpenAPI documents with provider kinds refer to. kubectl explain shows the last
// word of a component's name as the type.
const (
	componentNumber  = "dev.atoll.infra.number"
	componentBoolean = "dev.atoll.infra.boolean"
	componentAny     = "dev.atoll.infra.any"
	componentSecret  = "dev.atoll.infra.SecretValue"
)

// expressionPattern matches strings with an expression. Only evaluation shows whether an expression
// is valid.
const expressionPattern = `\$\{`

// Components returns the schemas that those of kinds refer to, by name.
func Components() map[string]*spec.Schema {
	expression := ofType("string", "")
	expression.Pattern = expressionPattern
	number := &spec.Schema{}
	number.Description = "A number; in quotes if it is very large; or an expression ${…}."
	number.AddExtension("x-kubernetes-int-or-string", true)
	number.AnyOf = []spec.Schema{*ofType("number", ""), *ofType("string", "")}
	boolean := &spec.Schema{}
	boolean.Description = "true or false, or an expression ${…}."
	boolean.AnyOf = []spec.Schema{*ofType("boolean", ""), *expression}
	anything := &spec.Schema{}
	anything.Description = "A value of any type."
	anything.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return map[string]*spec.Schema{
		componentNumber: number, componentBoolean: boolean, componentAny: anything, componentSecret: secretSchema(),
	}
}

func secretSchema() *spec.Schema {
	ref := ofType("object", "The location of the value. A string argument is the text under the key; any other type is parsed from it as JSON.")
	ref.Properties = map[string]spec.Schema{
		secretKeyRefName: *ofType("string", "The name of a Secret in the same namespace."),
		secretKeyRefKey:  *ofType("string", "A key of that Secret."),
	}
	ref.Required = []string{secretKeyRefName, secretKeyRefKey}
	ref.AddExtension("x-kubernetes-map-type", "atomic")
	s := &spec.Schema{}
	s.Description = "Sensitive: a secretKeyRef, or an expression ${…}. Literals are not allowed."
	s.Properties = map[string]spec.Schema{secretKeyRef: *ref}
	s.AddExtension("x-kubernetes-map-type", "atomic")
	s.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return s
}

// metaSchemas returns the schemas of Atoll's meta-arguments.
func metaSchemas(data bool) map[string]spec.Schema {
	references := func(description string) spec.Schema {
		s := listOf(ofType("string", ""), results)
		s.AddExtension("x-kubernetes-list-type", "set")
		s.Description = description
		return *s
	}
	connection := ofType("object", "Where sensitive attributes are written.")
	connection.Properties = map[string]spec.Schema{
		connectionSecret: *ofType("string", "The Secret in the same namespace that receives the sensitive attributes."),
	}
	meta := map[string]spec.Schema{
		metaProvider:   *ofType("string", "The name of the ProviderConfig in the same namespace. Defaults to the name of the Provider."),
		metaDependsOn:  references(`Dependencies in addition to those of expressions: TYPE["name"].`),
		metaConnection: *connection,
	}
	if data {
		return meta
	}
	ignore := &spec.Schema{}
	ignore.Description = `Arguments whose changes are ignored once the resource exists, such as tags["env"]; or all.`
	ignore.Items = &spec.SchemaOrArray{Schema: ofType("string", "")}
	ignore.AddExtension("x-kubernetes-list-type", "set")
	lifecycle := ofType("object", "How the resource may be changed.")
	lifecycle.Properties = map[string]spec.Schema{
		preventDestroy:      *ofType("boolean", "Reject every plan that would destroy the resource."),
		createBeforeDestroy: *ofType("boolean", "On replacement, create the new resource before destroying the old one."),
		ignoreChanges:       *ignore,
		replaceTriggeredBy:  references(`Replace the resource when one of these changes: TYPE["name"], TYPE["name"].attribute.`),
	}
	meta[metaLifecycle] = *lifecycle
	meta[metaMovedFrom] = *ofType("string", `The object whose resource this one takes over: NAME, NAMESPACE/NAME, or TYPE["name"] for another type. That object must be deleted. It is ignored once this object has a resource.`)
	return meta
}

// conditionSchema returns the schema of metav1.Condition.
func conditionSchema() *spec.Schema {
	s := ofType("object", "A condition of the object.")
	changed := ofType("string", "The time of the last change of the status.")
	changed.Format = "date-time"
	generation := ofType("integer", "The generation of the object that the condition is based on.")
	generation.Format = "int64"
	s.Properties = map[string]spec.Schema{
		"type":               *ofType("string", "The type of the condition."),
		"status":             *ofType("string", "True, False or Unknown."),
		"reason":             *ofType("string", "The reason, in one word."),
		"message":            *ofType("string", "The reason, for people."),
		"lastTransitionTime": *changed,
		"observedGeneration": *generation,
	}
	s.Required = []string{"type", "status", "lastTransitionTime", "reason", "message"}
	return s
}

// Inline replaces references to components by the components, for documents that cannot have
// references. kubectl explain then shows less about types. The given schema is not modified.
func Inline(s *spec.Schema) *spec.Schema {
	return inline(s, Components())
}

func inline(s *spec.Schema, components map[string]*spec.Schema) *spec.Schema {
	if s == nil {
		return nil
	}
	out := *s
	if len(s.AllOf) == 1 {
		if name, ok := strings.CutPrefix(s.AllOf[0].Ref.String(), componentPrefix); ok {
			out = *components[name]
			if s.Description != "" {
				out.Description = s.Description + "\n" + out.Description
			}
			return &out
		}
	}
	if s.Properties != nil {
		out.Properties = make(map[string]spec.Schema, len(s.Properties))
		for name, property := range s.Properties {
			out.Properties[name] = *inline(&property, components)
		}
	}
	if s.Items != nil {
		out.Items = &spec.SchemaOrArray{Schema: inline(s.Items.Schema, components)}
	}
	if s.AdditionalProperties != nil {
		out.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: inline(s.AdditionalProperties.Schema, components)}
	}
	return &out
}
