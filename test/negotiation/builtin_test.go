package negotiation

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/atoll-dev/atoll/fleet/schema"
	"github.com/atoll-dev/atoll/test/pairs"
)

// documents reads the OpenAPI documents in the source of Kubernetes.
func documents(t *testing.T) map[string]*spec3.OpenAPI {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatalf("finding the source of Kubernetes: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "api/openapi-spec/v3/*_openapi.json"))
	if err != nil || len(files) < 20 {
		t.Fatalf("found %d documents: %v", len(files), err)
	}
	all := map[string]*spec3.OpenAPI{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc := &spec3.OpenAPI{}
		if err := json.Unmarshal(raw, doc); err != nil {
			t.Fatalf("reading %s: %v", file, err)
		}
		all[filepath.Base(file)] = doc
	}
	return all
}

// TestBuiltInKinds derives a schema from each kind that Kubernetes serves. Upstream's validation must
// accept each schema for a CRD.
func TestBuiltInKinds(t *testing.T) {
	kinds, loose := 0, 0
	for file, doc := range documents(t) {
		if doc.Paths == nil {
			continue
		}
		for path, item := range doc.Paths.Paths {
			if item.Get == nil || !strings.HasSuffix(path, "/{name}") || strings.Contains(path, "/watch/") {
				continue
			}
			gvk := kindOf(item.Get.Extensions["x-kubernetes-group-version-kind"])
			got, err := schema.FromOpenAPI(doc, gvk)
			if err != nil {
				t.Errorf("%s %s: %v", file, path, err)
				continue
			}
			kinds++
			if len(got.Loose) > 0 {
				loose++
				t.Logf("the schema of %s accepts more than its server at %v", gvk, got.Loose)
			}
			if got.Plural == "" || got.Scope == "" {
				t.Errorf("%s: got plural %q, scope %q", gvk, got.Plural, got.Scope)
			}
			if len(got.Loose) == 0 {
				if err := pairs.Validate(got.Schema); err != nil {
					t.Errorf("invalid schema of %s: %v", gvk, err)
				}
				if _, refusals := schema.Intersect(got, got, true); len(refusals) > 0 {
					t.Errorf("%s has no intersection with itself: %v", gvk, refusals)
				}
			}
		}
	}
	t.Logf("%d kinds, %d with a loose schema", kinds, loose)
	if kinds < 60 {
		t.Errorf("found only %d kinds", kinds)
	}
}

func kindOf(extension any) runtimeschema.GroupVersionKind {
	m, _ := extension.(map[string]any)
	text := func(key string) string { s, _ := m[key].(string); return s }
	return runtimeschema.GroupVersionKind{Group: text("group"), Version: text("version"), Kind: text("kind")}
}

// TestUnknownFieldsOfBuiltInKinds: a server knows all fields that a Go client of its version sends.
// Fields of later versions are reported by their paths.
func TestUnknownFieldsOfBuiltInKinds(t *testing.T) {
	doc := documents(t)["apis__apps__v1_openapi.json"]
	deployments, err := schema.FromOpenAPI(doc, appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err != nil {
		t.Fatal(err)
	}
	if !deployments.Status || deployments.Scale == nil {
		t.Errorf("status %v, scale %v", deployments.Status, deployments.Scale)
	}
	deployment := appsv1.Deployment{}
	deployment.APIVersion, deployment.Kind, deployment.Name = "apps/v1", "Deployment", "web"
	deployment.Spec.Template.Labels = map[string]string{"app": "web"}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:1", LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}}}}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&deployment)
	if err != nil {
		t.Fatal(err)
	}
	if got := schema.UnknownPaths(deployments.Schema, object); len(got) > 0 {
		t.Errorf("unknown: %v", got)
	}
	spec := object["spec"].(map[string]any)
	spec["later"] = true
	container := spec["template"].(map[string]any)["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	container["also"] = map[string]any{"later": 1}
	want := []string{".spec.later", ".spec.template.spec.containers[0].also"}
	if diff := cmp.Diff(want, schema.UnknownPaths(deployments.Schema, object)); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
}
