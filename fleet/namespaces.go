package fleet

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Namespaces are the namespaces of the control plane. Only their metadata is cached.
type Namespaces struct {
	informer cache.SharedIndexInformer
}

func newNamespaces(dyn dynamic.Interface, meta metadata.Interface) *Namespaces {
	return &Namespaces{objectInformer(dyn, meta, namespaceKind())}
}

// namespaceKind is not in the built-in table. Namespaces are not placed: they are created in
// clusters for the objects in them.
func namespaceKind() interpret.KindInfo {
	return interpret.KindInfo{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), Resource: "namespaces", ClusterScoped: true, Opaque: true}
}

// Get returns the metadata of a namespace.
func (n *Namespaces) Get(name string) (metav1.Object, bool) {
	item, found, err := n.informer.GetStore().GetByKey(name)
	if err != nil || !found {
		return nil, false
	}
	ns, ok := item.(metav1.Object)
	return ns, ok
}

// OnChange calls f for each namespace, as Clusters.OnChange does. was and is hold only metadata.
func (n *Namespaces) OnChange(f func(was, is metav1.Object)) error {
	return controllers.OnChange(n.informer, f)
}
