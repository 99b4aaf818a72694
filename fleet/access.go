package fleet

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Access is a way to a member.
type Access struct {
	REST *rest.Config
	// Digest tells one kubeconfig from another.
	Digest string
}

// Access finds the way to a cluster from the Secret that it names, or says what is
// wrong and what to do, for people. No error quotes what is in the Secret.
func (t *Term) Access(cluster *v1alpha1.Cluster) (*Access, error) {
	ref := cluster.Spec.KubeconfigSecretRef
	where := fmt.Sprintf("Secret %s/%s", ref.Namespace, ref.Name)
	secret, exists := t.Object(schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	if !exists {
		return nil, fmt.Errorf("%s, which spec.kubeconfigSecretRef names, does not exist: join the cluster again with `atoll join %s`", where, cluster.Name)
	}
	// Whoever may create Clusters must not be able to make the server use, and
	// so reveal, any Secret.
	if kind, _, _ := unstructured.NestedString(secret.Object, "type"); kind != v1alpha1.KubeconfigSecretType {
		return nil, fmt.Errorf("%s has type %q: a kubeconfig's Secret has type %s", where, kind, v1alpha1.KubeconfigSecretType)
	}
	encoded, _, _ := unstructured.NestedString(secret.Object, "data", v1alpha1.KubeconfigSecretKey)
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(data) == 0 {
		return nil, fmt.Errorf("%s has nothing under the key %q: put the kubeconfig there", where, v1alpha1.KubeconfigSecretKey)
	}
	cfg, err := MemberConfig(data)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig in %s cannot be used: %w", where, err)
	}
	sum := sha256.Sum256(data)
	return &Access{REST: cfg, Digest: hex.EncodeToString(sum[:])}, nil
}
