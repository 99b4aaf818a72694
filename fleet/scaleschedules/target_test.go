package scaleschedules

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// TestTargets: the condition follows the target and what can be scaled.
func TestTargets(t *testing.T) {
	f := prepare(t, office)
	f.run()
	if got := f.ready(v1alpha1.ReasonScaleNotFound); !strings.Contains(got, `"web" not found`) {
		t.Error(got)
	}
	f.put(web)
	f.ready(v1alpha1.ReasonScaleScheduled)
	f.Delete(deployments, "shop", "web")
	f.ready(v1alpha1.ReasonScaleNotFound)
	f.at(8, 0)
	f.rule("up", v1alpha1.ScaleFailed)
	f.change(func(spec map[string]any) {
		spec["target"] = map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "web"}
	})
	if got := f.ready(v1alpha1.ReasonScaleNotScalable); !strings.Contains(got, "ConfigMap v1 has no subresource scale") {
		t.Error(got)
	}
	f.change(func(spec map[string]any) {
		spec["target"] = map[string]any{"apiVersion": "example.com/v1", "kind": "Shop", "name": "web"}
	})
	if got := f.ready(v1alpha1.ReasonScaleNotFound); !strings.Contains(got, "serves no Shop in example.com/v1: correct spec.target") {
		t.Error(got)
	}
	f.change(func(spec map[string]any) { spec["timeZone"] = "Mars/Base" })
	if got := f.ready(v1alpha1.ReasonScaleInvalid); !strings.Contains(got, "spec.timeZone") {
		t.Error(got)
	}
}

// TestAutoscaler: rules set the bounds of an autoscaler, and leave out those that they do not name.
func TestAutoscaler(t *testing.T) {
	const autoscaler = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop}
spec: {minReplicas: 1, maxReplicas: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`
	f := prepare(t, web)
	scaler := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(autoscaler), &scaler.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Dynamic().Resource(autoscalers).Namespace("shop").Create(t.Context(), scaler, metav1.CreateOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	f.put(`
apiVersion: fleet.atoll.dev/v1alpha1
kind: ScaleSchedule
metadata: {name: office, namespace: shop, uid: s, generation: 1, creationTimestamp: "2026-02-01T07:00:00Z"}
spec:
  author: {username: ann}
  target: {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, name: web}
  rules:
  - {name: up, schedule: 0 8 * * *, minReplicas: 5, maxReplicas: 20}
  - {name: down, schedule: 0 20 * * *, minReplicas: 0}
`)
	f.run()
	f.ready(v1alpha1.ReasonScaleScheduled)
	bounds := func(low, high int64) {
		t.Helper()
		u := f.Get(autoscalers, "shop", "web")
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "minReplicas"); n != low {
			t.Errorf("minReplicas is %d, want %d", n, low)
		}
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "maxReplicas"); n != high {
			t.Errorf("maxReplicas is %d, want %d", n, high)
		}
	}
	bounds(1, 4)
	f.at(8, 0)
	if st := f.rule("up", v1alpha1.ScaleSucceeded); st.Message != "set minReplicas 5 and maxReplicas 20" {
		t.Errorf("%+v", st)
	}
	bounds(5, 20)
	managed := f.Get(autoscalers, "shop", "web").GetManagedFields()
	if !slices.ContainsFunc(managed, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == FieldManager && strings.Contains(string(m.FieldsV1.Raw), "f:maxReplicas")
	}) {
		t.Errorf("%+v", managed)
	}
	f.at(20, 0)
	f.rule("down", v1alpha1.ScaleSucceeded)
	bounds(0, 20)
}

// TestNoRequestWithoutAuthor: a request without an author would have all rights.
func TestNoRequestWithoutAuthor(t *testing.T) {
	f := prepare(t, web)
	authors, err := controllers.NewAsAuthor(f.Config(), FieldManager)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authors.Resource(deployments).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "without an author") {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	for code, want := range map[int32]string{
		http.StatusForbidden: v1alpha1.ReasonScaleRefused, http.StatusUnprocessableEntity: v1alpha1.ReasonScaleRefused, http.StatusBadRequest: v1alpha1.ReasonScaleRefused,
		http.StatusUnauthorized: "", http.StatusConflict: "", http.StatusTooManyRequests: "", http.StatusRequestTimeout: "",
		http.StatusInternalServerError: "", http.StatusServiceUnavailable: "", http.StatusGatewayTimeout: "",
	} {
		s := status(code, "", "no")
		err := refusalOf(&statusError{*s})
		r := refusal{}
		if !errors.As(err, &r) && want != "" || r.reason != want {
			t.Errorf("%d: %q, want %q", code, r.reason, want)
		}
		if (unknown(err) == nil) != (want != "") {
			t.Errorf("%d: the outcome is unknown: %v", code, unknown(err))
		}
	}
	if refusalOf(nil) != nil || unknown(nil) != nil {
		t.Error("success is refused")
	}
}

type statusError struct{ status metav1.Status }

func (s *statusError) Error() string         { return s.status.Message }
func (s *statusError) Status() metav1.Status { return s.status }
