package apply_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/test/programs"
)

// as returns the same server, used by a user with these ClusterRoles in a namespace, or by the administrator if user
// is empty.
func (w *environment) as(t *testing.T, namespace, user string, roles ...string) *environment {
	t.Helper()
	config, err := clientcmd.LoadFromFile(w.server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[config.CurrentContext].Namespace = namespace
	if user != "" {
		// The administrator's credentials, impersonating the user.
		info := *config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo]
		info.Impersonate = user
		config.AuthInfos = map[string]*clientcmdapi.AuthInfo{user: &info}
		config.Contexts[config.CurrentContext].AuthInfo = user
	}
	server := *w.server
	server.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, server.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		w.kubectl(t, "create", "rolebinding", user+"-"+strings.ReplaceAll(role, ":", "-"), "-n", namespace, "--clusterrole="+role, "--user="+user)
	}
	other := *w
	other.server = &server
	return &other
}

// namespace creates a namespace with a world of its own, and returns the server as its administrator uses it.
func (w *environment) namespace(t *testing.T, namespace string) *environment {
	t.Helper()
	w.kubectl(t, "create", "namespace", namespace)
	room := w.as(t, namespace, "")
	room.dir = t.TempDir()
	room.world = filepath.Join(w.world, namespace)
	room.apply(t, room.providerObjects(namespace))
	return room
}

// refused fails the test unless kubectl fails with all of these texts.
func (w *environment) refused(t *testing.T, manifest string, args []string, wanted ...string) {
	t.Helper()
	out, err := w.tryKubectl(t.Context(), manifest, args...)
	if err == nil {
		t.Fatalf("kubectl %s was not refused:\n%s\n%s", strings.Join(args, " "), manifest, out)
	}
	for _, want := range wanted {
		if !strings.Contains(err.Error(), want) {
			t.Fatalf("the error of kubectl %s lacks %q:\n%v", strings.Join(args, " "), want, err)
		}
	}
}

// may waits until a role that was bound to the user is effective.
func (w *environment) may(t *testing.T, verb, resource string) {
	t.Helper()
	programs.Eventually(t, time.Minute, verb+" "+resource+" is allowed", func(ctx context.Context) error {
		_, err := w.tryKubectl(ctx, "", "auth", "can-i", verb, resource, "-q")
		return err
	})
}

// waitField waits until a field of an object contains a text.
func (w *environment) waitField(t *testing.T, object, path, want string) {
	t.Helper()
	programs.Eventually(t, time.Minute, object+" has "+path+" "+want, func(ctx context.Context) error {
		got, err := w.tryKubectl(ctx, "", "get", object, "-o", "jsonpath={"+path+"}")
		if err == nil && !strings.Contains(got, want) {
			return fmt.Errorf("%s of %s is %q", path, object, got)
		}
		return err
	})
}

func network(name, cidr string) string {
	return fmt.Sprintf("{apiVersion: demo.providers.atoll.dev/v1, kind: Network, metadata: {name: %s}, spec: {name: %s, cidr: %s}}\n---\n", name, name, cidr)
}

func file(name, content string) string {
	return fmt.Sprintf("{apiVersion: demo.providers.atoll.dev/v1, kind: File, metadata: {name: %s}, spec: {name: %s, content: %q}}\n---\n", name, name, content)
}

func approval(plan, digest string) string {
	return fmt.Sprintf(`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Approval","metadata":{"generateName":"by-hand-"},
		"spec":{"plan":%q,"digest":%q,"approver":{"username":"somebody else"}}}`, plan, digest)
}

func (w *environment) digest(t *testing.T, plan string) string {
	t.Helper()
	return w.kubectl(t, "get", "plan", plan, "-o", "jsonpath={.status.digest}")
}

var otherDigest = "sha256:" + strings.Repeat("0", 64)

// TestPermissions: writing, approving, reading and running providers are separate roles. No role includes another's
// permissions.
func TestPermissions(t *testing.T) {
	t.Parallel()
	shop := sharedServer(t).namespace(t, "shop")
	approver := shop.as(t, "shop", "ann", "atoll:infra-approver")
	viewer := shop.as(t, "shop", "vic", "atoll:infra-viewer")
	// The last, so that the other bindings are effective when this one is.
	editor := shop.as(t, "shop", "ed", "atoll:infra-editor")
	stranger := shop.as(t, "shop", "nora")
	programs.Eventually(t, time.Minute, "the editor may write the provider's kinds", func(ctx context.Context) error {
		_, err := editor.tryKubectl(ctx, network("main", "10.1.0.0/16"), "apply", "-f", "-")
		return err
	})
	plan := editor.createPlan(t)
	digest := editor.digest(t, plan)

	t.Log("users without permission to approve")
	create := []string{"create", "-f", "-"}
	for _, env := range []*environment{editor, viewer, stranger} {
		env.refused(t, approval(plan, digest), create, "Forbidden", `cannot create resource "approvals"`)
	}
	editor.atoll(t, "approve", plan, "--yes").expect(t, 1, "permission denied", "atoll:infra-approver")
	editor.atoll(t, "apply", plan, "--auto-approve").expect(t, 1, "permission denied", "atoll:infra-approver")
	editor.atoll(t, "apply", "--auto-approve").expect(t, 1, "permission denied", "The plan is kept: once it is approved, apply it with `atoll apply ")
	viewer.atoll(t, "show", plan).expect(t, 0, "1 to add")
	viewer.atoll(t, "plan").expect(t, 1, "permission denied", "atoll:infra-editor")
	stranger.atoll(t, "show", plan).expect(t, 1, "permission denied")
	approver.atoll(t, "apply", plan, "--auto-approve").expect(t, 1, "permission denied", "atoll:infra-editor")
	if made := shop.countResources(t); made != 0 {
		t.Fatalf("%d resources were created", made)
	}

	t.Log("plans that cannot be approved")
	for manifest, want := range map[string]string{
		approval(plan, otherDigest):    "spec.digest: Invalid value",
		approval("none", digest):       "no such plan",
		approval(plan, "sha256:short"): "spec.digest",
	} {
		approver.refused(t, manifest, create, want)
	}
	approver.atoll(t, "approve", plan, "--digest", otherDigest).expect(t, 1, "plan "+plan+" has digest "+digest, "atoll show "+plan)

	t.Log("the server sets the approver")
	made := strings.TrimSuffix(strings.Fields(mustKubectl(t, approver, approval(plan, digest), create...))[0], " created")
	if by := shop.kubectl(t, "get", made, "-o", "jsonpath={.spec.approver.username}"); by != "ann" {
		t.Fatalf("the approver is %q", by)
	}
	shop.refused(t, "", []string{"patch", made, "--type=merge", "-p", `{"spec":{"reason":"another"}}`}, "an approval is immutable: delete it to withdraw it")
	editor.atoll(t, "apply", plan).expect(t, 0, "1 added")
	if by := shop.kubectl(t, "get", "applies", "-o", `jsonpath={.items[*].status.approvedBy}`); by != `["ann"]` {
		t.Fatalf("approved by %s", by)
	}

	t.Log("secrets, and objects that run programs")
	for _, env := range []*environment{editor, approver, viewer} {
		env.refused(t, "", []string{"get", "resourcestates"}, "Forbidden")
		env.refused(t, "", []string{"get", "plansecrets"}, "Forbidden")
		env.refused(t, env.providerObjects("shop"), []string{"create", "-f", "-"}, `cannot create resource "providers"`, `cannot create resource "providerconfigs"`)
		env.refused(t, `{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"SyncPolicy","metadata":{"name":"mine"},"spec":{"mode":"Auto","approval":{"required":0}}}`,
			[]string{"create", "-f", "-"}, `cannot create resource "syncpolicies"`)
	}
	operator := shop.as(t, "shop", "ole")
	shop.kubectl(t, "create", "clusterrolebinding", "ole", "--clusterrole=atoll:infra-operator", "--user=ole")
	operator.may(t, "create", "providers.infra.atoll.dev")
	operator.apply(t, operator.providerObjects("shop"))
	operator.refused(t, approval(plan, digest), create, "Forbidden")
}

func mustKubectl(t *testing.T, w *environment, manifest string, args ...string) string {
	t.Helper()
	out, err := w.tryKubectl(t.Context(), manifest, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestStalePlanIsRejectedInPart: an object that was edited after the approval is rejected; the other changes are
// applied.
func TestStalePlanIsRejectedInPart(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "moved")
	w.apply(t, network("a", "10.1.0.0/16")+network("b", "10.2.0.0/16")+file("of-b", `${demo_network["b"].gateway}`)+file("alone", "one"))
	plan := w.createPlan(t)
	w.mustAtoll(t, "approve", plan, "--yes")
	w.apply(t, network("b", "10.3.0.0/16"))
	w.waitField(t, "plan/"+plan, `.status.conditions[?(@.type=="Current")].reason`, "Moved")
	w.atoll(t, "show", plan).expect(t, 0, "This plan is stale", `demo_network["b"]`, "`atoll plan")
	w.atoll(t, "apply", plan).expect(t, 1, "2 added", "1 rejected as stale", "1 blocked by those", "`atoll apply")
	if made := w.countResources(t); made != 2 {
		t.Fatalf("%d resources were created, want the two unchanged ones", made)
	}
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "Apply complete! Resources: 2 added, 0 changed, 0 destroyed.")
	if got := w.file(t, "of-b"); got != w.gateway(t, "b") {
		t.Fatalf("of-b is %q", got)
	}
}
