package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// encryptedPrefix begins every encrypted value, followed by the provider and the key's name.
// The keys of a KMS are elsewhere, and may be out of reach for a while.
var (
	encryptedPrefix = []byte("k8s:enc:")
	kmsPrefix       = []byte("k8s:enc:kms:")
)

const (
	registryPrefix = "/registry/"
	// checkedSecrets is the number of Secrets that are checked. Of other resources it is one.
	checkedSecrets = 100
)

// CheckDecryption checks a sample of the stored objects of each resource. Without the keys
// that wrote them, the server would never become ready, and would not tell why.
func (s *Server) CheckDecryption(ctx context.Context) error {
	// The first key of each resource: after it, the search continues behind the resource.
	for from := registryPrefix; ; {
		limit := int64(1)
		if from == registryPrefix+"secrets/" {
			limit = checkedSecrets
		}
		found, err := s.storage.client.Client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(registryPrefix)), clientv3.WithLimit(limit))
		if err != nil {
			return fmt.Errorf("check that stored objects can be decrypted: %w", err)
		}
		if len(found.Kvs) == 0 {
			return nil
		}
		for _, e := range found.Kvs {
			if err := s.checkValue(ctx, string(e.Key), e.Value); err != nil {
				return err
			}
		}
		prefix := resourcePrefix(string(found.Kvs[0].Key))
		if prefix == registryPrefix+"secrets/" && limit == 1 {
			from = prefix // with the higher limit
			continue
		}
		from = clientv3.GetPrefixRangeEnd(prefix)
	}
}

// resourcePrefix returns the beginning of a key that is common to the objects of its
// resource: custom resources have a group.
func resourcePrefix(key string) string {
	parts := strings.SplitN(strings.TrimPrefix(key, registryPrefix), "/", 3)
	n := 1
	if len(parts) == 3 && strings.Contains(parts[0], ".") {
		n = 2
	}
	return registryPrefix + strings.Join(parts[:n], "/") + "/"
}

func (s *Server) checkValue(ctx context.Context, key string, stored []byte) error {
	if !bytes.HasPrefix(stored, encryptedPrefix) || bytes.HasPrefix(stored, kmsPrefix) {
		return nil
	}
	name := strings.TrimPrefix(key, registryPrefix)
	byDefault := bytes.HasPrefix(stored, defaultKeyPrefix)
	if s.storage.encryption.configured == nil && !byDefault {
		return fmt.Errorf("the stored object %s is encrypted with %s, and there is no encryption configuration: set --encryption-provider-config to the file with that key", name, writtenBy(stored))
	}
	resource, ok := resourceOf(name)
	if !ok {
		return nil
	}
	_, err := s.Decrypt(ctx, resource, key, stored)
	switch {
	case err == nil:
		return nil
	case byDefault:
		return fmt.Errorf("the stored object %s cannot be decrypted: %w", name, err)
	}
	return fmt.Errorf("the stored object %s cannot be decrypted: add the key that wrote it (%s) to the file of --encryption-provider-config: %w", name, writtenBy(stored), err)
}

// resourceOf returns the resource of a key without registryPrefix. Only Secrets and custom resources
// are known: the keys of built-in resources do not have their group.
func resourceOf(name string) (resource schema.GroupResource, ok bool) {
	first, rest, _ := strings.Cut(name, "/")
	switch {
	case first == "secrets":
		return schema.GroupResource{Resource: "secrets"}, true
	case strings.Contains(first, "."):
		second, _, _ := strings.Cut(rest, "/")
		return schema.GroupResource{Group: first, Resource: second}, true
	}
	return resource, false
}

// writtenBy returns the provider and the name of the key in the prefix of a value, such as
// aescbc:v1:key1.
func writtenBy(stored []byte) string {
	parts := bytes.SplitN(bytes.TrimPrefix(stored, encryptedPrefix), []byte(":"), 4)
	return string(bytes.Join(parts[:min(3, len(parts))], []byte(":")))
}
