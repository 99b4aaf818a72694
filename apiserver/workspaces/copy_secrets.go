package workspaces

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/kv"
)

// copyChange changes the keys of a source into those of a copy.
type copyChange struct {
	tokens copiedTokens
	// secrets begins the keys of Secrets, and ownerKey is that of the owner's role.
	secrets, ownerKey string
	// birth is the value of overlay.BirthKey in the source.
	birth []byte
}

// newCopyChange returns the change for a copy with that UID.
func (c *chain) newCopyChange(users *credentials, uid string) (*copyChange, error) {
	secrets := corev1.Resource("secrets")
	cfg, err := c.factory.NewConfig(secrets, nil)
	if err != nil {
		return nil, err
	}
	return &copyChange{
		tokens:   copiedTokens{users: users, codec: cfg.Codec, transformer: c.transformer(secrets), of: NewWorkspace(uid, nil)},
		secrets:  c.encoder.Key(overlay.Object{Resource: secrets, Object: &corev1.Secret{}}),
		ownerKey: c.encoder.Key(overlay.OwnerBinding("")),
	}, nil
}

// workspacesPrefix begins the keys of Workspaces.
const workspacesPrefix = tenancyPrefix + "workspaces/"

// apply is a CopyChange. Workspaces are left out, with their reservations: each has a keyspace that no other Workspace may have. So is the role of the source's owner.
func (c *copyChange) apply(ctx context.Context, e kv.KeyValue) (kv.KeyValue, bool, error) {
	switch key := string(e.Key); {
	case key == overlay.BirthKey:
		c.birth = e.Value // it is written last
		return e, false, nil
	case key == attemptKey, key == c.ownerKey, strings.HasPrefix(key, workspacesPrefix), kv.IsUsageKey(key):
		return e, false, nil
	case strings.HasPrefix(key, c.secrets):
		value, err := c.tokens.replace(ctx, key, e.Value)
		if err != nil {
			return e, false, fmt.Errorf("copy %s: %w", key, err)
		}
		e.Value = value
	}
	return e, true, nil
}

// copiedTokens replace the tokens in Secrets of the type service-account-token. A reader of Secrets in the copy must not be able to act in
// the original.
type copiedTokens struct {
	users       *credentials
	codec       runtime.Codec
	transformer value.Transformer
	// of is the copy. It has no keyspace yet.
	of *Workspace
}

// replace returns a stored Secret as the copy stores it.
func (t copiedTokens) replace(ctx context.Context, key string, stored []byte) ([]byte, error) {
	data, stale, err := t.transformer.TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	decoded, err := runtime.Decode(t.codec, data)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	secret, ok := decoded.(*api.Secret)
	if !ok || secret.Type != api.SecretTypeServiceAccountToken {
		if stale { // under a former key, which the copy must not need
			return t.transformer.TransformToStorage(ctx, data, value.DefaultContext(key))
		}
		return stored, nil
	}
	account := corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Annotations[api.ServiceAccountNameKey],
		UID: types.UID(secret.Annotations[api.ServiceAccountUIDKey])}}
	token, err := t.users.secretToken(withWorkspace(ctx, t.of, ""), account, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}})
	if err != nil {
		return nil, fmt.Errorf("issue a token: %w", err)
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[api.ServiceAccountTokenKey] = []byte(token)
	encoded, err := runtime.Encode(t.codec, secret)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return t.transformer.TransformToStorage(ctx, encoded, value.DefaultContext(key))
}

// encryptedPrefix begins each encrypted value.
const encryptedPrefix = "k8s:enc:"

// UnreadableError is the error for an object of a backup that this server cannot decrypt.
type UnreadableError struct {
	// Key is that of the object.
	Key string
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("this server lacks the key that %s is encrypted with: give it the keys of encryption of the server that was backed up, and restore again", e.Key)
}

// OnlyReadable returns a change that first checks that this server can decrypt the object.
// Errors: *UnreadableError.
func (s *Server) OnlyReadable(change CopyChange) CopyChange {
	return func(ctx context.Context, e kv.KeyValue) (kv.KeyValue, bool, error) {
		if strings.HasPrefix(string(e.Value), encryptedPrefix) && !s.decrypts(ctx, string(e.Key), e.Value) {
			return e, false, &UnreadableError{string(e.Key)}
		}
		return change(ctx, e)
	}
}

// decrypts reports whether a value can be decrypted. The key of a built-in resource does not have its group, so all groups are tried.
func (s *Server) decrypts(ctx context.Context, key string, stored []byte) bool {
	parts := strings.SplitN(strings.TrimPrefix(key, "/registry/"), "/", 3)
	var candidates []schema.GroupResource
	if strings.Contains(parts[0], ".") && len(parts) > 1 {
		candidates = append(candidates, schema.GroupResource{Group: parts[0], Resource: parts[1]})
	} else {
		for _, version := range legacyscheme.Scheme.PrioritizedVersionsAllGroups() {
			candidates = append(candidates, schema.GroupResource{Group: version.Group, Resource: parts[0]})
		}
	}
	return slices.ContainsFunc(candidates, func(resource schema.GroupResource) bool {
		_, _, err := s.config.Transformer(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key))
		return err == nil
	})
}
