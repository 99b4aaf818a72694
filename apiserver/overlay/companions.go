package overlay

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
)

// AccountName is the name of the ServiceAccount that every namespace has.
const AccountName = "default"

// Namespaces is the resource of namespaces.
var Namespaces = schema.GroupResource{Resource: "namespaces"}

// Companions returns the objects that every namespace has: the ServiceAccount default, and the ConfigMap with the certificate
// authority of this server. In a cluster, two controllers create them.
func Companions(namespace string, rootCA []byte) []Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: AccountName}
	all := []Object{{corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: meta}}}
	if len(rootCA) == 0 {
		return all
	}
	meta.Name = rootcacertpublisher.RootCACertConfigMapName
	meta.Annotations = map[string]string{rootcacertpublisher.DescriptionAnnotation: rootcacertpublisher.Description}
	return append(all, Object{corev1.Resource("configmaps"), &corev1.ConfigMap{ObjectMeta: meta, Data: RootCAData(rootCA)}})
}

// RootCAData returns the data of the ConfigMap, as upstream's publisher writes it.
func RootCAData(rootCA []byte) map[string]string { return map[string]string{"ca.crt": string(rootCA)} }

// WithCompanions returns the client of the storage of a resource. That of namespaces writes the companions of a new namespace in the
// same transaction, so that no crash leaves a namespace without them.
func (e *Encoder) WithCompanions(resource schema.GroupResource, client *kubernetes.Client) *kubernetes.Client {
	if resource != Namespaces {
		return client
	}
	return &kubernetes.Client{Client: client.Client, Kubernetes: accompanied{client.Kubernetes, client.KV, e}}
}

// accompanied are the keys of namespaces.
type accompanied struct {
	kubernetes.Interface
	kv      clientv3.KV
	encoder *Encoder
}

// OptimisticPut implements kubernetes.Interface.
func (a accompanied) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	if expected != 0 {
		return a.Interface.OptimisticPut(ctx, key, value, expected, opts)
	}
	writes := []clientv3.Op{clientv3.OpPut(key, string(value))}
	for _, o := range Companions(strings.TrimPrefix(key, keyOf(Namespaces.Resource, &metav1.ObjectMeta{})), a.encoder.RootCA) {
		write, err := a.encoder.Put(ctx, o)
		if err != nil {
			return kubernetes.PutResponse{}, fmt.Errorf("create the objects of a new namespace: %w", err)
		}
		writes = append(writes, write)
	}
	done, err := a.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(writes...).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	out := kubernetes.PutResponse{Succeeded: done.Succeeded, Revision: done.Header.Revision}
	if found := done.Responses[0].GetResponseRange(); found != nil && opts.GetOnFailure && len(found.Kvs) > 0 {
		out.KV = found.Kvs[0]
	}
	return out, nil
}
