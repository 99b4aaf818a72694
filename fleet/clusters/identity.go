package clusters

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// wrong says why the real cluster with this ID is not to be served as a Cluster, and
// what to do; "" if it may be. To serve another cluster would be to take everything in
// the first for gone, and to make all of it anew in the second.
func wrong(c *v1alpha1.Cluster, id string) string {
	if c.Accepts(id) {
		return ""
	}
	give := "`atoll join " + c.Name + "`"
	if c.Pulls() {
		give = renewPull
	}
	return fmt.Sprintf("who answers is not the cluster that joined as %s: namespace kube-system has UID %s there, and had %s. Nothing is written to it, and what runs runs on. "+
		"Give the kubeconfig of the cluster that joined with %s; or, if that was made anew and has lost everything, say so with `kubectl annotate cluster %s %s=%s --overwrite`",
		c.Name, id, c.Status.ID, give, c.Name, v1alpha1.AcceptIDAnnotation, id)
}

// wrong is the same with a look at the other Clusters: none of them may be served twice.
func (c *controller) wrong(cluster *v1alpha1.Cluster, id string) string {
	if id == "" || id == cluster.Status.ID {
		return ""
	}
	for _, other := range c.Clusters() {
		if other.Name != cluster.Name && other.Status.ID == id {
			return fmt.Sprintf("who answers is the cluster that joined as %s. Nothing is written to it in the name of %s, and what runs runs on. Give the kubeconfig of %[2]s with `atoll join %[2]s` or, in mode Pull, to its syncer",
				other.Name, cluster.Name)
		}
	}
	return wrong(cluster, id)
}

// wrongHere is what the syncer of a cluster in mode Pull finds itself, or is told by
// the leader, who knows the other Clusters.
func wrongHere(c *v1alpha1.Cluster, id string) string {
	if why := wrong(c, id); why != "" {
		return why
	}
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
	if ready != nil && ready.Reason == v1alpha1.ReasonWrongCluster && id != c.Status.ID {
		return ready.Message
	}
	return ""
}
