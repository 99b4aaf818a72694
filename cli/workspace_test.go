package cli

import (
	"context"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestSwitchWorkspace: contexts of workspaces have the user and the certificate authority of the root's, and lead back to it.
func TestSwitchWorkspace(t *testing.T) {
	config := &clientcmdapi.Config{CurrentContext: "atoll",
		Clusters:  map[string]*clientcmdapi.Cluster{"atoll": {Server: "https://atoll:6443", CertificateAuthority: "ca.crt"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {}},
		Contexts:  map[string]*clientcmdapi.Context{"atoll": {Cluster: "atoll", AuthInfo: "me", Namespace: "shop"}}}
	for _, step := range []struct{ from, use, context, server string }{
		{"", "team-a", "atoll:team-a", "https://atoll:6443/clusters/team-a"},
		{"", "team-b", "atoll:team-b", "https://atoll:6443/clusters/team-b"},
		{"team-a:x", "..", "atoll:team-a", "https://atoll:6443/clusters/team-a"},
		{"root", ":team-b", "atoll:team-b", "https://atoll:6443/clusters/team-b"},
		{"", "team-a", "atoll:team-a", "https://atoll:6443/clusters/team-a"},
		{"", "root", "atoll", "https://atoll:6443"},
		{"", "root", "atoll", "https://atoll:6443"},
	} {
		if err := switchWorkspace(config, step.from, step.use); err != nil {
			t.Fatal(err)
		}
		is := config.Contexts[config.CurrentContext]
		cluster := config.Clusters[is.Cluster]
		if config.CurrentContext != step.context || cluster.Server != step.server || cluster.CertificateAuthority != "ca.crt" || is.AuthInfo != "me" {
			t.Errorf("use %s: context %s, %+v, %+v", step.use, config.CurrentContext, is, cluster)
		}
	}
	if len(config.Contexts) != 3 {
		t.Errorf("%d contexts", len(config.Contexts))
	}
	config.CurrentContext = "missing"
	if err := switchWorkspace(config, "", "team-a"); err == nil || !strings.Contains(err.Error(), "--context") {
		t.Error(err)
	}
}

func TestWorkspacePath(t *testing.T) {
	for _, c := range []struct{ current, given, want string }{
		{"", "team-a", "team-a"},
		{"team-a", "team-b", "team-b"},
		{"team-a", "team-b:staging", "team-b:staging"},
		{"team-a", ":staging", "team-a:staging"},
		{"", ":team-a", "team-a"},
		{"team-a:staging", "..", "team-a"},
		{"team-a", "..", ""},
		{"team-a", "root", ""},
	} {
		if got, err := workspacePath(c.current, c.given); err != nil || got != c.want {
			t.Errorf("%q in %q: %q, %v, want %q", c.given, c.current, got, err, c.want)
		}
	}
	for given, want := range map[string]string{"..": "none above it", "Team": `"Team" is invalid`, "a::b": `"" is invalid`, "a/b": `"a/b" is invalid`} {
		if got, err := workspacePath("", given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, want %q", given, got, err, want)
		}
	}
}

// TestReadablePath: commands that read accept trees, relative to the current workspace or tree. Those that name one workspace do not.
func TestReadablePath(t *testing.T) {
	for _, c := range []struct{ current, given, want string }{
		{"", "*", "*"}, {"team-a", "*", "*"}, {"", ":*", "*"}, {"team-a", ":*", "team-a:*"}, {"", "team-a:*", "team-a:*"}, {"team-a", ":x:*", "team-a:x:*"},
		{"team-a", "root:*", "*"}, {"team-a:*", ":x", "team-a:x"}, {"team-a:*", ":*", "team-a:*"}, {"*", "team-a", "team-a"}, {"*", ":team-a", "team-a"}, {"team-a:x:*", "..", "team-a"},
	} {
		if got, err := readablePath(c.current, c.given); err != nil || got != c.want {
			t.Errorf("%q in %q: %q, %v, want %q", c.given, c.current, got, err, c.want)
		}
	}
	for _, given := range []string{"*:*", "*:x", "a*", "a:*:b", "a::*", "A:*", "a:**"} {
		if got, err := readablePath("", given); err == nil {
			t.Errorf("%q: %q", given, got)
		}
	}
	for _, given := range []string{"*", "a:*", ":*"} {
		if got, err := workspacePath("a", given); err == nil || !strings.Contains(err.Error(), "name one workspace") {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
}

// TestWorkspaceTree: the tree has all levels; a workspace that the user may not look into is shown without those below it.
func TestWorkspaceTree(t *testing.T) {
	ready := v1alpha1.WorkspaceStatus{Phase: v1alpha1.WorkspaceReady}
	named := func(name string, status v1alpha1.WorkspaceStatus) v1alpha1.Workspace {
		return v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status}
	}
	list := func(_ context.Context, path string) ([]v1alpha1.Workspace, error) {
		switch path {
		case "":
			return []v1alpha1.Workspace{named("b", v1alpha1.WorkspaceStatus{}), named("a", ready), named("secret", ready)}, nil
		case "a":
			return []v1alpha1.Workspace{named("staging", ready)}, nil
		case "secret":
			return nil, apierrors.NewForbidden(v1alpha1.WorkspaceResource.GroupResource(), "", nil)
		}
		return nil, nil
	}
	var out strings.Builder
	if err := printTree(t.Context(), &out, list, "", ""); err != nil {
		t.Fatal(err)
	}
	if want := "├── a\n│   └── staging\n├── b (Pending)\n└── secret\n"; out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
}

// TestWorkspaceCopyCommand: both workspaces are in the same API. Each message is printed once, and what waiting does not change ends the wait.
func TestWorkspaceCopyCommand(t *testing.T) {
	copied, err := workspaceCopy("team-a:staging", "team-a:test")
	if err != nil || copied.GetName() != "test" || !reflect.DeepEqual(copied.Object["spec"], map[string]any{"source": map[string]any{"name": "staging"}}) {
		t.Errorf("%v, %v", copied, err)
	}
	if _, err := workspaceCopy("team-a", "team-a:test"); err == nil || !strings.Contains(err.Error(), "both must be in the same workspace") {
		t.Error(err)
	}
	var out strings.Builder
	observe := copyProgress(&out, "team-a:test")
	for _, message := range []string{"copied 1 of about 2 objects", "copied 1 of about 2 objects", "copied 2 of about 2 objects"} {
		if err := observe(metav1.Condition{Status: metav1.ConditionFalse, Reason: "Copying", Message: message}); err != nil {
			t.Error(err)
		}
	}
	if err := observe(metav1.Condition{Status: metav1.ConditionTrue, Reason: "Served", Message: "the workspace is served"}); err != nil {
		t.Error(err)
	}
	if want := "workspace/team-a:test: copied 1 of about 2 objects\nworkspace/team-a:test: copied 2 of about 2 objects\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	if err := observe(metav1.Condition{Reason: "LimitExceeded", Message: "raise it"}); err == nil || err.Error() != "workspace team-a:test is not served: raise it" {
		t.Error(err)
	}
}

// TestSuggestedCommands: commands in messages act in the workspace that the flag -w named, and kubectl is explained once.
func TestSuggestedCommands(t *testing.T) {
	root := New("atoll")
	cmd, _, err := root.Find([]string{"drain"})
	if err != nil {
		t.Fatal(err)
	}
	const message = "run `atoll uncordon east`, `kubectl atoll explain web`, `atoll move web -w :x`, `atoll syncer --x`, `atoll workspace tree` or `atoll nothing`"
	if got := inSameWorkspace(cmd, message); got != message {
		t.Errorf("without the flag: %s", got)
	}
	if err := cmd.Flags().Set("workspace", "*"); err != nil {
		t.Fatal(err)
	}
	const want = "run `atoll uncordon east -w '*'`, `kubectl atoll explain web -w '*'`, `atoll move web -w :x`, `atoll syncer --x`, `atoll workspace tree` or `atoll nothing`"
	if got := inSameWorkspace(cmd, message); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := inSameWorkspace(cmd, "see `kubectl get clusters`, or `kubectl get nodes`\n"); got != "see `kubectl get clusters`, or `kubectl get nodes`\nFor kubectl in this workspace, run `atoll workspace use '*'` first" {
		t.Error(got)
	}
}
