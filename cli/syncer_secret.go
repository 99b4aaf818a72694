package cli

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// viewSecret is a credentialStore in a Secret of the cluster.
type viewSecret struct {
	kube            kubernetes.Interface
	namespace, name string
}

func newViewSecret(member *rest.Config, namespace, name string) (*viewSecret, error) {
	kube, err := kubernetes.NewForConfig(member)
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}
	return &viewSecret{kube, namespace, name}, nil
}

func (s *viewSecret) read(ctx context.Context) ([]byte, error) {
	secret, err := s.kube.CoreV1().Secrets(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the view's kubeconfig: %w", err)
	}
	content := secret.Data[v1alpha1.KubeconfigSecretKey]
	if len(content) == 0 {
		return nil, fmt.Errorf("Secret %s/%s has no key %q: apply the manifests that `atoll join NAME --mode pull` prints", s.namespace, s.name, v1alpha1.KubeconfigSecretKey)
	}
	return content, nil
}

func (s *viewSecret) keep(ctx context.Context, kubeconfig []byte) error {
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{v1alpha1.KubeconfigSecretKey: kubeconfig}})
	if err != nil {
		return err
	}
	_, err = s.kube.CoreV1().Secrets(s.namespace).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.SyncerFieldManager})
	if err != nil {
		return fmt.Errorf("write Secret %s/%s: %w", s.namespace, s.name, err)
	}
	return nil
}
