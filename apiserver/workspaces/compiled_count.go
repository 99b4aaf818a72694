package workspaces

import (
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
)

// compiledResources are those whose objects are compiled.
func compiledResources() []schema.GroupResource {
	return []schema.GroupResource{
		apiextensions.Resource("customresourcedefinitions"),
		admissionregistration.Resource("validatingadmissionpolicies"),
		admissionregistration.Resource("mutatingadmissionpolicies"),
		admissionregistration.Resource("validatingwebhookconfigurations"),
		admissionregistration.Resource("mutatingwebhookconfigurations"),
	}
}

func isCompiled(resource schema.GroupResource) bool {
	return slices.Contains(compiledResources(), resource)
}

// compiledPrefix begins the keys of a resource whose objects are compiled.
func compiledPrefix(resource schema.GroupResource) string {
	if resource.Group == apiextensions.GroupName {
		return definitionsPrefix
	}
	return "/registry/" + resource.Resource + "/"
}

// decodeCompiled decodes a stored object.
func decodeCompiled(key string, plain []byte) (runtime.Object, error) {
	if strings.HasPrefix(key, definitionsPrefix) {
		return runtime.Decode(apiextensionsapiserver.Codecs.UniversalDecoder(apiextensions.SchemeGroupVersion), plain)
	}
	return runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), plain)
}

// compiledOf counts the expressions of an object. A policy or webhook counts as one at least: each takes memory.
func compiledOf(obj runtime.Object) (n Compiled) {
	count := func(conditions []admissionregistration.MatchCondition) {
		n.Expressions += max(1, int64(len(conditions)))
	}
	switch o := obj.(type) {
	case *apiextensions.CustomResourceDefinition:
		n.Definitions = 1
		if o.Spec.Validation != nil {
			n.Expressions += max(1, int64(len(o.Spec.Versions))) * expressionsIn(o.Spec.Validation.OpenAPIV3Schema)
		}
		for _, version := range o.Spec.Versions {
			if version.Schema != nil {
				n.Expressions += expressionsIn(version.Schema.OpenAPIV3Schema)
			}
		}
	case *admissionregistration.ValidatingAdmissionPolicy:
		n.Expressions = int64(len(o.Spec.MatchConditions) + len(o.Spec.Variables) + len(o.Spec.AuditAnnotations) + len(o.Spec.Validations))
		for _, v := range o.Spec.Validations {
			if v.MessageExpression != "" {
				n.Expressions++
			}
		}
		n.Expressions = max(1, n.Expressions)
	case *admissionregistration.MutatingAdmissionPolicy:
		n.Expressions = max(1, int64(len(o.Spec.MatchConditions)+len(o.Spec.Variables)+len(o.Spec.Mutations)))
	case *admissionregistration.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			count(o.Webhooks[i].MatchConditions)
		}
		n.Expressions = max(1, n.Expressions)
	case *admissionregistration.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			count(o.Webhooks[i].MatchConditions)
		}
		n.Expressions = max(1, n.Expressions)
	}
	return n
}

// expressionsIn counts the rules of a schema, and the expressions of their messages.
func expressionsIn(s *apiextensions.JSONSchemaProps) (n int64) {
	if s == nil {
		return 0
	}
	for _, rule := range s.XValidations {
		if n++; rule.MessageExpression != "" {
			n++
		}
	}
	for _, list := range [][]apiextensions.JSONSchemaProps{s.AllOf, s.OneOf, s.AnyOf} {
		for i := range list {
			n += expressionsIn(&list[i])
		}
	}
	for _, properties := range []map[string]apiextensions.JSONSchemaProps{s.Properties, s.PatternProperties, s.Definitions} {
		for _, p := range properties {
			n += expressionsIn(&p)
		}
	}
	if s.Items != nil {
		n += expressionsIn(s.Items.Schema)
		for i := range s.Items.JSONSchemas {
			n += expressionsIn(&s.Items.JSONSchemas[i])
		}
	}
	for _, other := range []*apiextensions.JSONSchemaPropsOrBool{s.AdditionalProperties, s.AdditionalItems} {
		if other != nil {
			n += expressionsIn(other.Schema)
		}
	}
	return n + expressionsIn(s.Not)
}
