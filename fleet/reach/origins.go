package reach

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// origins reports which objects of clusters are copies of objects of the control plane, by their ResourceBindings.
type origins struct {
	control Control
	clock   clock.PassiveClock

	mu    sync.Mutex
	known *lru.Cache // the time when it was read that an object is bound, by originKey
}

type originKey struct {
	cluster   string
	namespace string
	binding   string
	uid       types.UID
}

const (
	maxOrigins = 20_000
	// originTTL is how long a binding is not read again. A copy in a cluster that is no longer bound is removed there.
	originTTL = 10 * time.Second
)

func newOrigins(control Control, clk clock.PassiveClock) *origins {
	return &origins{control: control, clock: clk, known: lru.New(maxOrigins)}
}

// bound reports whether an object of a cluster is the copy of an object that is, or was last, bound to the cluster. An
// object with the marks of another name is none: a user of the cluster can write marks.
func (o *origins) bound(ctx context.Context, a ancestor, cluster string) (bool, error) {
	key := originKey{cluster, a.name.Namespace, v1alpha1.BindingName(a.kind, a.name.Name), a.source}
	now := o.clock.Now()
	o.mu.Lock()
	since, ok := o.known.Get(key)
	o.mu.Unlock()
	if ok && now.Sub(since.(time.Time)) < originTTL {
		return true, nil
	}
	client, err := o.client(key.namespace)
	if err != nil {
		return false, err
	}
	item, err := client.Get(ctx, key.binding, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read ResourceBinding %s/%s: %w", key.namespace, key.binding, err)
	}
	if !binds(item, a.source, cluster) {
		return false, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known.Add(key, now)
	return true, nil
}

func (o *origins) client(namespace string) (dynamic.ResourceInterface, error) {
	control, err := o.control()
	if err != nil {
		return nil, err
	}
	client := control.Resource(v1alpha1.BindingResource(namespace))
	if namespace == "" {
		return client, nil
	}
	return client.Namespace(namespace), nil
}

// binds reports whether a binding is of this object, and has a share or a report of the cluster.
func binds(item *unstructured.Unstructured, uid types.UID, cluster string) bool {
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, b); err != nil || b.Spec.Resource.UID != uid {
		return false
	}
	for _, share := range b.Spec.Clusters {
		if share.Name == cluster {
			return true
		}
	}
	for _, state := range b.Status.Clusters {
		if state.Name == cluster {
			return true
		}
	}
	return false
}
