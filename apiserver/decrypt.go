package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// Decrypt returns a stored value as it was before encryption, for readers of the
// keyspace that bypass the API. For custom resources and kinds without CRDs the result
// is JSON. key is the value's key in the keyspace; the ciphertext is bound to it.
// Decrypt fails if the value is encrypted and the encryption configuration cannot
// decrypt it. It is safe for concurrent use.
func (s *Server) Decrypt(ctx context.Context, resource schema.GroupResource, key string, stored []byte) ([]byte, error) {
	plain, _, err := s.storage.encryption.transformer(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("decrypt %s, stored under %s: %w", resource, key, err)
	}
	return plain, nil
}
