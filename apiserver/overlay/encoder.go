package overlay

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// Encoder encodes objects as the storages of their resources do.
type Encoder struct {
	Factory     *serverstorage.DefaultStorageFactory
	Transformer func(schema.GroupResource) value.Transformer
	// RootCA is the certificate authority of the server, which namespaces publish; none if it is empty.
	RootCA []byte
}

// Key returns the key under which the storage of its resource has an object.
func (e *Encoder) Key(o Object) string { return keyOf(e.Factory.ResourcePrefix(o.Resource), o.Object) }

// Put returns the write of a new object, as the storage of its resource would make it. The object is not changed.
func (e *Encoder) Put(ctx context.Context, o Object) (none clientv3.Op, err error) {
	encoded, err := e.encode(o, uuid.NewUUID(), metav1.NewTime(time.Now().Truncate(time.Second)))
	if err != nil {
		return none, fmt.Errorf("encode %s %s: %w", o.Resource, o.Object.GetName(), err)
	}
	key := e.Key(o)
	stored, err := e.Transformer(o.Resource).TransformToStorage(ctx, encoded, value.DefaultContext(key))
	if err != nil {
		return none, fmt.Errorf("encrypt %s %s: %w", o.Resource, o.Object.GetName(), err)
	}
	return clientv3.OpPut(key, string(stored)), nil
}

// encode encodes a copy of an object with that UID and creation time.
func (e *Encoder) encode(o Object, uid types.UID, created metav1.Time) ([]byte, error) {
	object, ok := o.Object.DeepCopyObject().(Stored)
	if !ok {
		return nil, errors.New("it has no metadata")
	}
	object.SetUID(uid)
	object.SetCreationTimestamp(created)
	cfg, err := e.Factory.NewConfig(o.Resource, nil)
	if err != nil {
		return nil, err
	}
	return runtime.Encode(cfg.Codec, object)
}

// CustomKey is the prefix of the keys of a custom resource.
func CustomKey(resource schema.GroupResource) string {
	return "/registry/" + resource.Group + "/" + resource.Resource + "/"
}

// keyOf returns the key under which the storage of a resource has an object.
func keyOf(resourcePrefix string, object metav1.Object) string {
	key := "/registry/" + resourcePrefix + "/"
	if object.GetNamespace() != "" {
		key += object.GetNamespace() + "/"
	}
	return key + object.GetName()
}
