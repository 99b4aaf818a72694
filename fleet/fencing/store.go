package fencing

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// The ConfigMap with the record, and its keys.
const (
	recordName = "atoll-fencing"
	objectsKey = "objects"
	contactKey = "contact"
)

const (
	requestTimeout = 10 * time.Second
	// mostBytes bounds the record: a ConfigMap cannot be larger than 1 MiB.
	mostBytes = 900 << 10
)

// memberStore is the Store in a cluster.
type memberStore struct {
	kube kubernetes.Interface
	dyn  dynamic.Interface
}

// NewStore returns the Store in a cluster.
func NewStore(member *rest.Config) (Store, error) {
	cfg := rest.CopyConfig(member)
	cfg.Timeout, cfg.QPS, cfg.UserAgent = requestTimeout, -1, v1alpha1.SyncerFieldManager
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}
	return &memberStore{kube, dyn}, nil
}

func (s *memberStore) Load(ctx context.Context) (objects []Object, contact time.Time, err error) {
	record, err := s.kube.CoreV1().ConfigMaps(v1alpha1.SystemNamespace).Get(ctx, recordName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	if err := json.Unmarshal([]byte(record.Data[objectsKey]), &objects); err != nil {
		return nil, time.Time{}, fmt.Errorf("read key %s of ConfigMap %s/%s: %w", objectsKey, record.Namespace, record.Name, err)
	}
	if contact, err = time.Parse(time.RFC3339Nano, record.Data[contactKey]); err != nil {
		return nil, time.Time{}, fmt.Errorf("read key %s of ConfigMap %s/%s: %w", contactKey, record.Namespace, record.Name, err)
	}
	return objects, contact, nil
}

func (s *memberStore) Save(ctx context.Context, objects []Object, contact time.Time) error {
	data, err := json.Marshal(objects)
	if err != nil {
		return err
	}
	if len(data) > mostBytes {
		return fmt.Errorf("more objects are to be stopped without contact than ConfigMap %s/%s can record: fence fewer, in policies of their own", v1alpha1.SystemNamespace, recordName)
	}
	record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: recordName, Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedByAtoll}},
		Data: map[string]string{objectsKey: string(data), contactKey: contact.UTC().Format(time.RFC3339Nano)}}
	api := s.kube.CoreV1().ConfigMaps(v1alpha1.SystemNamespace)
	_, err = api.Update(ctx, record, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, record, metav1.CreateOptions{})
	}
	if apierrors.IsNotFound(err) { // the namespace
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
		if _, err = s.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			_, err = api.Create(ctx, record, metav1.CreateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("record in the cluster which replicas stop without contact: %w", err)
	}
	return nil
}

func (s *memberStore) Scale(ctx context.Context, o Object, replicas int32) error {
	var value any = replicas
	for i := len(o.Replicas) - 1; i >= 0; i-- {
		value = map[string]any{o.Replicas[i]: value}
	}
	patch, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = s.dyn.Resource(o.Resource).Namespace(o.Name.Namespace).Patch(ctx, o.Name.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.SyncerFieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
