package workspaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	clientrest "k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver/overlay"
)

// ClientConfig returns the configuration of a client of an open workspace, as the server itself. Its requests do not keep the workspace
// open: the caller does.
func (s *Server) ClientConfig(w *Workspace) (*clientrest.Config, error) {
	chain, err := s.built()
	if err != nil {
		return nil, err
	}
	config := chain.clientConfig(w)
	config.ContentType = "application/json" // for custom resources
	return config, nil
}

// Read decodes the custom resource with that name into out, from the storage of a workspace: there is no request, no conversion between
// versions, and no entry in the audit log. It is for what the server needs to know to serve a request.
// Errors: ErrNotFound if the object does not exist.
func (s *Server) Read(ctx context.Context, w *Workspace, resource schema.GroupResource, name string, out metav1.Object) error {
	key := customKey(resource) + name
	got, err := w.client.KV.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("read %s %s: %w", resource, name, err)
	}
	if len(got.Kvs) == 0 {
		return ErrNotFound
	}
	return s.decode(ctx, resource, string(got.Kvs[0].Key), got.Kvs[0].Value, got.Kvs[0].ModRevision, out)
}

// maxRead bounds how many objects ReadAll reads.
const maxRead = 1000

// ReadAll is Read for all cluster-scoped objects of a resource: next returns the object to decode the next one into.
func (s *Server) ReadAll(ctx context.Context, w *Workspace, resource schema.GroupResource, next func() metav1.Object) error {
	got, err := w.client.KV.Get(ctx, customKey(resource), clientv3.WithPrefix(), clientv3.WithLimit(maxRead))
	if err != nil {
		return fmt.Errorf("read %s: %w", resource, err)
	}
	if got.More {
		return fmt.Errorf("read %s: %w", resource, errTooMany)
	}
	for _, kv := range got.Kvs {
		if err := s.decode(ctx, resource, string(kv.Key), kv.Value, kv.ModRevision, next()); err != nil {
			return err
		}
	}
	return nil
}

var errTooMany = errors.New("there are more than " + strconv.Itoa(maxRead) + " objects")

func (s *Server) decode(ctx context.Context, resource schema.GroupResource, key string, stored []byte, revision int64, out metav1.Object) error {
	data, _, err := s.config.Transformer(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil {
		return fmt.Errorf("decrypt %s: %w", key, err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("decode %s: %w", key, err)
	}
	out.SetResourceVersion(strconv.FormatInt(revision, 10))
	return nil
}

// customKey is the prefix of the keys of a custom resource.
func customKey(resource schema.GroupResource) string {
	return overlay.CustomKey(resource)
}
