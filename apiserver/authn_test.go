package apiserver

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestTokenOfNewAccount: a token can be used immediately after its account was created,
// before any cache has the account.
func TestTokenOfNewAccount(t *testing.T) {
	named := metav1.ObjectMeta{Namespace: "ns", Name: "new"}
	client := fake.NewClientset(&v1.ServiceAccount{ObjectMeta: named}, &v1.Secret{ObjectMeta: named})
	b := &boundObjects{client: client}
	getter := b.cached(informers.NewSharedInformerFactory(client, 0)) // never started: empty
	if _, err := getter.GetServiceAccount(t.Context(), "ns", "new"); err != nil {
		t.Error(err)
	}
	if _, err := getter.GetSecret(t.Context(), "ns", "new"); err != nil {
		t.Error(err)
	}
	if _, err := getter.GetServiceAccount(t.Context(), "ns", "gone"); !apierrors.IsNotFound(err) {
		t.Errorf("a missing account: %v", err)
	}
}
