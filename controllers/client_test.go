package controllers

import (
	"net/http"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

// A status update is attempted again after a conflict, and finds no object with another UID.
func TestClientUpdatesStatus(t *testing.T) {
	namespaces := fakeapi.BuiltIn("", "v1", "Namespace", "namespaces")
	api := fakeapi.New(t, namespaces)
	client := NewClient[corev1.Namespace](api.Dynamic(), namespaces.GVR(), "Namespace", "me")
	created, err := client.Create(t.Context(), "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	var updates atomic.Int32
	api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Subresource != "status" || updates.Add(1) > 2 {
			return nil
		}
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict}
	})
	calls := 0
	change := func(n *corev1.Namespace) bool {
		calls++
		n.Status.Phase = corev1.NamespaceActive
		return true
	}
	stored, err := client.UpdateStatus(t.Context(), "", "shop", created.UID, change)
	if err != nil || calls != 3 || stored.Status.Phase != corev1.NamespaceActive {
		t.Errorf("after %d calls: %+v, %v", calls, stored, err)
	}
	if _, err := client.UpdateStatus(t.Context(), "", "shop", "other", change); !apierrors.IsNotFound(err) || calls != 3 {
		t.Errorf("another UID: %v, after %d calls", err, calls)
	}
	if err := client.Delete(t.Context(), "", "shop", "other", ""); !apierrors.IsConflict(err) {
		t.Errorf("deletion with another UID: %v", err)
	}
}
