package fleet

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// Clusters are the Clusters of the control plane, and how to reach them.
type Clusters struct {
	controllers.Cache[v1alpha1.Cluster]
	objects  *Objects // for Secrets
	accesses accessCache
	restrict func(*rest.Config) error // Config.Restrict; may be nil
}

func newClusters(dyn dynamic.Interface, objects *Objects, restrict func(*rest.Config) error) *Clusters {
	return &Clusters{Cache: controllers.NewCache[v1alpha1.Cluster](dyn, v1alpha1.ClusterResource, controllers.CacheOptions{}), objects: objects, restrict: restrict}
}

// listen forgets the accesses of deleted Clusters.
func (c *Clusters) listen() error {
	return c.OnChange(func(was, is *v1alpha1.Cluster) {
		if is == nil {
			c.accesses.delete(was.Name)
		}
	})
}

// Access returns how to reach a cluster, read from the Secret that the Cluster references. An error
// names the cause and the next step. No error quotes the contents of the Secret.
func (c *Clusters) Access(cluster *v1alpha1.Cluster) (*Access, error) {
	if cluster.InPullMode() {
		return nil, noAccess(cluster)
	}
	ref := cluster.Spec.KubeconfigSecretRef
	where := fmt.Sprintf("Secret %s/%s", ref.Namespace, ref.Name)
	secret, exists := c.objects.Get(schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	if !exists {
		return nil, noSecret(cluster, where)
	}
	state := secretState{secret.GetUID(), secret.GetResourceVersion()}
	if known, ok := c.accesses.get(cluster.Name); ok && known.state == state && state.version != "" {
		return known.access, nil
	}
	a, err := read(secret, where)
	if err == nil && c.restrict != nil {
		if err = c.restrict(a.REST); err != nil {
			return nil, fmt.Errorf("the kubeconfig in %s cannot be used: %w", where, err)
		}
	}
	if err == nil {
		c.accesses.put(cluster.Name, cachedAccess{state, a})
	}
	return a, err
}
