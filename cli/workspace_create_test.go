package cli_test

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
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
	for name, flags := range map[string][]string{"small": {"--type", "small", "--placement", "Parent"}, "": nil} {
		path := "team-" + cmp.Or(name, "none")
		code, stdout, stderr := run(t, append([]string{"atoll", "workspace", "create", path, "--kubeconfig", kubeconfig}, flags...)...)
		if code != 0 || stdout != "workspace/"+path+" created\n" {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
		w := server.Get(v1alpha1.WorkspaceResource, "", path)
		if got, _, _ := unstructured.NestedString(w.Object, "spec", "type"); got != name {
			t.Errorf("%s has the type %q", path, got)
		}
		if from, _, _ := unstructured.NestedString(w.Object, "spec", "placement", "from"); (from == "Parent") != (flags != nil) {
			t.Errorf("the objects of %s are placed by %q", path, from)
		}
	}
}

// TestWorkspaceMove: the command creates the Workspace at the destination, names all that moves, and says what to do next.
func TestWorkspaceMove(t *testing.T) {
	server := fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)
	phase, reason := string(v1alpha1.WorkspaceReady), "Served"
	server.OnStore(func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, phase, "status", "phase")
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": "Ready", "status": "False", "reason": reason, "message": "choose another destination"}}, "status", "conditions")
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigOf(server)), 0o600); err != nil {
		t.Fatal(err)
	}
	move := func(args ...string) (code int, stdout, stderr string) {
		return run(t, append([]string{"atoll", "workspace", "move", "--kubeconfig", kubeconfig}, args...)...)
	}
	code, stdout, stderr := move("team-a:staging", "team-b")
	if code != 0 || stdout != "workspace/team-a:staging moved to team-b\n" || !strings.Contains(stderr, "workspace/team-a:staging moves to "+server.Config().Host+"/clusters/team-b\n") {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	w := server.Get(v1alpha1.WorkspaceResource, "", "team-b")
	if from, _, _ := unstructured.NestedString(w.Object, "spec", "source", "moveFrom"); from != "team-a:staging" {
		t.Errorf("it moves from %q", from)
	}
	if code, _, stderr := move("team-c", "team-b"); code == 0 || !strings.Contains(stderr, "there is a workspace team-b already") {
		t.Errorf("a path that is taken: %d: %s", code, stderr)
	}
	phase, reason = string(v1alpha1.WorkspacePending), "TooDeep"
	if code, _, stderr := move("team-c", "team-d"); code == 0 || !strings.Contains(stderr, "workspace team-d is not served: choose another destination") {
		t.Errorf("a move that needs a user: %d: %s", code, stderr)
	}
}
