package hostile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

// tenants is a server with a provider whose resources are files. Its tests share it, each with namespaces of its own.
var tenants = &stage{}

// tenant is a user of that server in a namespace.
type tenant struct {
	t          *testing.T
	namespace  string
	kubeconfig string
	world      string // where the provider keeps the namespace's resources
}

// owner returns the administrator, who creates the namespace and configures the provider there.
func owner(t *testing.T, namespace string) *tenant {
	t.Helper()
	mirror := providers.Build(t)
	tenants.once.Do(func() { tenants.err = tenants.start("--provider-mirror", mirror.Packed) })
	if tenants.err != nil {
		t.Fatal(tenants.err)
	}
	granted := providers.World(t, tenants.dir) // of one Provider for all tenants
	w := (&tenant{t: t, namespace: namespace, world: filepath.Join(granted, namespace)}).as("")
	w.kubectl("create", "namespace", namespace)
	programs.Eventually(t, settle, "the provider is created", func(ctx context.Context) error {
		_, err := programs.Run(ctx, tenants.dir, "kubectl", w.kubeconfig, mirror.Manifests(namespace, granted, w.world), "apply", "-f", "-")
		return err
	})
	programs.Eventually(t, settle, "the provider is served", func(ctx context.Context) error {
		_, err := programs.Run(ctx, tenants.dir, "kubectl", w.kubeconfig, "", "wait", "--for=condition=Served", "--timeout=20s", "provider/demo")
		return err
	})
	return w
}

// as returns another user of the namespace, with these ClusterRoles in it. Without a name, it is the administrator.
func (w *tenant) as(user string, roles ...string) *tenant {
	w.t.Helper()
	config, err := clientcmd.LoadFromFile(tenants.server.Kubeconfig)
	if err != nil {
		w.t.Fatal(err)
	}
	context := config.Contexts[config.CurrentContext]
	context.Namespace = w.namespace
	if user != "" {
		info := *config.AuthInfos[context.AuthInfo]
		info.Impersonate = user
		config.AuthInfos[user], context.AuthInfo = &info, user
	}
	other := *w
	other.kubeconfig = filepath.Join(w.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, other.kubeconfig); err != nil {
		w.t.Fatal(err)
	}
	for _, role := range roles {
		w.kubectl("create", "rolebinding", user+"-"+strings.ReplaceAll(role, ":", "-"), "--clusterrole="+role, "--user="+user)
	}
	return &other
}

func (w *tenant) try(manifest string, args ...string) (string, error) {
	return programs.Run(w.t.Context(), tenants.dir, "kubectl", w.kubeconfig, manifest, args...)
}

func (w *tenant) kubectl(args ...string) string {
	w.t.Helper()
	out, err := w.try("", args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// apply applies manifests, once the user's rights have taken effect.
func (w *tenant) apply(manifest string) {
	w.t.Helper()
	programs.Eventually(w.t, settle, "the objects are applied", func(ctx context.Context) error {
		_, err := programs.Run(ctx, tenants.dir, "kubectl", w.kubeconfig, manifest, "apply", "-f", "-")
		return err
	})
}

// atoll runs a command, and returns its exit code and output.
func (w *tenant) atoll(args ...string) (int, string) {
	w.t.Helper()
	a, err := programs.Ask(w.t.Context(), tenants.dir, "atoll", w.kubeconfig, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return a.Code, a.Out + a.Errs
}

// succeeds runs a command of atoll, which must succeed, and returns its output.
func (w *tenant) succeeds(args ...string) string {
	w.t.Helper()
	code, text := w.atoll(args...)
	if code != 0 {
		w.t.Fatalf("atoll %s: exit code %d\n%s", strings.Join(args, " "), code, text)
	}
	return text
}

// plan makes a plan, and returns its name.
func (w *tenant) plan() string {
	w.t.Helper()
	code, text := w.atoll("plan", "-o", "name")
	name, found := strings.CutPrefix(strings.TrimSpace(strings.Split(text, "\n")[0]), "plan.infra.atoll.dev/")
	if !found {
		w.t.Fatalf("atoll plan: exit code %d\n%s", code, text)
	}
	return name
}

// waits waits until a field of an object contains a text.
func (w *tenant) waits(object, path, want string) {
	w.t.Helper()
	programs.Eventually(w.t, settle, object+" has "+want, func(ctx context.Context) error {
		got, err := programs.Run(ctx, tenants.dir, "kubectl", w.kubeconfig, "", "get", object, "-o", "jsonpath={"+path+"}")
		if err == nil && !strings.Contains(got, want) {
			return fmt.Errorf("%s is %q", path, got)
		}
		return err
	})
}

// lacks fails the test if a text contains any of these, or lacks the others.
func lacks(t *testing.T, text string, secrets []string, wanted ...string) {
	t.Helper()
	for _, secret := range secrets {
		if secret == "" || strings.Contains(text, secret) {
			t.Errorf("it shows %q:\n%s", secret, text)
		}
	}
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
}

func (w *tenant) files() []string {
	names, err := filepath.Glob(filepath.Join(w.world, "files", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

func fileManifest(name, content, more string) string {
	return fmt.Sprintf("{apiVersion: demo.providers.atoll.dev/v1, kind: File, metadata: {name: %s%s}, spec: {name: %s, content: %q}}\n---\n", name, more, name, content)
}

func grantManifest(to string) string {
	return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: to-mallory},
  spec: {from: [{group: demo.providers.atoll.dev, kind: File, namespace: mallory}], to: [%s]}}`, to)
}

const demoSecret = "{apiVersion: demo.providers.atoll.dev/v1, kind: Secret, metadata: {name: db}, spec: {name: db, secret: {secretKeyRef: {name: key, key: key}}}}\n---\n"

// TestReadsOfOtherNamespaces: an editor of one namespace reads no attribute of another's resources without a grant, no sensitive
// one without a grant that names the resource, no object of another namespace, and no cluster-scoped object that they may
// not read themselves. A grant counts when a value is read, also while a plan is applied.
func TestReadsOfOtherNamespaces(t *testing.T) {
	victim := owner(t, "victim")
	victim.kubectl("create", "secret", "generic", "key", "--from-literal=key=xyzzy-secret")
	victim.kubectl("create", "configmap", "settings", "--from-literal=key=plugh-setting")
	victim.apply(demoSecret + "{apiVersion: demo.providers.atoll.dev/v1, kind: Network, metadata: {name: net}, spec: {name: net, cidr: 10.7.0.0/16}}")
	victim.succeeds("apply", "--auto-approve")
	gateway := victim.kubectl("get", "network.demo.providers.atoll.dev", "net", "-o", "jsonpath={.status.attributes.gateway}")
	uid := victim.kubectl("get", "clusterrolebinding", "cluster-admin", "-o", "jsonpath={.metadata.uid}")
	values := []string{"xyzzy-secret", "plugh-setting", gateway, uid}

	admin := owner(t, "mallory")
	mallory := admin.as("mallory", "atoll:infra-editor", "atoll:infra-approver")
	admin.kubectl("create", "configmap", "settings", "--from-literal=key=mine")
	for _, attack := range []struct{ name, reads, says string }{
		{"attribute", `${namespace["victim"].demo_network["net"].gateway}`, "to: [{group: demo.providers.atoll.dev, kind: Network, name: net}]"},
		{"sensitive", `${namespace["victim"].demo_secret["db"].secret}`, "namespace victim does not grant File.demo.providers.atoll.dev of namespace mallory a reference to Secret.demo.providers.atoll.dev db"},
		{"absent", `${namespace["victim"].demo_network["none"].gateway}`, "to: [{group: demo.providers.atoll.dev, kind: Network, name: none}]"},
		{"config-map", `${namespace["victim"].k8s.ConfigMap["settings"].data.key}`, `to: [{group: "", kind: ConfigMap, name: settings}]`},
		{"secret", `${namespace["victim"].k8s["v1"].Secret["key"].data.key}`, `to: [{group: "", kind: Secret, name: key}]`},
		{"cluster-role-binding", `${k8s.ClusterRoleBinding["cluster-admin"].metadata.uid}`, "read with the rights of mallory, who last changed the spec"},
		{"hidden-by-try", `${try(namespace["victim"].demo_network["net"].gateway, "none")}`, "does not grant"},
		{"own-config-map", `${k8s.ConfigMap["settings"].data.key}`, "may not get configmaps in namespace mallory"},
	} {
		mallory.apply(fileManifest(attack.name, attack.reads, ""))
		_, text := mallory.atoll("plan", "--target", "file/"+attack.name)
		lacks(t, text, values, attack.says)
		mallory.kubectl("delete", "file.demo.providers.atoll.dev", attack.name)
	}

	t.Log("a forged author")
	forged := `, annotations: {infra.atoll.dev/author: '{"username":"root","groups":["system:masters"]}', infra.atoll.dev/changed-by: '{"username":"root"}'}`
	mallory.apply(fileManifest("forged", `${k8s.ClusterRoleBinding["cluster-admin"].metadata.uid}`, forged))
	_, text := mallory.atoll("plan", "--target", "file/forged")
	lacks(t, text, values, "read with the rights of mallory")
	mallory.kubectl("delete", "file.demo.providers.atoll.dev", "forged")
	objects := `{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Plan","metadata":{"name":"forged"},"spec":{"objects":[{"apiVersion":"demo.providers.atoll.dev/v1","kind":"File",
		"metadata":{"name":"f","annotations":{"infra.atoll.dev/author":"{\"username\":\"root\",\"groups\":[\"system:masters\"]}"}},"spec":{"name":"f","content":"${k8s.ClusterRoleBinding[\"cluster-admin\"].metadata.uid}"}}]}}`
	if _, err := mallory.try(objects, "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	mallory.waits("plan/forged", ".status.problems", "read with the rights of mallory")
	if _, err := mallory.try(grantManifest(`{group: "", kind: ConfigMap}`), "create", "-n", "victim", "-f", "-"); !apiForbids(err) {
		t.Errorf("mallory created a grant in the other namespace: %v", err)
	}

	t.Log("a grant for a kind gives nothing sensitive")
	victim.apply(grantManifest(`{group: demo.providers.atoll.dev, kind: Network}, {group: demo.providers.atoll.dev, kind: Secret}, {group: "", kind: Secret}`))
	mallory.apply(fileManifest("gateway", `${namespace["victim"].demo_network["net"].gateway}`, "") + fileManifest("secret", `${namespace["victim"].demo_secret["db"].secret}`, "") +
		fileManifest("k8s-secret", `${namespace["victim"].k8s["v1"].Secret["key"].data.key}`, ""))
	_, text = mallory.atoll("plan")
	lacks(t, text, []string{"xyzzy-secret"}, "1 to add", "the value is sensitive, and no grant of namespace victim names Secret.demo.providers.atoll.dev db", "no grant of namespace victim names Secret key")

	t.Log("a grant that is withdrawn before the apply")
	plan := mallory.plan()
	mallory.succeeds("approve", plan, "--yes")
	victim.kubectl("delete", "referencegrant", "to-mallory")
	code, text := mallory.atoll("apply", plan)
	lacks(t, text, []string{"xyzzy-secret", gateway}, "namespace victim does not grant")
	if code != 1 || len(mallory.files()) > 0 {
		t.Errorf("exit code %d, and files %v", code, mallory.files())
	}

	t.Log("a grant that is withdrawn later deletes nothing")
	victim.apply(grantManifest(`{group: demo.providers.atoll.dev, kind: Network, name: net}, {group: demo.providers.atoll.dev, kind: Secret, name: db}`))
	mallory.kubectl("delete", "file.demo.providers.atoll.dev", "k8s-secret")
	lacks(t, mallory.succeeds("apply", "--auto-approve"), []string{"xyzzy-secret"}, "2 added")
	victim.kubectl("delete", "referencegrant", "to-mallory")
	_, text = mallory.atoll("plan")
	lacks(t, text, []string{"xyzzy-secret"}, "namespace victim does not grant")
	mallory.atoll("apply", "--auto-approve")
	if len(mallory.files()) != 2 {
		t.Errorf("the files are %v", mallory.files())
	}
}

// apiForbids reports whether kubectl printed that the API forbids a request.
func apiForbids(err error) bool { return err != nil && strings.Contains(err.Error(), "Forbidden") }

// TestOwnApproval: whoever changed or deleted an object does not approve that, although a policy made the plan.
func TestOwnApproval(t *testing.T) {
	admin := owner(t, "four-eyes")
	admin.apply("{apiVersion: infra.atoll.dev/v1alpha1, kind: SyncPolicy, metadata: {name: default}, spec: {mode: Auto, approval: {allowAuthor: false}}}")
	mallory := admin.as("mallory", "atoll:infra-editor", "atoll:infra-approver")
	ed, ann := admin.as("ed", "atoll:infra-editor"), admin.as("ann", "atoll:infra-approver")
	planned := func(action string) (plan string) {
		programs.Eventually(t, settle, "the policy plans", func(context.Context) error {
			out, err := admin.try("", "get", "plans", "-o", fmt.Sprintf(`jsonpath={.items[?(@.status.summary.%s==1)].metadata.name}`, action))
			if plan = out; err == nil && plan == "" {
				err = errors.New("no such plan")
			}
			return err
		})
		if author := admin.kubectl("get", "plan", plan, "-o", "jsonpath={.spec.author.username}"); author != "atoll:infra" {
			t.Fatalf("the plan's author is %q", author)
		}
		return plan
	}
	refused := func(plan string) {
		mallory.succeeds("approve", plan, "--yes")
		admin.waits("plan/"+plan, `.status.conditions[?(@.type=="Approved")].message`, "0 of 1 approvals required by SyncPolicy default. The approvals of the plan's author, and of the users who changed its objects, do not count.")
		if applies := admin.kubectl("get", "applies", "-o", `jsonpath={.items[?(@.spec.plan=="`+plan+`")].metadata.name}`); applies != "" {
			t.Fatalf("mallory's own approval led to %s", applies)
		}
		ann.succeeds("approve", plan, "--yes")
		admin.waits("apply/"+plan, ".status.phase", "Succeeded")
	}
	mallory.apply(fileManifest("own", "one", ""))
	refused(planned("create"))

	t.Log("the deletion of an object that another user wrote")
	ed.apply(fileManifest("own", "two", ""))
	plan := planned("update")
	ann.succeeds("approve", plan, "--yes")
	admin.waits("apply/"+plan, ".status.phase", "Succeeded")
	mallory.kubectl("delete", "file.demo.providers.atoll.dev", "own", "--wait=false")
	refused(planned("delete"))
}

// TestDroppedLabel: an object stays under the policy of a label that is dropped along with the change.
func TestDroppedLabel(t *testing.T) {
	admin := owner(t, "tiers")
	admin.apply(`{apiVersion: infra.atoll.dev/v1alpha1, kind: SyncPolicy, metadata: {name: gold}, spec: {selector: {matchLabels: {tier: gold}}, approval: {allowAuthor: false}}}
---
{apiVersion: infra.atoll.dev/v1alpha1, kind: SyncPolicy, metadata: {name: rest}, spec: {approval: {required: 0}}}`)
	mallory := admin.as("mallory", "atoll:infra-editor", "atoll:infra-approver")
	ann := admin.as("ann", "atoll:infra-approver")
	approved := func() {
		plan := mallory.plan()
		ann.succeeds("approve", plan, "--yes")
		mallory.succeeds("apply", plan)
	}
	alone := func() {
		plan := mallory.plan()
		admin.waits("plan/"+plan, `.status.conditions[?(@.type=="Approved")].status`, "True")
		mallory.succeeds("apply", plan)
	}
	mallory.apply(fileManifest("gold", "one", ", labels: {tier: gold}"))
	approved()

	t.Log("in one patch")
	mallory.kubectl("patch", "file.demo.providers.atoll.dev", "gold", "--type=merge", "-p", `{"metadata":{"labels":{"tier":null}},"spec":{"content":"two"}}`)
	plan := mallory.plan()
	mallory.succeeds("approve", plan, "--yes")
	admin.waits("plan/"+plan, `.status.conditions[?(@.type=="Approved")].message`, "0 of 1 approvals required by SyncPolicy gold")
	mallory.kubectl("patch", "file.demo.providers.atoll.dev", "gold", "--type=merge", "-p", `{"spec":{"content":"one"}}`)

	t.Log("first the label, with an apply of something else")
	mallory.apply(fileManifest("other", "other", ""))
	alone()
	mallory.kubectl("patch", "file.demo.providers.atoll.dev", "gold", "--type=merge", "-p", `{"spec":{"content":"two"}}`)
	plan = mallory.plan()
	mallory.succeeds("approve", plan, "--yes")
	admin.waits("plan/"+plan, `.status.conditions[?(@.type=="Approved")].message`, "0 of 1 approvals required by SyncPolicy gold")

	t.Log("with the approval of the policy that it leaves")
	approved()
	mallory.apply(fileManifest("gold", "three", ""))
	alone()
}

// TestHistoryIsKept: an editor deletes no plan and no Apply that was carried out, neither alone nor with others. An
// administrator can delete the namespace.
func TestHistoryIsKept(t *testing.T) {
	admin := owner(t, "history")
	mallory := admin.as("mallory", "atoll:infra-editor", "atoll:infra-approver")
	mallory.apply(fileManifest("a", "one", ""))
	plan, unused := mallory.plan(), mallory.plan()
	mallory.succeeds("approve", plan, "--yes")
	mallory.succeeds("apply", plan)
	apply := mallory.kubectl("get", "applies", "-o", "jsonpath={.items[0].metadata.name}")
	for _, object := range []string{"plan/" + plan, "apply/" + apply} {
		if out, err := mallory.try("", "delete", object); !apiForbids(err) || !strings.Contains(err.Error(), "is kept as the record of that") {
			t.Errorf("delete %s: %s, %v", object, out, err)
		}
	}
	mallory.kubectl("delete", "plan", unused)
	as := rest.CopyConfig(tenants.admin)
	as.Impersonate = rest.ImpersonationConfig{UserName: "mallory", Groups: []string{"system:authenticated"}}
	api, err := dynamic.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{"plans", "applies"} {
		gvr := v1alpha1.PlanResource
		gvr.Resource = resource
		if err := api.Resource(gvr).Namespace("history").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("delete all %s: %v", resource, err)
		}
	}
	mallory.kubectl("get", "plan/"+plan, "apply/"+apply)
	mallory.kubectl("delete", "file.demo.providers.atoll.dev", "a", "--wait=false")
	mallory.succeeds("apply", "--auto-approve")
	admin.kubectl("delete", "namespace", "history", "--timeout=60s")
}
