package server

import (
	"os"
	"path/filepath"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestSuccessorDeletesLease: a server that is started after a crash deletes the Lease that the
// crashed one left, and no other, whatever the file contains.
func TestSuccessorDeletesLease(t *testing.T) {
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: name}}
	}
	for _, tc := range []struct{ content, deleted string }{
		{"server-former\n", "server-former"},
		{"server-gone\n", ""},
		{"server-own\n", ""},
		{"atoll-fleet", ""},
		{"", ""},
	} {
		client := fake.NewClientset(lease("server-former"), lease("server-own"), lease("server-other"), lease("atoll-fleet"))
		a := &announcement{leases: client.CoordinationV1().Leases(v1alpha1.SystemNamespace), lease: lease("server-own"),
			file: filepath.Join(t.TempDir(), leaseFile)}
		if tc.content != "" {
			if err := os.WriteFile(a.file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.succeed(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"server-former", "server-own", "server-other", "atoll-fleet"} {
			_, err := a.leases.Get(t.Context(), name, metav1.GetOptions{})
			if gone := apierrors.IsNotFound(err); gone != (name == tc.deleted) {
				t.Errorf("with %q: %s is gone: %v", tc.content, name, gone)
			}
		}
		if content, err := os.ReadFile(a.file); err != nil || string(content) != "server-own\n" {
			t.Errorf("the file contains %q, %v", content, err)
		}
	}
}
