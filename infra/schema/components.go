package schema

import (
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Components that a document with a kind in it needs. kubectl explain shows the last word of a name as the type.
const (
	componentNumber  = "dev.atoll.infra.number"
	componentBoolean = "dev.atoll.infra.boolean"
	componentAny     = "dev.atoll.infra.any"
	componentSecret  = "dev.atoll.infra.SecretValue"
)

// expressionPattern is of strings that stand for something else. Whether they are right, only reading them tells.
const expressionPattern = `\$\{`

// Components are the schemas that those of kinds refer to, by name.
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
	ref := ofType("object", "Where the value is. The text under the key is the value of a string, and JSON for any other type.")
	ref.Properties = map[string]spec.Schema{
		secretKeyRefName: *ofType("string", "The name of a Secret in the namespace of the object."),
		secretKeyRefKey:  *ofType("string", "The key of that Secret."),
	}
	ref.Required = []string{secretKeyRefName, secretKeyRefKey}
	ref.AddExtension("x-kubernetes-map-type", "atomic")
	s := &spec.Schema{}
	s.Description = "Sensitive: a secretKeyRef, or an expression ${…}. No literal."
	s.Properties = map[string]spec.Schema{secretKeyRef: *ref}
	s.AddExtension("x-kubernetes-map-type", "atomic")
	s.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return s
}

// ownSchemas describe what is Atoll's own in a spec.
func ownSchemas(data bool) map[string]spec.Schema {
	references := func(description string) spec.Schema {
		s := listOf(ofType("string", ""), results)
		s.AddExtension("x-kubernetes-list-type", "set")
		s.Description = description
		return *s
	}
	connection := ofType("object", "Where sensitive attributes go.")
	connection.Properties = map[string]spec.Schema{
		connectionSecret: *ofType("string", "The Secret in the namespace of the object into which sensitive attributes are written."),
	}
	own := map[string]spec.Schema{
		ownProvider:   *ofType("string", "The name of the ProviderConfig in the namespace of the object; unless said, the one that is called like the Provider."),
		ownDependsOn:  references(`What has to be done before, beyond what expressions refer to: TYPE["name"].`),
		ownConnection: *connection,
	}
	if data {
		return own
	}
	ignore := &spec.Schema{}
	ignore.Description = `Arguments that are left as they are once the resource is there, such as tags["env"]; or all.`
	ignore.Items = &spec.SchemaOrArray{Schema: ofType("string", "")}
	ignore.AddExtension("x-kubernetes-list-type", "set")
	lifecycle := ofType("object", "How the resource may be changed.")
	lifecycle.Properties = map[string]spec.Schema{
		preventDestroy:      *ofType("boolean", "Refuse every plan that would destroy the resource."),
		createBeforeDestroy: *ofType("boolean", "If it has to be replaced, make the new one first."),
		ignoreChanges:       *ignore,
		replaceTriggeredBy:  references(`Replace the resource when one of these changes: TYPE["name"], TYPE["name"].attribute.`),
	}
	own[ownLifecycle] = *lifecycle
	return own
}

// conditionSchema is that of metav1.Condition.
func conditionSchema() *spec.Schema {
	s := ofType("object", "One thing that is known, and since when.")
	changed := ofType("string", "Since when the status is so.")
	changed.Format = "date-time"
	generation := ofType("integer", "The generation of the object that this is about.")
	generation.Format = "int64"
	s.Properties = map[string]spec.Schema{
		"type":               *ofType("string", "What it is about."),
		"status":             *ofType("string", "True, False or Unknown."),
		"reason":             *ofType("string", "Why, in one word."),
		"message":            *ofType("string", "Why, for people."),
		"lastTransitionTime": *changed,
		"observedGeneration": *generation,
	}
	s.Required = []string{"type", "status", "lastTransitionTime", "reason", "message"}
	return s
}

// Inline puts components in the place of references to them, for who cannot have references. kubectl explain then knows less of
// types. The schema given is not changed.
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
