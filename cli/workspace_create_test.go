package cli_test

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestWorkspaceCreateWithType: the type is that of the flag; without it, the server chooses.
func TestWorkspaceCreateWithType(t *testing.T) {
	server := fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)
	server.OnStore(func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, string(v1alpha1.WorkspaceReady), "status", "phase")
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigOf(server)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{"small": {"--type", "small"}, "": nil} {
		path := "team-" + cmp.Or(name, "none")
		code, stdout, stderr := run(t, append([]string{"atoll", "workspace", "create", path, "--kubeconfig", kubeconfig}, flags...)...)
		if code != 0 || stdout != "workspace/"+path+" created\n" {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
		w := server.Get(v1alpha1.WorkspaceResource, "", path)
		if got, _, _ := unstructured.NestedString(w.Object, "spec", "type"); got != name {
			t.Errorf("%s has the type %q", path, got)
		}
	}
}
