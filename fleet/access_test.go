package fleet

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestAccessIsReadOnce: a kubeconfig is parsed when its Secret changes, not on each call.
func TestAccessIsReadOnce(t *testing.T) {
	secrets, _ := interpret.Find(schema.GroupKind{Kind: "Secret"})
	secret := func(version, server string) *unstructured.Unstructured {
		kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{"token":"t"}}]}`, server)
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"namespace": "atoll-system", "name": "cluster-east", "uid": "s", "resourceVersion": version},
			"type":     v1alpha1.KubeconfigSecretType,
			"data":     map[string]any{v1alpha1.KubeconfigSecretKey: base64.StdEncoding.EncodeToString([]byte(kubeconfig))}}}
	}
	session := sessionOver(t, nil, secrets, secret("1", "https://east.example.com"))
	east := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
	east.Spec.KubeconfigSecretRef.Namespace, east.Spec.KubeconfigSecretRef.Name = "atoll-system", "cluster-east"

	first, err := session.Clusters.Access(east)
	if err != nil || first.REST.Host != "https://east.example.com" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := session.Clusters.Access(east); err != nil || again != first {
		t.Errorf("read a second time: %+v, %v", again, err)
	}
	if _, err := session.Dynamic.Resource(secrets.GVR()).Namespace("atoll-system").Update(t.Context(), secret("2", "https://moved.example.com"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		moved, err := session.Clusters.Access(east)
		if err != nil {
			t.Fatal(err)
		}
		if moved.REST.Host == "https://moved.example.com" && moved.Digest != first.Digest {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the host is still %s", moved.REST.Host)
		}
	}
}
