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

// Access is a way to a member.
type Access struct {
	REST *rest.Config
	// Digest tells one kubeconfig from another.
	Digest string
}

// Access finds the way to a cluster from the Secret that it names, or says what is
// wrong and what to do, for people. No error quotes what is in the Secret.
func (t *Term) Access(cluster *v1alpha1.Cluster) (*Access, error) {
	if cluster.Pulls() {
		return nil, noAccess(cluster)
	}
	ref := cluster.Spec.KubeconfigSecretRef
	where := fmt.Sprintf("Secret %s/%s", ref.Namespace, ref.Name)
	secret, exists := t.Object(schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	if !exists {
		return nil, noSecret(cluster, where)
	}
	state := secretState{secret.GetUID(), secret.GetResourceVersion()}
	if known, ok := t.accesses.of(cluster.Name); ok && known.state == state && state.version != "" {
		return known.access, nil
	}
	a, err := read(secret, where)
	if err == nil {
		t.accesses.keep(cluster.Name, knownAccess{state, a})
	}
	return a, err
}

// accesses are the ways to clusters as they were last read. They are asked for with
// every probe, and to read a kubeconfig takes longer than the probe.
type accesses struct {
	mu    sync.Mutex
	known map[string]knownAccess // by cluster
}

type knownAccess struct {
	state  secretState
	access *Access
}

// secretState is of which state of which Secret an access was read.
type secretState struct {
	uid     types.UID
	version string
}

func (a *accesses) of(cluster string) (knownAccess, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.known[cluster]
	return known, ok
}

func (a *accesses) keep(cluster string, known knownAccess) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[string]knownAccess{}
	}
	a.known[cluster] = known
}

func (a *accesses) forget(cluster string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, cluster)
}

// Reach is Access for whoever has no Term: it asks the control plane.
func Reach(ctx context.Context, client dynamic.Interface, name string) (*Access, error) {
	item, err := client.Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	cluster := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, cluster); err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if cluster.Pulls() {
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
	return fmt.Errorf("cluster %s is in mode Pull, so Atoll has no way to it: join it again with `atoll join %s --kubeconfig FILE` for what needs one", cluster.Name, cluster.Name)
}

func noSecret(cluster *v1alpha1.Cluster, where string) error {
	return fmt.Errorf("%s, which spec.kubeconfigSecretRef names, does not exist: join the cluster again with `atoll join %s`", where, cluster.Name)
}

// read takes the kubeconfig out of its Secret.
func read(secret *unstructured.Unstructured, where string) (*Access, error) {
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
