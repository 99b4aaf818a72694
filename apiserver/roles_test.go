package apiserver_test

import (
	"errors"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestRetiredRules: a rule that an earlier version gave to a role is removed at the start, one that an administrator added
// stays, and so does a role that is not kept up to date.
func TestRetiredRules(t *testing.T) {
	t.Parallel()
	rule := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{gadgets().Group}, Resources: []string{resource}, Verbs: []string{"get"}}
	}
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	cfg := makeFiles(t)
	cfg.ClusterRoles = []rbacv1.ClusterRole{role("viewer", rule("*")), role("manual", rule("*"))}
	before := startServer(t, keyspace, cfg, "sole")
	change := func(name string, edit func(*rbacv1.ClusterRole)) error {
		stored, err := before.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		edit(stored)
		_, err = before.client.RbacV1().ClusterRoles().Update(t.Context(), stored, metav1.UpdateOptions{})
		return err
	}
	err := errors.Join(
		change("viewer", func(r *rbacv1.ClusterRole) { r.Rules = append(r.Rules, rule("added")) }),
		change("manual", func(r *rbacv1.ClusterRole) { r.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false" }),
		before.stop())
	if err != nil {
		t.Fatal(err)
	}
	cfg = makeFiles(t)
	cfg.ClusterRoles = []rbacv1.ClusterRole{role("viewer", rule("gadgets")), role("manual", rule("gadgets")), role("new", rule("gadgets"))}
	cfg.RetiredRules = map[string]rbacv1.PolicyRule{"viewer": rule("*"), "manual": rule("*"), "new": rule("*")}
	after := startServer(t, keyspace, cfg, "sole")
	t.Cleanup(func() {
		if err := after.stop(); err != nil {
			t.Error(err)
		}
	})
	for name, want := range map[string][]string{"viewer": {"added", "gadgets"}, "manual": {"*"}, "new": {"gadgets"}} {
		stored, err := after.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range stored.Rules {
			got = append(got, r.Resources...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
}
