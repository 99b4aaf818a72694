package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// admissionFlows test admission, which happens where the types are defined.
func admissionFlows() []flow {
	return []flow{
		{"policies", admittedByPolicy},
		{"webhooks", admittedByWebhook},
	}
}

const likenessPolicies = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: likeness, labels: {test: likeness}}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: like-policies}}
    resourceRules: [{apiGroups: [like.test.atoll.dev], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [gadgets]}]
  validations:
  - {expression: "object.spec.size < 9", messageExpression: "'size ' + string(object.spec.size) + ' is for others than those who ' + request.operation", reason: Forbidden}
  - {expression: "!has(object.spec.color) || object.spec.color != 'green'", message: green is out of fashion}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: likeness, labels: {test: likeness}}
spec: {policyName: likeness, validationActions: [Deny]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: likeness-warns, labels: {test: likeness}}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: like-policies}}
    resourceRules: [{apiGroups: [like.test.atoll.dev], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [gadgets]}]
  validations: [{expression: "!has(object.spec.color) || object.spec.color != 'blue'", message: blue is rare}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: likeness-warns, labels: {test: likeness}}
spec: {policyName: likeness-warns, validationActions: [Warn]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: likeness, labels: {test: likeness}}
spec:
  reinvocationPolicy: Never
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: like-policies}}
    resourceRules: [{apiGroups: [like.test.atoll.dev], apiVersions: ["*"], operations: [CREATE], resources: [gadgets]}]
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'made-by': 'policy'}}}"}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: likeness, labels: {test: likeness}}
spec: {policyName: likeness}
`

func admittedByPolicy(s *side) {
	s.atHome(likenessPolicies)
	s.untilDryRun(`{"size":9}`, "is for others")
	s.untilDryRun(`{"color":"blue"}`, "blue is rare")
	s.untilDryRun(`{}`, `"made-by":"policy"`)
	at := s.gadgets()
	s.request("POST", at, gadgetJSON("a", `{"size":9}`))
	s.request("POST", at, gadgetJSON("a", `{"color":"green"}`))
	s.request("POST", at, gadgetJSON("a", `{"color":"blue"}`))
	s.request("PATCH", at+"/a", `{"spec":{"size":10}}`, "Content-Type", "application/merge-patch+json")
	s.file("b.yaml", gadget("b", "color: blue"))
	s.kubectl("apply", "-f", "b.yaml")
	s.file("b.yaml", gadget("b", "color: green"))
	s.kubectl("apply", "-f", "b.yaml")
	s.kubectl("apply", "-f", "b.yaml", "--server-side", "--force-conflicts")
	s.kubectl("get", "gadgets", "-o", "yaml")
}

const likenessWebhooks = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: likeness, labels: {test: likeness}}
webhooks:
- name: mutate.test.atoll.dev
  clientConfig: {url: "HOOKS/mutate", caBundle: AUTHORITY}
  rules: [{apiGroups: [like.test.atoll.dev], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [gadgets]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: like-webhooks}}
  admissionReviewVersions: [v1]
  sideEffects: None
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: likeness, labels: {test: likeness}}
webhooks:
- name: validate.test.atoll.dev
  clientConfig: {url: "HOOKS/validate", caBundle: AUTHORITY}
  rules: [{apiGroups: [like.test.atoll.dev], apiVersions: ["*"], operations: ["*"], resources: [gadgets, gadgets/status]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: like-webhooks}}
  admissionReviewVersions: [v1]
  sideEffects: None
- name: nobody.test.atoll.dev
  clientConfig: {url: "HOOKS/nothing", caBundle: AUTHORITY}
  rules: [{apiGroups: [like.test.atoll.dev], apiVersions: ["*"], operations: [CREATE], resources: [gadgets]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: like-webhooks}}
  matchConditions: [{name: asked-for, expression: "object.metadata.name == 'unlucky'"}]
  admissionReviewVersions: [v1]
  sideEffects: None
`

func admittedByWebhook(s *side) {
	// Made while green is not yet out of fashion.
	s.make("old", `{"color":"green"}`)
	s.atHome(s.hooks.in(likenessWebhooks))
	s.untilDryRun(`{"color":"green"}`, "out of fashion")
	s.untilDryRun(`{}`, "webhook")
	at := s.gadgets()
	s.request("POST", at, gadgetJSON("a", `{}`))
	s.request("POST", at, gadgetJSON("b", `{"color":"green"}`))
	s.request("POST", at, gadgetJSON("unlucky", `{}`))
	s.request("PUT", at+"/a?dryRun=All", gadgetJSON("a", `{"color":"blue"}`))
	s.request("PATCH", at+"/old/status", `{"status":{"phase":"Green"}}`, "Content-Type", "application/merge-patch+json")
	s.request("DELETE", at+"/old", "")
	s.file("c.yaml", gadget("c", "color: blue"))
	s.kubectl("apply", "-f", "c.yaml")
	s.kubectl("apply", "-f", "c.yaml", "--server-side")
	s.kubectl("get", "gadget", "c", "-o", "json", "--show-managed-fields")
	s.kubectl("delete", "gadget", "a")
}

// untilDryRun waits until the answer to a create that is none says something:
// policies and webhooks act some time after they are made.
func (s *side) untilDryRun(spec, says string) {
	s.eventually(fmt.Sprintf("creating %s is answered with %q", spec, says), func(ctx context.Context) error {
		response, err := s.send(ctx, http.MethodPost, s.gadgets()+"?dryRun=All", gadgetJSON("probe", spec))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		if said := string(body) + strings.Join(response.Header["Warning"], " "); !strings.Contains(said, says) {
			return errors.New(said)
		}
		return nil
	})
}
