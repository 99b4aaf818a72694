package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Plain gives a value as it was before it was stored, for those who read the keyspace past the API: of
// custom resources, and of kinds without CRDs, that is JSON. key is the one that the keyspace has it under, which what
// is encrypted is bound to. An error is of what is stored encrypted and cannot be read by the
// encryption configuration. It is safe for concurrent use.
func (s *Server) Plain(ctx context.Context, resource schema.GroupResource, key string, stored []byte) ([]byte, error) {
	plain, _, err := s.storage.transformer(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("decrypt %s, stored under %s: %w", resource, key, err)
	}
	return plain, nil
}

// transformer is what values of a resource go through on their way.
func (s *keyspaceStorage) transformer(resource schema.GroupResource) value.Transformer {
	if s.transformers == nil {
		return identity.NewEncryptCheckTransformer()
	}
	return s.transformers.TransformerForResource(resource)
}
