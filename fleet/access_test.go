package fleet

import (
	"encoding/base64"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestAccessIsReadOnce: a kubeconfig is parsed when its Secret changes, not on each call.
func TestAccessIsReadOnce(t *testing.T) {
	secret := func(server string) *unstructured.Unstructured {
		kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{"token":"t"}}]}`, server)
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"namespace": "atoll-system", "name": "cluster-east"},
			"type":     v1alpha1.KubeconfigSecretType,
			"data":     map[string]any{v1alpha1.KubeconfigSecretKey: base64.StdEncoding.EncodeToString([]byte(kubeconfig))}}}
	}
	session, control := openSession(t, []string{"v1 Secret"}, secret("https://east.example.com"))
	east := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
	east.Spec.KubeconfigSecretRef.Namespace, east.Spec.KubeconfigSecretRef.Name = "atoll-system", "cluster-east"

	first, err := session.Clusters.Access(east)
	if err != nil || first.REST.Host != "https://east.example.com" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := session.Clusters.Access(east); err != nil || again != first {
		t.Errorf("read a second time: %+v, %v", again, err)
	}
	control.Put(secret("https://moved.example.com"))
	fakeapi.Eventually(t, "the host has moved", func() error {
		moved, err := session.Clusters.Access(east)
		if err == nil && (moved.REST.Host != "https://moved.example.com" || moved.Digest == first.Digest) {
			err = fmt.Errorf("the host is still %s", moved.REST.Host)
		}
		return err
	})
}
