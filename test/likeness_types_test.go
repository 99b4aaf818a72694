package test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
)

// likenessTypes have all that a CRD can ask of a server: Gadgets in one version,
// Widgets in two with a webhook between them.
const likenessTypes = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.like.test.atoll.dev, labels: {test: likeness}}
spec:
  group: like.test.atoll.dev
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList, shortNames: [gd], categories: [contraptions]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.copies, statusReplicasPath: .status.copies, labelSelectorPath: .status.selector}
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color, description: Which it has.}
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Phase, type: string, jsonPath: .status.phase}
    - {name: Serial, type: string, jsonPath: .spec.serial, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        description: A thing of some size.
        required: [spec]
        properties:
          spec:
            type: object
            description: What it is to be.
            x-kubernetes-validations:
            - {rule: "!has(self.limit) || self.size <= self.limit", message: size is over the limit}
            properties:
              color: {type: string, enum: [red, green, blue], description: Which color it has.}
              size: {type: integer, minimum: 1, maximum: 10, default: 3}
              limit: {type: integer}
              copies: {type: integer, default: 1}
              serial:
                type: string
                x-kubernetes-validations: [{rule: self == oldSelf, message: a serial number does not change}]
              tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, count: {type: integer}}
              settings: {type: object, additionalProperties: {type: string}}
              anything: {type: object, x-kubernetes-preserve-unknown-fields: true}
              when: {type: string, format: date-time}
              amount: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
          status:
            type: object
            properties:
              phase: {type: string}
              copies: {type: integer}
              selector: {type: string}
              conditions: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.like.test.atoll.dev, labels: {test: likeness}}
spec:
  group: like.test.atoll.dev
  scope: Cluster
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "HOOKS/convert", caBundle: AUTHORITY}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    deprecationWarning: Widgets have a size now.
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {width: {type: string}}}}}}
`

// likenessShared exposes them to east, and lets its administrator and its
// controllers use them.
const likenessShared = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata: {name: likeness}
spec: {groups: [like.test.atoll.dev], clusters: [east]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: likeness-all, labels: {test: likeness}}
rules: [{apiGroups: [like.test.atoll.dev], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: likeness-all, labels: {test: likeness}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: likeness-all}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "east:system:masters"}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "atoll:member-collectors"}
`

// likenessGrant gives a user verbs on Gadgets.
func likenessGrant(user, verb string) string {
	return fmt.Sprintf(`
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: likeness-alice, labels: {test: likeness}},
 rules: [{apiGroups: [like.test.atoll.dev], resources: [gadgets], verbs: [%q]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: likeness-alice, labels: {test: likeness}},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: likeness-alice},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %q}]}
`, verb, user)
}

func gadget(name, spec string) string {
	return fmt.Sprintf("apiVersion: %s/v1\nkind: Gadget\nmetadata: {name: %s, labels: {kind: gadget}}\nspec: {%s}\n", likeGroup, name, spec)
}

// gadgetJSON is one for a request; spec is JSON.
func gadgetJSON(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Gadget","metadata":{"name":%q},"spec":%s}`, likeGroup, name, spec)
}

// hooks are the webhooks of the types, which both sides call.
type hooks struct{ url, authority string }

// in puts them into a manifest.
func (h hooks) in(manifest string) string {
	return strings.NewReplacer("HOOKS", h.url, "AUTHORITY", h.authority).Replace(manifest)
}

func startHooks(t *testing.T) hooks {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/convert", convertReview)
	mux.HandleFunc("/mutate", admit(mutateGadget))
	mux.HandleFunc("/validate", admit(validateGadget))
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return hooks{server.URL, base64.StdEncoding.EncodeToString(certificate)}
}

// convertReview turns sizes into widths and back, and refuses to do so for a Widget
// of an impossible width.
func convertReview(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range review.Request.Objects {
		var widget unstructured.Unstructured
		err := widget.UnmarshalJSON(object.Raw)
		if err == nil {
			err = convertWidget(&widget, review.Request.DesiredAPIVersion)
		}
		if err != nil {
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			review.Response.ConvertedObjects = nil
			break
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: &widget})
	}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

func convertWidget(widget *unstructured.Unstructured, to string) error {
	if widget.GetAPIVersion() == to {
		return nil
	}
	widget.SetAPIVersion(to)
	spec, _, err := unstructured.NestedMap(widget.Object, "spec")
	if err != nil || spec == nil {
		return err
	}
	switch to {
	case likeGroup + "/v1beta1":
		size, _, err := unstructured.NestedInt64(spec, "size")
		if err != nil {
			return err
		}
		return unstructured.SetNestedMap(widget.Object, map[string]any{"width": fmt.Sprint(size, " cm")}, "spec")
	default:
		width, _, err := unstructured.NestedString(spec, "width")
		if err != nil {
			return err
		}
		var size int64
		if _, err := fmt.Sscanf(width, "%d cm", &size); err != nil {
			return fmt.Errorf("width %q cannot be understood", width)
		}
		return unstructured.SetNestedMap(widget.Object, map[string]any{"size": size}, "spec")
	}
}

func admit(decide func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		decide(review.Request, review.Response)
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}
}

// mutateGadget records the operation in an annotation of the object.
func mutateGadget(request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse) {
	patch := admissionv1.PatchTypeJSONPatch
	response.PatchType = &patch
	response.Patch = fmt.Appendf(nil, `[{"op":"add","path":"/spec/settings","value":{"webhook":"%s of %s, dry run %t"}}]`,
		request.Operation, request.Resource.Resource, *request.DryRun)
}

// validateGadget refuses green objects, and warns of blue ones.
func validateGadget(request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse) {
	raw := request.Object.Raw
	if request.Operation == admissionv1.Delete {
		raw = request.OldObject.Raw
	}
	switch {
	case strings.Contains(string(raw), `"color":"green"`):
		response.Allowed = false
		response.Result = &metav1.Status{Code: http.StatusTeapot, Message: "green is out of fashion"}
	case strings.Contains(string(raw), `"color":"blue"`):
		response.Warnings = []string{"blue is rare", "very rare"}
	}
}
