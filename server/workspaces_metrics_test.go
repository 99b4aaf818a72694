package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestWorkspaceMetrics: the number of metrics does not depend on the number of workspaces, because none has a workspace in its labels.
func TestWorkspaceMetrics(t *testing.T) {
	s := theServer(t)
	const name = "in-no-metric"
	in := clientOf(t, s.createWorkspace(t, name))
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
	w, err := s.dynamic(t).Resource(tenancy.WorkspaceResource).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := s.client(t).RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(metrics), `priority_level="workspaces"`) {
		t.Error("the metrics have nothing of requests to workspaces")
	}
	for line := range strings.Lines(string(metrics)) {
		if strings.Contains(line, name) || strings.Contains(line, string(w.GetUID())) {
			t.Error(line)
		}
	}
}
