package clusters

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// identityProblem returns why the real cluster with this ID must not be synced as the given
// Cluster, with a remedy, or "" if it may be. If another cluster were synced, all objects of the
// first would count as deleted, and be created again in the second.
func identityProblem(c *v1alpha1.Cluster, id string) string {
	if c.AcceptsID(id) {
		return ""
	}
	give := "`atoll join " + c.Name + "`"
	if c.InPullMode() {
		give = renewPull
	}
	return fmt.Sprintf("another cluster answers than the one that joined as %s: its namespace kube-system has UID %s, expected %s. Nothing is written to it, and running objects keep running. "+
		"Provide the kubeconfig of the original cluster with %s. If the cluster was recreated and its data is lost, accept the new one with `kubectl annotate cluster %s %s=%s --overwrite`",
		c.Name, id, c.Status.ID, give, c.Name, v1alpha1.AcceptIDAnnotation, id)
}

// identityProblem also checks the other Clusters: none of them may be synced twice. The control plane must not be its own member: its objects would
// seem to be those that it placed.
func (c *controller) identityProblem(cluster *v1alpha1.Cluster, id string) string {
	if id == "" || id == cluster.Status.ID {
		return ""
	}
	if own, has := c.Namespaces.Get(metav1.NamespaceSystem); has && string(own.GetUID()) == id {
		return fmt.Sprintf("the kubeconfig leads to this control plane itself. Nothing is written to it. Provide the kubeconfig of %s with `atoll join %[1]s`, or delete the Cluster", cluster.Name)
	}
	for _, other := range c.Clusters.All() {
		if other.Name != cluster.Name && other.Status.ID == id {
			return fmt.Sprintf("the cluster that answers has already joined as %s. Nothing is written to it under the name %s, and running objects keep running. Provide the kubeconfig of %[2]s with `atoll join %[2]s` or, in mode Pull, to its syncer",
				other.Name, cluster.Name)
		}
	}
	return identityProblem(cluster, id)
}

// pullIdentityProblem is what the syncer of a cluster in mode Pull detects itself, or receives from
// the leader, which knows the other Clusters.
func pullIdentityProblem(c *v1alpha1.Cluster, id string) string {
	if why := identityProblem(c, id); why != "" {
		return why
	}
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
	if ready != nil && ready.Reason == v1alpha1.ReasonWrongCluster && id != c.Status.ID {
		return ready.Message
	}
	return ""
}
