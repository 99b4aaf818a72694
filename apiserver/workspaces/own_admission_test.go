package workspaces

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"
)

const registration = "/apis/admissionregistration.k8s.io/v1"

// hook is a webhook that labels objects, and refuses those with data "refused".
type hook struct {
	*httptest.Server
	calls      atomic.Int64
	authorized atomic.Bool // a request had credentials
	during     func()      // is called while it is, if set
}

func newHook(t *testing.T) *hook {
	h := &hook{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.calls.Add(1)
		if h.during != nil {
			h.during()
		}
		if r.Header.Get("Authorization") != "" {
			h.authorized.Store(true)
		}
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !strings.Contains(string(review.Request.Object.Raw), "refused")}
		if r.URL.Path == "/mutate" {
			review.Response.Patch, review.Response.PatchType = []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`), ptr.To(admissionv1.PatchTypeJSONPatch)
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) configuration(kind, name, config string) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":%q,"metadata":{"name":%q},"webhooks":[{"name":"%s.example.com","sideEffects":"None","admissionReviewVersions":["v1"],
"clientConfig":%s,"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`, kind, name, name, config)
}

// at is the client configuration for a path of the webhook.
func (h *hook) at(path string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	return fmt.Sprintf(`{"url":%q,"caBundle":%q}`, h.URL+path, base64.StdEncoding.EncodeToString(ca))
}

// again returns the workspace after it was asleep.
func (s *stage) again(path string) {
	s.t.Helper()
	old := s.awake[path]
	old.Close()
	w := NewWorkspace(old.uid, old.client)
	s.awake[path] = w
	s.t.Cleanup(w.Close)
}

// TestWebhooks: the webhooks of a workspace see all writes in it, from the first one on, also after a sleep, and none in another one.
func TestWebhooks(t *testing.T) {
	s, h := newStage(t, "a", "b"), newHook(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	create := func(path, name, data string) response {
		return s.as(admin, "POST", "/clusters/"+path+maps, fmt.Sprintf(`{"metadata":{"name":%q},"data":{"is":%q}}`, name, data))
	}
	s.want(201, create("a", "before", "refused"))
	if s.awake["a"].admitting != nil {
		t.Error("plugins run without a webhook")
	}
	s.want(201, s.as(admin, "POST", "/clusters/a"+registration+"/mutatingwebhookconfigurations", h.configuration("MutatingWebhookConfiguration", "mutate", h.at("/mutate"))))
	s.want(201, s.as(admin, "POST", "/clusters/a"+registration+"/validatingwebhookconfigurations", h.configuration("ValidatingWebhookConfiguration", "validate", h.at("/validate"))))
	s.eventually("both webhooks are called", func() bool {
		before := h.calls.Load()
		s.want(201, s.as(admin, "POST", "/clusters/a"+maps+"?dryRun=All", `{"metadata":{"name":"try"}}`))
		return h.calls.Load()-before == 2
	})
	if got := s.want(201, create("a", "good", "fine")); got.field(t, "metadata", "labels", "seen") != "yes" {
		t.Error(got.body)
	}
	if got := s.want(400, create("a", "bad", "refused")); !strings.Contains(got.body, "mutate.example.com") {
		t.Error(got.body)
	}
	s.again("a")
	s.want(400, create("a", "bad", "refused"))
	s.want(201, create("b", "bad", "refused"))
	if h.authorized.Load() {
		t.Error("a webhook got credentials of the server")
	}
}

// TestWebhooksOfServices: a webhook that names a Service is not called, and a warning tells its author.
func TestWebhooksOfServices(t *testing.T) {
	s, h := newStage(t, "a"), newHook(t)
	r := httptest.NewRequest("POST", "/clusters/a"+registration+"/validatingwebhookconfigurations",
		strings.NewReader(h.configuration("ValidatingWebhookConfiguration", "validate", `{"service":{"namespace":"default","name":"hook"}}`)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r.WithContext(request.WithUser(t.Context(), admin)))
	if text := w.Header().Get("Warning"); w.Code != http.StatusCreated || !strings.Contains(text, "a workspace runs no Services") {
		t.Errorf("%d, warning %q", w.Code, text)
	}
	s.want(201, s.as(admin, "POST", "/clusters/a/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"config"}}`))
}

// TestWebhookAddresses: a webhook of a workspace can neither be on the server's own machine nor get credentials by its name.
func TestWebhookAddresses(t *testing.T) {
	own := []net.Addr{&net.IPNet{IP: net.ParseIP("192.0.2.1"), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("2001:db8::7"), Mask: net.CIDRMask(64, 128)}}
	for _, c := range []struct {
		networks, address string
		permitted         bool
	}{
		{"", "127.0.0.1", false},
		{"", "::1", false},
		{"", "::ffff:127.0.0.1", false},
		{"", "169.254.169.254", false},
		{"", "fe80::1%eth0", false},
		{"", "0.0.0.0", false},
		{"", "::", false},
		{"", "224.0.0.1", false},
		{"", "fd00:ec2::254", false},
		{"", "100.100.100.200", false},
		{"", "168.63.129.16", false},
		{"", "192.0.2.1", false}, // the server's own
		{"", "::ffff:192.0.2.1", false},
		{"", "2001:db8::7", false},
		{"192.0.2.0/24", "192.0.2.1", true},
		{"", "192.0.2.2", true},
		{"", "10.1.2.3", true},
		{"", "2001:db8::1", true},
		{"10.0.0.0/8", "10.1.2.3", true},
		{"10.0.0.0/8", "::ffff:10.1.2.3", true},
		{"10.0.0.0/8", "11.1.2.3", false},
		{"127.0.0.0/8", "127.0.0.1", true},
	} {
		o := outgoing{}
		if c.networks != "" {
			o.networks = []netip.Prefix{netip.MustParsePrefix(c.networks)}
		}
		if got := o.permits(netip.MustParseAddr(c.address), own); got != c.permitted {
			t.Errorf("%s of %q: %v", c.address, c.networks, got)
		}
	}
	h := newHook(t)
	if _, err := (outgoing{}).dial(t.Context(), "tcp", h.Listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "--workspace-webhook-networks") {
		t.Errorf("dial a loopback address: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1") // the server runs in a cluster
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	config, err := (outgoing{}).resolver(nil).ClientConfigFor("kubernetes.default.svc:443")
	if err != nil || config.BearerToken != "" || config.BearerTokenFile != "" || config.Transport != nil || config.Dial == nil {
		t.Errorf("%+v, %v", config, err)
	}
}

// TestPolicies: policies with parameters and with questions about permissions decide about their workspace alone.
func TestPolicies(t *testing.T) {
	s := newStage(t, "a", "b")
	const maps = "/api/v1/namespaces/default/configmaps"
	post := func(resource, body string) {
		t.Helper()
		s.want(201, s.as(admin, "POST", "/clusters/a"+registration+"/"+resource, body))
	}
	s.want(201, s.as(admin, "POST", "/clusters/a"+maps, `{"metadata":{"name":"limits"},"data":{"most":"3"}}`))
	post("validatingadmissionpolicies", `{"metadata":{"name":"small"},"spec":{"failurePolicy":"Fail","paramKind":{"apiVersion":"v1","kind":"ConfigMap"},
"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},
"validations":[{"expression":"!has(object.data) || size(object.data) <= int(params.data.most)","message":"it is too large"},
{"expression":"authorizer.group('').resource('configmaps').namespace('default').check('create').allowed()","message":"the user may not"}]}}`)
	post("validatingadmissionpolicybindings", `{"metadata":{"name":"small"},"spec":{"policyName":"small","validationActions":["Deny"],"paramRef":{"name":"limits","namespace":"default","parameterNotFoundAction":"Deny"}}}`)
	post("mutatingadmissionpolicies", `{"metadata":{"name":"label"},"spec":{"failurePolicy":"Fail","reinvocationPolicy":"Never",
"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},
"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {\"by\": \"policy\"}}}"}}]}}`)
	post("mutatingadmissionpolicybindings", `{"metadata":{"name":"label"},"spec":{"policyName":"label"}}`)
	large := `{"metadata":{"name":"large"},"data":{"a":"","b":"","c":"","d":""}}`
	s.eventually("the policy is effective", func() bool {
		got := s.as(admin, "POST", "/clusters/a"+maps+"?dryRun=All", large)
		return got.code == http.StatusUnprocessableEntity && strings.Contains(got.body, "it is too large")
	})
	s.eventually("the other policy is effective", func() bool {
		return strings.Contains(s.want(201, s.as(admin, "POST", "/clusters/a"+maps+"?dryRun=All", `{"metadata":{"name":"small"}}`)).body, `"by":"policy"`)
	})
	s.want(201, s.as(admin, "POST", "/clusters/b"+maps, large))
	s.again("a")
	s.want(422, s.as(admin, "POST", "/clusters/a"+maps, large))
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+registration+"/validatingadmissionpolicybindings/small", ""))
	s.eventually("the policy has no effect any more", func() bool {
		return s.as(admin, "POST", "/clusters/a"+maps+"?dryRun=All", large).code == http.StatusCreated
	})
}

// TestConversion: each workspace converts by its own webhook, although both define the same kind.
func TestConversion(t *testing.T) {
	s := newStage(t, "a", "b")
	const boats = "/apis/example.com/v2/namespaces/default/boats/one"
	for _, path := range []string{"a", "b"} {
		h := newConverter(t, path)
		s.want(201, s.as(admin, "POST", "/clusters/"+path+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(`{"metadata":{"name":"boats.example.com"},"spec":{
"group":"example.com","scope":"Namespaced","names":{"plural":"boats","singular":"boat","kind":"Boat"},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":%s}},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, h.at("/"))))
		s.eventually("the kind is served", func() bool {
			return s.as(admin, "POST", "/clusters/"+path+"/apis/example.com/v1/namespaces/default/boats", `{"apiVersion":"example.com/v1","kind":"Boat","metadata":{"name":"one"}}`).code == http.StatusCreated
		})
	}
	for _, path := range []string{"a", "b", "a"} {
		if got := s.want(200, s.as(admin, "GET", "/clusters/"+path+boats, "")); got.field(t, "metadata", "labels", "by") != path {
			t.Errorf("%s: %s", path, got.body)
		}
	}
}

// newConverter returns a webhook that converts objects, and labels them.
func newConverter(t *testing.T, label string) *hook {
	h := &hook{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON(raw.Raw); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			u.SetAPIVersion(review.Request.DesiredAPIVersion)
			u.SetLabels(map[string]string{"by": label})
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: u})
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(h.Close)
	return h
}

// TestPoliciesOfServersKinds: a policy of a workspace cannot change an object after the server has checked it.
func TestPoliciesOfServersKinds(t *testing.T) {
	s := newStage(t, "a")
	c, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	s.want(201, s.as(admin, "POST", "/clusters/a"+definitionsPath, definition("colour")))
	for resource, body := range map[string]string{
		"mutatingadmissionpolicies": `{"metadata":{"name":"label"},"spec":{"failurePolicy":"Fail","reinvocationPolicy":"Never",
"matchConstraints":{"resourceRules":[{"apiGroups":["example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["widgets"]}]},
"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: \"add\", path: \"/metadata/labels\", value: {\"by\": \"policy\"}}]"}}]}}`,
		"mutatingadmissionpolicybindings": `{"metadata":{"name":"label"},"spec":{"policyName":"label"}}`,
	} {
		s.want(201, s.as(admin, "POST", "/clusters/a"+registration+"/"+resource, body))
	}
	changed := func() bool {
		got := s.as(admin, "POST", "/clusters/a"+widgetsPath+"?dryRun=All", widget("w", "red"))
		return got.code == http.StatusCreated && strings.Contains(got.body, `"by":"policy"`)
	}
	s.eventually("the policy is effective", changed)
	c.announced.Insert("example.com") // as if it were a group of the server
	if changed() {
		t.Error("the policy changes an object of the server's group")
	}
}
