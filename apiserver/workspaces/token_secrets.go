package workspaces

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// tokenSecrets completes Secrets of the type service-account-token when they are written. In a cluster a controller does that a moment
// later. The account owns its Secrets here, so that they go when it goes.
type tokenSecrets struct {
	users *credentials
	// rootCA is Config.RootCA.
	rootCA []byte
}

var _ admission.MutationInterface = tokenSecrets{}

func (tokenSecrets) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Admit implements admission.MutationInterface.
func (t tokenSecrets) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	secret, ok := a.GetObject().(*api.Secret)
	if !ok || a.GetSubresource() != "" || secret.Type != api.SecretTypeServiceAccountToken || len(secret.Data[api.ServiceAccountTokenKey]) > 0 {
		return nil
	}
	name := secret.Annotations[api.ServiceAccountNameKey]
	if name == "" {
		return nil // validation explains it
	}
	account, err := t.users.accounts.GetServiceAccount(ctx, a.GetNamespace(), name)
	if apierrors.IsNotFound(err) {
		return apierrors.NewInvalid(api.Kind("Secret"), secret.Name, field.ErrorList{field.Invalid(
			field.NewPath("metadata", "annotations").Key(api.ServiceAccountNameKey), name, "no such ServiceAccount in the namespace: create it first")})
	}
	if err != nil {
		return err
	}
	if secret.Name == "" { // the token has the name
		secret.Name = names.SimpleNameGenerator.GenerateName(secret.GenerateName)
	}
	token, err := t.users.secretToken(ctx, *account, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: a.GetNamespace(), Name: secret.Name}})
	if err != nil {
		return fmt.Errorf("issue the token of Secret %s: %w", secret.Name, err)
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[api.ServiceAccountTokenKey] = []byte(token)
	secret.Data[api.ServiceAccountNamespaceKey] = []byte(a.GetNamespace())
	secret.Data[api.ServiceAccountRootCAKey] = t.rootCA
	secret.Annotations[api.ServiceAccountUIDKey] = string(account.UID)
	if len(secret.OwnerReferences) == 0 {
		secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: name, UID: account.UID}}
	}
	return nil
}

// secretToken returns a token without an end, which is valid while the Secret has it.
func (c *credentials) secretToken(ctx context.Context, account corev1.ServiceAccount, secret corev1.Secret) (string, error) {
	t, err := c.tokensOf(ctx)
	if err != nil {
		return "", err
	}
	claims, private := serviceaccount.LegacyClaims(account, secret)
	return t.inSecrets.GenerateToken(ctx, claims, private)
}

// usedSecrets lets upstream record when a token in a Secret was used. It makes a client when that happens first: few workspaces have
// such tokens.
type usedSecrets struct {
	chain *chain
	of    *Workspace
}

// Secrets implements typedcorev1.SecretsGetter.
func (u usedSecrets) Secrets(namespace string) typedcorev1.SecretInterface {
	client, err := typedcorev1.NewForConfig(u.chain.clientConfig(u.of))
	if err != nil { // the configuration is constant
		utilruntime.HandleError(err)
	}
	return client.Secrets(namespace)
}
