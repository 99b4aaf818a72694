package apiserver_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestObjectsThatNameServices: applications create objects for which an API server calls
// Services. Here nothing waits for the Services, and the client gets a warning.
func TestObjectsThatNameServices(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.WorkloadAPIs = true
	server := startServer(t, keyspace, files, "sole")
	t.Cleanup(func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	})
	heard := &warnings{}
	config := rest.CopyConfig(server.config)
	config.WarningHandler = heard
	told := func(t *testing.T, parts ...string) {
		t.Helper()
		said := heard.take()
		for _, part := range parts {
			if !strings.Contains(said, part) {
				t.Errorf("warnings %q lack %q", said, part)
			}
		}
		if len(parts) == 0 && said != "" {
			t.Errorf("warnings %q, want none", said)
		}
	}
	t.Run("admission webhooks", func(t *testing.T) { hooksOfServices(t, config, told) })
	t.Run("conversion webhooks", func(t *testing.T) { conversionByService(t, config, told) })
	t.Run("APIServices", func(t *testing.T) { apiOfService(t, config, told) })
}

// refuser is a webhook that rejects objects called refused-by-url.
func refuser(t *testing.T) (url string, ca []byte) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "refused-by-url"}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	return server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func hooksOfServices(t *testing.T, config *rest.Config, told func(*testing.T, ...string)) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	url, ca := refuser(t)
	byURL := admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca}
	byService := admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "shop", Name: "guard"}}
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	none, fail := ptr.To(admissionregistrationv1.SideEffectClassNone), ptr.To(admissionregistrationv1.Fail)
	hooks := client.AdmissionregistrationV1()
	_, err = hooks.ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			{Name: "service.shop.example", ClientConfig: byService, Rules: rules, SideEffects: none, FailurePolicy: fail, AdmissionReviewVersions: []string{"v1"}},
			{Name: "url.shop.example", ClientConfig: byURL, Rules: rules, SideEffects: none, FailurePolicy: fail, AdmissionReviewVersions: []string{"v1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told(t, "webhook service.shop.example uses service shop/guard", "members call it")
	_, err = hooks.MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			{Name: "service.shop.example", ClientConfig: byService, Rules: rules, SideEffects: none, FailurePolicy: fail, AdmissionReviewVersions: []string{"v1"}},
			{Name: "url.shop.example", ClientConfig: byURL, Rules: rules, SideEffects: none, FailurePolicy: fail, AdmissionReviewVersions: []string{"v1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told(t, "webhook service.shop.example uses service shop/guard")

	maps := client.CoreV1().ConfigMaps("default")
	await(t, "the webhook with a URL is called", func() error {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused-by-url"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "url.shop.example") {
			return fmt.Errorf("error %v", err)
		}
		return nil
	})
	// The configurations are effective by now, and the failure policy is Fail.
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "fine"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a webhook that uses a Service blocks the write: %v", err)
	}
	whole, err := hooks.ValidatingWebhookConfigurations().Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil || len(whole.Webhooks) != 2 {
		t.Errorf("the stored configuration lacks a webhook: %+v, %v", whole, err)
	}
	told(t)
	for _, err := range []error{
		hooks.ValidatingWebhookConfigurations().Delete(t.Context(), "shop", metav1.DeleteOptions{}),
		hooks.MutatingWebhookConfigurations().Delete(t.Context(), "shop", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

func conversionByService(t *testing.T, config *rest.Config, told func(*testing.T, ...string)) {
	const group = "converted.example"
	client, err := apiextensions.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage, Schema: &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
		}}
	}
	_, err = client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v1beta1", false)},
			Conversion: &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ClientConfig:             &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Namespace: "shop", Name: "converter"}},
					ConversionReviewVersions: []string{"v1"},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told(t, "service shop/converter converts widgets", "use the storage version v1,", "not v1beta1")

	all, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	in := func(version string) dynamic.ResourceInterface {
		return all.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: "widgets"}).Namespace("default")
	}
	await(t, "a widget is created", func() error {
		_, err := in("v1").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one"},
		}}, metav1.CreateOptions{})
		return err
	})
	if _, err := in("v1").Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Errorf("in the storage version: %v", err)
	}
	_, err = in("v1beta1").Get(t.Context(), "one", metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), "service shop/converter runs in member clusters") {
		t.Errorf("in another version: %v, want an error with the next step", err)
	}
	if err := in("v1").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// apiOfService: the API cannot be served, and nothing else is affected: namespaces can
// still be emptied, which requires that all kinds are known.
func apiOfService(t *testing.T, config *rest.Config, told func(*testing.T, ...string)) {
	services, err := aggregator.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = services.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.usage.example"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "usage.example", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100,
			Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "usage"}, InsecureSkipTLSVerify: true,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told(t, "service kube-system/usage runs in member clusters", "usage.example v1beta1")
	namespaces := client.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "short-lived", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Discovery().ServerGroupsAndResources(); err != nil {
		t.Errorf("discovery fails: %v", err)
	}
	await(t, "a namespace is deleted", func() error { return gone(t.Context(), client, "short-lived") })
}

func gone(ctx context.Context, client kubernetes.Interface, namespace string) error {
	n, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("it still exists: %+v", n.Status)
}
