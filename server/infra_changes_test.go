package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/changesapi"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// installInfra makes the server serve the CRDs of infrastructure.
func installInfra(t *testing.T, s atoll) {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	s.mustKubectl(t, string(bytes.Join(crds, []byte("\n---\n"))), "apply", "--server-side", "-f", "-")
	eventually(t, "the kinds are served", func(context.Context) error {
		out, err := s.kubectl(t, "", "get", "plans.infra.atoll.dev,approvals.infra.atoll.dev,applies.infra.atoll.dev,planchanges.infra.atoll.dev")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// storePlan creates a plan with n changes, as the server would.
func storePlan(t *testing.T, s atoll, ns, name string, n int) *v1alpha1.Plan {
	t.Helper()
	client := s.dynamic(t)
	s.mustKubectl(t, fmt.Sprintf(`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Plan","metadata":{"name":%q}}`, name), "create", "-n", ns, "-f", "-")
	chunks := planstore.NewChunkWriter(func(chunk int, pieces [][]byte) error {
		for i, content := range pieces {
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.PlanChanges{
				TypeMeta:   metav1.TypeMeta{APIVersion: "infra.atoll.dev/v1alpha1", Kind: "PlanChanges"},
				ObjectMeta: metav1.ObjectMeta{Name: planstore.PieceName(name, chunk, i)},
				Spec:       v1alpha1.PlanPieceSpec{Plan: name, Chunk: int32(chunk), Piece: int32(i), Content: content},
			})
			if err != nil {
				return err
			}
			if _, err := client.Resource(v1alpha1.PlanChangesResource).Namespace(ns).Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range n {
		added := &change.Change{Address: change.Address{Type: "demo_file", Name: fmt.Sprintf("f%05d", i)}, Action: change.Create}
		if i%10 == 0 {
			added.Action = change.Delete
		}
		if err := chunks.Add(added); err != nil {
			t.Fatal(err)
		}
	}
	contents, err := chunks.Finish()
	if err != nil {
		t.Fatal(err)
	}
	plans := client.Resource(v1alpha1.PlanResource).Namespace(ns)
	stored := &v1alpha1.Plan{}
	eventually(t, "the plan is planned", func(ctx context.Context) error {
		u, err := plans.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		*stored = v1alpha1.Plan{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, stored); err != nil {
			return err
		}
		if stored.Status.Phase == v1alpha1.PlanPlanned && stored.Status.Digest == contents.Digest {
			return nil
		}
		stored.Status.Phase = v1alpha1.PlanPlanned
		planstore.SetContents(&stored.Status, contents)
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(stored)
		if err != nil {
			return err
		}
		if _, err := plans.UpdateStatus(ctx, &unstructured.Unstructured{Object: object}, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return errors.New("the plan was just updated")
	})
	return stored
}

// impersonating returns a client configuration that impersonates a user.
func (a atoll) impersonating(t *testing.T, name string, groups ...string) *rest.Config {
	t.Helper()
	config := a.config(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	return config
}

// get requests a path and returns the status code and the body.
func get(t *testing.T, config *rest.Config, path string, header ...string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body.String()
}

// TestPlanChanges: permitted users read a plan's changes, in pages and as a stream,
// through the whole server.
func TestPlanChanges(t *testing.T) {
	s := theServer(t)
	installInfra(t, s)
	ns := s.namespace(t)
	const n = 5000
	storePlan(t, s, ns, "first", n)
	path := "/apis/infra.atoll.dev/v1alpha1/namespaces/" + ns + "/plans/first/changes"

	seen, deletes := 0, 0
	for query := "?limit=700"; query != ""; {
		code, body := get(t, s.config(t), path+query)
		var page changesapi.List
		if err := json.Unmarshal([]byte(body), &page); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
		for _, c := range page.Items {
			if want := fmt.Sprintf("f%05d", seen); c.Address.Name != want {
				t.Fatalf("got %s, want %s", c.Address.Name, want)
			}
			seen++
		}
		query = ""
		if page.Continue != "" {
			query = "?limit=700&continue=" + page.Continue
			if page.RemainingItemCount == nil || *page.RemainingItemCount != int64(n-seen) {
				t.Errorf("remainingItemCount %v, want %d", page.RemainingItemCount, n-seen)
			}
		}
	}
	if seen != n {
		t.Errorf("%d on all pages, want %d", seen, n)
	}
	code, body := get(t, s.config(t), path+"?action=delete", "Accept", changesapi.StreamMediaType)
	for line := range strings.SplitSeq(strings.TrimSpace(body), "\n") {
		var c change.Change
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.Action != change.Delete {
			t.Fatalf("invalid line %q", line)
		}
		deletes++
	}
	if code != http.StatusOK || deletes != n/10 {
		t.Errorf("%d deletions streamed with %d, want %d", deletes, code, n/10)
	}
	if out := s.mustKubectl(t, "", "get", "--raw", path+"?limit=1"); !strings.Contains(out, `"kind":"PlanChangeList"`) || !strings.Contains(out, `"remainingItemCount":4999`) {
		t.Errorf("kubectl printed %s", out)
	}
	if out, err := s.kubectl(t, "", "get", "--raw", path+"?action=destroy"); err == nil || !strings.Contains(out, `action: "destroy" is not an action`) {
		t.Errorf("kubectl printed %s, %v", out, err)
	}

	// Permission to read plans does not include their changes, and vice versa.
	admin := s.client(t)
	for user, resource := range map[string]string{"plan-viewer": "plans", "change-viewer": "plans/changes"} {
		if _, err := admin.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"infra.atoll.dev"}, Resources: []string{resource}, Verbs: []string{"get"}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		bind(t, s, ns, user, "Role", user)
	}
	eventually(t, "permission for changes suffices for changes", func(context.Context) error {
		if code, body := get(t, s.impersonating(t, "change-viewer"), path+"?limit=1"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	eventually(t, "permission for plans suffices for plans", func(context.Context) error {
		if code, body := get(t, s.impersonating(t, "plan-viewer"), strings.TrimSuffix(path, "/changes")); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if code, body := get(t, s.impersonating(t, "plan-viewer"), path); code != http.StatusForbidden || !strings.Contains(body, "plans/changes") {
		t.Errorf("user with permission for plans only: %d %s", code, body)
	}
	out := s.mustKubectl(t, "", "get", "--raw", "/apis/infra.atoll.dev/v1alpha1")
	if !strings.Contains(out, `{"name":"plans/changes","singularName":"","namespaced":true,"kind":"PlanChangeList","verbs":["get"]}`) {
		t.Errorf("discovery returned %s", out)
	}
}

func bind(t *testing.T, s atoll, ns, user, kind, role string) {
	t.Helper()
	if _, err := s.client(t).RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestApproving: an approval is for the current plan and in the name of the user who
// creates it. RBAC and policies restrict the creation.
func TestApproving(t *testing.T) {
	s := theServer(t)
	installInfra(t, s)
	ns := s.namespace(t)
	planned := storePlan(t, s, ns, "first", 10)
	if planned.Spec.Author == nil || planned.Spec.Author.Username == "" {
		t.Errorf("the plan is by %+v", planned.Spec.Author)
	}
	document := func(kind, name, digest, more string) string {
		return fmt.Sprintf(`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":%q,"metadata":{"name":%q},"spec":{"plan":"first","digest":%q%s}}`, kind, name, digest, more)
	}
	// The request contains a forged user, in each of kubectl's ways to write.
	forged := `,"approver":{"username":"the king"}`
	asAnn := []string{"-n", ns, "--as", "ann", "--as-group", "system:masters"}
	for name, way := range map[string][]string{
		"created": {"create"}, "applied": {"apply"}, "applied-by-server": {"apply", "--server-side"}, "tried": {"create", "--dry-run=server"},
	} {
		out := s.mustKubectl(t, document("Approval", name, planned.Status.Digest, forged), append(append(way, asAnn...), "-f", "-", "-o", "jsonpath={.spec.approver}")...)
		if out != `{"groups":["system:masters","system:authenticated"],"username":"ann"}` {
			t.Errorf("%s: approved by %s", name, out)
		}
	}
	// A second apply by another user changes nothing.
	s.mustKubectl(t, document("Approval", "applied", planned.Status.Digest, forged), "apply", "-n", ns, "-f", "-")
	s.mustKubectl(t, document("Approval", "applied-by-server", planned.Status.Digest, forged), "apply", "--server-side", "--force-conflicts", "-n", ns, "-f", "-")
	if out := s.mustKubectl(t, "", "get", "approvals", "-n", ns, "-o", "jsonpath={.items[*].spec.approver.username}"); out != "ann ann ann" {
		t.Errorf("approved by %s", out)
	}
	if out := s.mustKubectl(t, "", "patch", "approval", "created", "-n", ns, "--type=merge", "-p", `{"spec":{"approver":{"username":"the king"}}}`,
		"-o", "jsonpath={.spec.approver.username}"); out != "ann" {
		t.Errorf("forged afterwards: approved by %s", out)
	}
	if out := s.mustKubectl(t, document("Apply", "go", planned.Status.Digest, `,"author":{"username":"the king"}`), append([]string{"create", "-f", "-", "-o", "jsonpath={.spec.author.username}"}, asAnn...)...); out != "ann" {
		t.Errorf("applied by %s", out)
	}
	out := s.mustKubectl(t, "", append([]string{"patch", "apply.infra.atoll.dev", "go", "--type=merge", "-p", `{"spec":{"cancel":true}}`, "-o", "jsonpath={.spec.author.username}"}, "-n", ns)...)
	if out != "ann" {
		t.Errorf("author after another user cancelled it: %s", out)
	}

	wrong := "sha256:" + strings.Repeat("0", 64)
	for _, kind := range []string{"Approval", "Apply"} {
		out, err := s.kubectl(t, document(kind, "wrong", wrong, ""), "create", "-n", ns, "-f", "-")
		if err == nil || !strings.Contains(out, "spec.digest") || !strings.Contains(out, "the plan's digest is "+planned.Status.Digest+": review the plan again") {
			t.Errorf("%s of another digest: %s, %v", kind, out, err)
		}
		out, err = s.kubectl(t, strings.Replace(document(kind, "wrong", wrong, ""), `"first"`, `"second"`, 1), "create", "-n", ns, "-f", "-")
		if err == nil || !strings.Contains(out, "spec.plan") || !strings.Contains(out, "no such plan") {
			t.Errorf("%s of no plan: %s, %v", kind, out, err)
		}
	}
	t.Run("policies see both", func(t *testing.T) { notOneself(t, s, document("Approval", "policy", planned.Status.Digest, "")) })
	t.Run("no role of Kubernetes' own may", func(t *testing.T) { rightOfItsOwn(t, s, ns) })
}

// notOneself installs a policy that compares the approver with the author of the plan.
func notOneself(t *testing.T, s atoll, approval string) {
	ns := s.namespace(t)
	client := s.client(t)
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "not-oneself-" + ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ParamKind:     &admissionregistrationv1.ParamKind{APIVersion: "infra.atoll.dev/v1alpha1", Kind: "Plan"},
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"infra.atoll.dev"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"approvals"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "object.spec.plan != params.metadata.name || object.spec.approver.username != params.spec.author.username",
				Message:    "approver and author of a plan must differ",
			}},
		},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			ParamRef:       &admissionregistrationv1.ParamRef{Selector: &metav1.LabelSelector{}, ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)},
			MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}}},
		},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(context.Background(), binding.Name, metav1.DeleteOptions{})
		_ = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(context.Background(), policy.Name, metav1.DeleteOptions{})
	})
	planned := storePlan(t, s, ns, "first", 10)
	author := planned.Spec.Author
	by := func(name string) []string {
		return []string{"create", "--dry-run=server", "-n", ns, "-f", "-", "--as", name, "--as-group", "system:masters"}
	}
	// Policies discover new kinds of parameters twice a minute.
	within(t, 2*time.Minute, "the author cannot approve", func(context.Context) error {
		// The author claims to be another user.
		out, err := s.kubectl(t, strings.Replace(approval, `"plan":`, `"approver":{"username":"bob"},"plan":`, 1), by(author.Username)...)
		if err == nil || !strings.Contains(out, "approver and author of a plan must differ") {
			return fmt.Errorf("%s, %w", out, errors.Join(err, errors.New("not refused by the policy")))
		}
		return nil
	})
	if out, err := s.kubectl(t, approval, by("bob")...); err != nil {
		t.Errorf("another user cannot approve: %s", out)
	}
}

// rightOfItsOwn: editors and administrators of a namespace cannot approve.
func rightOfItsOwn(t *testing.T, s atoll, ns string) {
	client := s.client(t)
	for _, role := range []string{"view", "edit", "admin"} {
		bind(t, s, ns, "has-"+role, "ClusterRole", role)
	}
	may := func(user, verb string, resource schema.GroupResource) (bool, error) {
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: ns, Verb: verb, Group: resource.Group, Resource: resource.Resource, Version: "*",
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return review.Status.Allowed, nil
	}
	for _, role := range []string{"view", "edit", "admin"} {
		eventually(t, "the role "+role+" is complete", func(context.Context) error {
			if ok, err := may("has-"+role, "list", corev1.Resource("configmaps")); err != nil || !ok {
				return fmt.Errorf("it is not complete, %w", errors.Join(err, errors.New("yet")))
			}
			return nil
		})
		for _, resource := range []schema.GroupVersionResource{
			v1alpha1.ApprovalResource, v1alpha1.ApplyResource, v1alpha1.PlanResource, v1alpha1.PlanSecretsResource, v1alpha1.ResourceStateResource,
		} {
			for _, verb := range []string{"create", "get", "update", "delete"} {
				if ok, err := may("has-"+role, verb, resource.GroupResource()); err != nil || ok {
					t.Errorf("%s may %s %s: %v, %v", role, verb, resource.Resource, ok, err)
				}
			}
		}
	}
	if out, err := s.kubectl(t, `{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Approval","metadata":{"name":"x"},"spec":{"plan":"first","digest":"sha256:`+strings.Repeat("0", 64)+`"}}`,
		"create", "-n", ns, "-f", "-", "--as", "has-admin"); err == nil || !strings.Contains(out, "forbidden") || strings.Contains(out, "review the plan again") {
		t.Errorf("an administrator of the namespace approves: %s, %v", out, err)
	}
}
