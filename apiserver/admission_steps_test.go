package apiserver_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// recordMaker records the creating user in gadgets permanently, and rejects bad ones.
func recordMaker() apiserver.AdmissionStep {
	return apiserver.AdmissionStep{
		Resource: gadgets().GroupResource(),
		Complete: func(r *apiserver.AdmissionRequest) {
			maker := r.User.Name + " " + strings.Join(r.User.Groups, ",") + " " + r.UserUID
			if r.Old != nil {
				maker, _, _ = unstructured.NestedString(r.Old.Object, "spec", "maker")
			}
			_ = unstructured.SetNestedField(r.Object.Object, maker, "spec", "maker")
		},
		Check: func(_ context.Context, r *apiserver.AdmissionRequest) error {
			if bad, _, _ := unstructured.NestedBool(r.Object.Object, "spec", "bad"); bad {
				return apierrors.NewConflict(gadgets().GroupResource(), r.Name, errors.New("rejected by the step"))
			}
			return nil
		},
	}
}

func gadget(name, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion":"tools.example.com/v1","kind":"Gadget","metadata":{"name":%q,"namespace":"default"},"spec":%s}`, name, spec)
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		panic(err)
	}
	return u
}

func recordedMaker(u *unstructured.Unstructured) string {
	maker, _, _ := unstructured.NestedString(u.Object, "spec", "maker")
	return maker
}

// TestAdmissionSteps: however an object is written, it has the field that the server
// sets, and the field does not change.
func TestAdmissionSteps(t *testing.T) {
	t.Parallel()
	cfg := makeFiles(t)
	cfg.Admission = []apiserver.AdmissionStep{recordMaker()}
	server := serveGadgets(t, cfg)
	as := rest.CopyConfig(server.config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "ann", UID: "7", Groups: []string{"system:masters"}, Extra: map[string][]string{"secret": {"x"}}}
	ann, bob := dynamicClient(t, as).Resource(gadgets()).Namespace("default"), dynamicClient(t, server.config).Resource(gadgets()).Namespace("default")
	const ofAnn = "ann system:masters,system:authenticated 7"
	must := func(what string, u *unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := recordedMaker(u); got != ofAnn {
			t.Errorf("%s: recorded maker %q", what, got)
		}
	}
	ctx, dry := t.Context(), []string{metav1.DryRunAll}
	u, err := ann.Create(ctx, gadget("a", `{"maker":"the king","size":1}`), metav1.CreateOptions{DryRun: dry})
	must("a dry run", u, err)
	u, err = ann.Create(ctx, gadget("a", `{"maker":"the king","size":1}`), metav1.CreateOptions{})
	must("created", u, err)
	u, err = ann.Create(ctx, gadget("b", `{"maker":{"not":"even text"}}`), metav1.CreateOptions{})
	must("created with an invalid value", u, err)

	_ = unstructured.SetNestedField(u.Object, "bob", "spec", "maker")
	u, err = bob.Update(ctx, u, metav1.UpdateOptions{})
	must("updated by another", u, err)
	unstructured.RemoveNestedField(u.Object, "spec", "maker")
	u, err = bob.Update(ctx, u, metav1.UpdateOptions{})
	must("updated without", u, err)
	u, err = bob.Patch(ctx, "b", types.MergePatchType, []byte(`{"spec":{"maker":null,"size":2}}`), metav1.PatchOptions{})
	must("merged", u, err)
	u, err = bob.Patch(ctx, "b", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/maker","value":"bob"}]`), metav1.PatchOptions{})
	must("patched", u, err)

	apply := metav1.ApplyOptions{FieldManager: "kubectl", Force: true}
	for _, spec := range []string{`{"maker":"the king","size":1}`, `{"maker":"the king","size":2}`, `{"size":3}`} {
		u, err = ann.Apply(ctx, "c", gadget("c", spec), apply)
		must("applied "+spec, u, err)
	}
	u, err = bob.Apply(ctx, "c", gadget("c", `{"maker":"bob"}`), metav1.ApplyOptions{FieldManager: "bob", Force: true})
	must("applied by another", u, err)
	// Writes to the status run no step.
	u, err = bob.Patch(ctx, "c", types.MergePatchType, []byte(`{"status":{"phase":"x"}}`), metav1.PatchOptions{}, "status")
	must("a new status", u, err)

	for what, try := range map[string]func() error{
		"create": func() error {
			_, err := ann.Create(ctx, gadget("d", `{"bad":true}`), metav1.CreateOptions{})
			return err
		},
		"dry run": func() error {
			_, err := ann.Create(ctx, gadget("d", `{"bad":true}`), metav1.CreateOptions{DryRun: dry})
			return err
		},
		"apply": func() error { _, err := ann.Apply(ctx, "d", gadget("d", `{"bad":true}`), apply); return err },
		"patch": func() error {
			_, err := ann.Patch(ctx, "c", types.MergePatchType, []byte(`{"spec":{"bad":true}}`), metav1.PatchOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "rejected by the step") {
			t.Errorf("%s of a rejected object: %v", what, err)
		}
	}

	t.Run("webhooks see it and cannot change it", func(t *testing.T) { webhookOfMakers(t, server) })
}

// webhookOfMakers installs a mutating webhook that records the maker it sees, and
// replaces the maker in objects called forged. Then the server sets it again. A second
// webhook replaces it in objects called stubborn whenever it sees them changed.
func webhookOfMakers(t *testing.T, server running) {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var u unstructured.Unstructured
		if err := errors.Join(json.NewDecoder(r.Body).Decode(&review), json.Unmarshal(review.Request.Object.Raw, &u.Object)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		patch := fmt.Sprintf(`[{"op":"add","path":"/spec/seen","value":%q}]`, recordedMaker(&u))
		if u.GetName() == strings.TrimPrefix(r.URL.Path, "/") {
			patch = `[{"op":"add","path":"/spec/maker","value":"the king"}]`
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	client, err := kubernetes.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string, again admissionregistrationv1.ReinvocationPolicyType) admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{
			Name: name + ".example.com", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To(hook.URL + "/" + name), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{gadgets().Group}, APIVersions: []string{"v1"}, Resources: []string{"gadgets"}},
			}},
			ReinvocationPolicy: &again,
		}
	}
	if _, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "makers"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			of("forged", admissionregistrationv1.NeverReinvocationPolicy), of("stubborn", admissionregistrationv1.IfNeededReinvocationPolicy),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := dynamicClient(t, server.config).Resource(gadgets()).Namespace("default")
	await(t, "the webhook sees the maker", func() error {
		u, err := all.Create(t.Context(), gadget("seen", `{}`), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if seen, _, _ := unstructured.NestedString(u.Object, "spec", "seen"); seen == "" || seen != recordedMaker(u) {
			return fmt.Errorf("the webhook saw %q, want %q", seen, recordedMaker(u))
		}
		return nil
	})
	u, err := all.Create(t.Context(), gadget("forged", `{}`), metav1.CreateOptions{})
	if err != nil || strings.Contains(recordedMaker(u), "the king") {
		t.Errorf("forged: made by %q, %v", recordedMaker(u), err)
	}
	_, err = all.Create(t.Context(), gadget("stubborn", `{}`), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "a mutating policy or webhook changes a field that the server sets") {
		t.Errorf("stubborn: %v", err)
	}
}

// The server's configuration cannot disable them.
func TestAdmissionStepsCannotBeDisabled(t *testing.T) {
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	for name, change := range map[string]func(*apiserver.Config){
		"AtollAdmission cannot be disabled": func(c *apiserver.Config) { c.DisableAdmissionPlugins = []string{"AtollAdmission"} },
		"AtollFleetQuota cannot be disabled": func(c *apiserver.Config) {
			c.WriteCheck, c.DisableAdmissionPlugins = &apiserver.WriteCheck{}, []string{"AtollFleetQuota"}
		},
		"AtollUnowned cannot be disabled": func(c *apiserver.Config) { c.DisableAdmissionPlugins = []string{"AtollUnowned"} },
		"AtollSigners cannot be disabled": func(c *apiserver.Config) { c.DisableAdmissionPlugins = []string{"AtollSigners"} },
		"merge them":                      func(c *apiserver.Config) { c.Admission = append(c.Admission, recordMaker()) },
	} {
		cfg := makeFiles(t)
		cfg.Workspace, cfg.Keyspace, cfg.Identity, cfg.AdvertiseAddress = "default", keyspace, "sole", net.IPv4(127, 0, 0, 1)
		cfg.Admission = []apiserver.AdmissionStep{recordMaker()}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Listener = listener
		change(&cfg)
		if _, err := apiserver.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error with %q", err, name)
		}
		listener.Close()
	}
}
