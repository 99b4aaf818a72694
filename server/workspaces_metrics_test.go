package server_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestWorkspaceMetrics: the number of metrics does not depend on the number of workspaces, because none has a workspace in its labels. Neither does it depend on what
// their users create: no label has the name of a kind, webhook or policy of theirs.
func TestWorkspaceMetrics(t *testing.T) {
	s := theServer(t)
	const name = "in-no-metric"
	config := s.createWorkspace(t, name)
	in := clientOf(t, config)
	if err := createSome(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	watch, err := in.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := in.CoreV1().Secrets("default").Get(t.Context(), "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	const chosen = "tenantschoice"
	s.mustKubectl(t, strings.NewReplacer("widget", chosen, "Widget", "Tenantschoice", "example.com", chosen+".com", "name: v1,", "name: v1"+chosen+",").Replace(widgetDefinition), "--server="+config.Host, "create", "-f", "-")
	policy := `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: tenantschoice}, spec: {validations: [{expression: "object.metadata.name != 'refused'"}],
		matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}}}`
	s.mustKubectl(t, policy, "--server="+config.Host, "create", "-f", "-")
	s.mustKubectl(t, `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: tenantschoice}, spec: {policyName: tenantschoice, validationActions: [Deny]}}`,
		"--server="+config.Host, "create", "-f", "-")
	eventually(t, "the policy refuses", func(ctx context.Context) error {
		_, err := in.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("it is permitted")
		}
		return nil
	})
	eventually(t, "the kind is served", func(ctx context.Context) error {
		_, err := in.RESTClient().Get().AbsPath("/apis/" + chosen + ".com/v1" + chosen + "/" + chosen + "s").DoRaw(ctx)
		return err
	})
	w, err := s.dynamic(t).Resource(tenancy.WorkspaceResource).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := s.client(t).RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`apiserver_request_total{code="200",component="apiserver",dry_run="",group="unexpected",resource="unexpected",scope="cluster",subresource="",verb="LIST",version="unexpected"}`,
		`group="",resource="secrets",`, `policy="unexpected",policy_binding="unexpected"`} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("no metric %s", want)
		}
	}
	if !strings.Contains(string(metrics), `priority_level="workspaces"`) {
		t.Error("the metrics have nothing of requests to workspaces")
	}
	for line := range strings.Lines(string(metrics)) {
		if strings.Contains(line, chosen) || strings.Contains(line, name) || strings.Contains(line, string(w.GetUID())) {
			t.Error(line)
		}
	}
}
