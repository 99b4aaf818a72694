package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Access is how to reach a member cluster.
type Access struct {
	REST *rest.Config
	// Digest identifies the kubeconfig that REST was made from.
	Digest string
}

// accessCache holds what Clusters.Access last read for each cluster. Every probe asks for it, and parsing a
// kubeconfig takes longer than the probe.
type accessCache struct {
	mu      sync.Mutex
	entries map[string]cachedAccess // by cluster
}

type cachedAccess struct {
	state  secretState
	access *Access
}

// secretState identifies the version of the Secret that an access was read from.
type secretState struct {
	uid     types.UID
	version string
}

func (a *accessCache) get(cluster string) (cachedAccess, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.entries[cluster]
	return known, ok
}

func (a *accessCache) put(cluster string, known cachedAccess) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.entries == nil {
		a.entries = map[string]cachedAccess{}
	}
	a.entries[cluster] = known
}

func (a *accessCache) delete(cluster string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.entries, cluster)
}

// ReadAccess is Clusters.Access for callers without a Session. It reads from the control plane.
func ReadAccess(ctx context.Context, client dynamic.Interface, name string) (*Access, error) {
	item, err := client.Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	cluster := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, cluster); err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if cluster.InPullMode() {
		return nil, noAccess(cluster)
	}
	ref := cluster.Spec.KubeconfigSecretRef
	where := fmt.Sprintf("Secret %s/%s", ref.Namespace, ref.Name)
	secret, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, noSecret(cluster, where)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", where, err)
	}
	return read(secret, where)
}

func noAccess(cluster *v1alpha1.Cluster) error {
	return fmt.Errorf("cluster %s is in mode Pull, and Atoll cannot connect to it: for commands that need a connection, join it again with `atoll join %s --kubeconfig FILE`", cluster.Name, cluster.Name)
}

func noSecret(cluster *v1alpha1.Cluster, where string) error {
	return fmt.Errorf("%s, referenced by spec.kubeconfigSecretRef, does not exist: join the cluster again with `atoll join %s`", where, cluster.Name)
}

// read extracts the kubeconfig from its Secret.
func read(secret *unstructured.Unstructured, where string) (*Access, error) {
	// A user who may create Clusters must not be able to make the server use, and so reveal, an
	// arbitrary Secret.
	if kind, _, _ := unstructured.NestedString(secret.Object, "type"); kind != v1alpha1.KubeconfigSecretType {
		return nil, fmt.Errorf("%s has type %q; the Secret of a kubeconfig must have type %s", where, kind, v1alpha1.KubeconfigSecretType)
	}
	encoded, _, _ := unstructured.NestedString(secret.Object, "data", v1alpha1.KubeconfigSecretKey)
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(data) == 0 {
		return nil, fmt.Errorf("%s has no data under the key %q: store the kubeconfig there", where, v1alpha1.KubeconfigSecretKey)
	}
	cfg, err := MemberConfig(data)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig in %s cannot be used: %w", where, err)
	}
	BoundAnswers(cfg)
	sum := sha256.Sum256(data)
	return &Access{REST: cfg, Digest: hex.EncodeToString(sum[:])}, nil
}
