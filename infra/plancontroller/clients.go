package plancontroller

import (
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/apistore"
)

// clients are the typed clients of all kinds that are written here.
type clients struct {
	plans           controllers.Client[v1alpha1.Plan]
	approvals       controllers.Client[v1alpha1.Approval]
	applies         controllers.Client[v1alpha1.Apply]
	policies        controllers.Client[v1alpha1.SyncPolicy]
	clusterPolicies controllers.Client[v1alpha1.ClusterSyncPolicy]
}

func newClients(client dynamic.Interface) clients {
	const manager = apistore.FieldManager
	return clients{
		plans:           controllers.NewClient[v1alpha1.Plan](client, v1alpha1.PlanResource, "Plan", manager),
		approvals:       controllers.NewClient[v1alpha1.Approval](client, v1alpha1.ApprovalResource, "Approval", manager),
		applies:         controllers.NewClient[v1alpha1.Apply](client, v1alpha1.ApplyResource, "Apply", manager),
		policies:        controllers.NewClient[v1alpha1.SyncPolicy](client, v1alpha1.SyncPolicyResource, "SyncPolicy", manager),
		clusterPolicies: controllers.NewClient[v1alpha1.ClusterSyncPolicy](client, v1alpha1.ClusterSyncPolicyResource, "ClusterSyncPolicy", manager),
	}
}
