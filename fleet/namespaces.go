package fleet

import (
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
	k := interpret.NamespaceKind()
	k.Opaque = true // only the metadata counts
	return &Namespaces{objectInformer(dyn, meta, k)}
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

// All returns the metadata of all namespaces, in no particular order.
func (n *Namespaces) All() []metav1.Object {
	var out []metav1.Object
	for _, item := range n.informer.GetStore().List() {
		if ns, ok := item.(metav1.Object); ok {
			out = append(out, ns)
		}
	}
	return out
}

// OnChange calls f for each namespace, as Clusters.OnChange does. was and is hold only metadata.
func (n *Namespaces) OnChange(f func(was, is metav1.Object)) error {
	return controllers.OnChange(n.informer, f)
}
