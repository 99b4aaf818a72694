package join

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Bootstrap creates a token with which the syncer of a cluster can request a certificate, for a time. The cluster is
// registered when a user of the fleet approves the request; one that is registered in mode Pull gets another credential
// then. acceptRights is that of Options.
func Bootstrap(ctx context.Context, atoll *rest.Config, name string, ttl time.Duration, acceptRights bool, progress func(string)) (token string, err error) {
	if err := checkClusterName(name); err != nil {
		return "", err
	}
	if ttl <= 0 {
		return "", fmt.Errorf("join %s: --token-ttl %s is not a time: use one such as 24h", name, ttl)
	}
	dyn, err := dynamic.NewForConfig(atoll)
	if err != nil {
		return "", fmt.Errorf("join %s: make a client of Atoll: %w", name, err)
	}
	kube, err := kubernetes.NewForConfig(atoll)
	if err != nil {
		return "", fmt.Errorf("join %s: make a client of Atoll: %w", name, err)
	}
	if err := checkAtoll(ctx, atoll); err != nil {
		return "", fmt.Errorf("join %s: %w", name, err)
	}
	api := dyn.Resource(v1alpha1.ClusterResource)
	cluster, err := api.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		cluster, err = nil, nil
		if !acceptRights {
			err = checkRights(ctx, kube, name, "")
		}
	case err == nil:
		err = checkBootstrap(cluster)
	}
	if err != nil {
		return "", fmt.Errorf("join %s: %w", name, err)
	}
	id, token, err := createToken(ctx, kube, name, time.Now().Add(ttl))
	if err != nil {
		return "", fmt.Errorf("join %s: %w", name, err)
	}
	if cluster != nil {
		if err := nameToken(ctx, api, cluster, id); err != nil {
			return "", fmt.Errorf("join %s: let the cluster use the token: %w", name, err)
		}
	}
	progressReporter(progress)("made bootstrap token %s for cluster %s, which is valid for %s", id, name, ttl)
	return token, nil
}

// checkBootstrap refuses a registered cluster that cannot get a credential by a token.
func checkBootstrap(cluster *unstructured.Unstructured) error {
	if cluster.GetDeletionTimestamp() != nil {
		return errLeaving
	}
	if mode, _, _ := unstructured.NestedString(cluster.Object, "spec", "mode"); mode != string(v1alpha1.ModePull) {
		return fmt.Errorf("Cluster %s is in mode %s: change its mode with `atoll join %[1]s --mode pull`, without --bootstrap", cluster.GetName(), v1alpha1.ModePush)
	}
	return nil
}

// createToken creates the Secret of a token for a cluster.
func createToken(ctx context.Context, kube kubernetes.Interface, cluster string, until time.Time) (id, token string, err error) {
	if token, err = bootstraputil.GenerateBootstrapToken(); err != nil {
		return "", "", fmt.Errorf("generate a bootstrap token: %w", err)
	}
	id, secret := token[:bootstrapapi.BootstrapTokenIDBytes], token[bootstrapapi.BootstrapTokenIDBytes+1:]
	_, err = kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstraputil.BootstrapTokenSecretName(id), Annotations: map[string]string{v1alpha1.BootstrapClusterAnnotation: cluster}},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               id,
			bootstrapapi.BootstrapTokenSecretKey:           secret,
			bootstrapapi.BootstrapTokenExpirationKey:       until.UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey:      v1alpha1.BootstrapGroup,
			bootstrapapi.BootstrapTokenDescriptionKey:      "Cluster " + cluster + " joins the fleet with it, by `atoll join --bootstrap`.",
		}}, metav1.CreateOptions{})
	if err != nil {
		return "", "", fmt.Errorf("create a bootstrap token: %w", err)
	}
	return id, token, nil
}

// nameToken lets the syncer of a registered cluster get another credential with a token.
func nameToken(ctx context.Context, api dynamic.ResourceInterface, cluster *unstructured.Unstructured, id string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": cluster.GetUID(),
		"annotations": map[string]any{v1alpha1.BootstrapTokenAnnotation: id}}})
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, cluster.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
