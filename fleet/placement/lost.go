package placement

import "github.com/atoll-dev/atoll/api/fleet/v1alpha1"

// isUnreachable reports whether no connection to the cluster can be made, so its workloads may be lost. For all other
// reasons why it is not Ready, something there answers, or the fault is here: its nodes go on running their pods.
func (c *Cluster) isUnreachable() bool { return !c.Ready && c.Why == v1alpha1.ReasonClusterUnreachable }

// mayRun explains why the workloads of a cluster that is not Ready, and not unreachable, may run.
func mayRun(why string) string {
	switch why {
	case v1alpha1.ReasonInvalidKubeConfig:
		return "its kubeconfig or credentials are refused, but its workloads may run"
	case v1alpha1.ReasonErrorCreatingClient:
		return "no client can be created from its kubeconfig, but its workloads may run"
	case v1alpha1.ReasonInvalidServerCertificate:
		return "the certificate of its API server is not valid, but its workloads may run"
	case v1alpha1.ReasonClusterNotReady:
		return "its API server answers that it is not ready, and its workloads run without it"
	case v1alpha1.ReasonClusterSlow:
		return "its API server accepts connections and answers too late, but its workloads may run"
	case v1alpha1.ReasonErrorInstallingSyncer, v1alpha1.ReasonErrorStartingSyncer:
		return "its syncer does not run, but its workloads may"
	case v1alpha1.ReasonWrongCluster:
		return "another cluster answers under its name, and its workloads may run"
	case v1alpha1.ReasonOtherControlPlane:
		return "another control plane has it, and its workloads may run"
	}
	return "its state is not known" + because(why)
}
