package server

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/aggregate"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/clusters"
	"github.com/atoll-dev/atoll/fleet/expose"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/fleet/syncer"
	"github.com/atoll-dev/atoll/fleet/tunnel"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/infra/plancontroller"
	"github.com/atoll-dev/atoll/infra/providercontroller"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/tenancy"
)

// metrics are the metrics of one server. docs/metrics.md lists them.
type metrics struct {
	engine    *etcd.EngineMetrics
	members   *aggregate.Metrics
	fleet     *fleet.Metrics
	clusters  *clusters.Metrics
	scheduler *scheduler.Metrics
	syncers   *syncer.Metrics
	shared    *expose.Metrics
	views     *view.Metrics
	tunnels   *tunnel.Metrics
	webhooks  *webhooks.Metrics
	plans     *plancontroller.Metrics
	providers *providercontroller.Metrics
	tenancy   *tenancy.Metrics

	encryption *apiserver.EncryptionMetrics
}

func newMetrics() *metrics {
	return &metrics{
		engine: etcd.NewEngineMetrics(), members: aggregate.NewMetrics(),
		fleet: fleet.NewMetrics(), clusters: clusters.NewMetrics(), scheduler: scheduler.NewMetrics(), syncers: syncer.NewMetrics(),
		shared: expose.NewMetrics(), views: view.NewMetrics(), tunnels: tunnel.NewMetrics(), webhooks: webhooks.NewMetrics(),
		plans: plancontroller.NewMetrics(), providers: providercontroller.NewMetrics(),
		tenancy:    tenancy.NewMetrics(),
		encryption: apiserver.NewEncryptionMetrics(),
	}
}

// BoundMetricLabels bounds the labels of Kubernetes' metrics in this process: users of workspaces choose the names of kinds, webhooks and policies. Call it before New.
func BoundMetricLabels() error {
	own, err := ownTypes()
	if err != nil {
		return err
	}
	ofWorkspaces, err := tenancyv1alpha1.WorkspaceCRDs()
	if err != nil {
		return err
	}
	bound, err := controllers.DefinedBy(ofWorkspaces)
	if err != nil {
		return err
	}
	return apiserver.BoundMetricLabels(slices.Concat(own, bound))
}

// collectors returns everything that this server exports beside Kubernetes' own metrics,
// except for those of the keyspace.
func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.engine, m.members, m.fleet, m.clusters, m.scheduler, m.syncers, m.shared, m.views, m.tunnels, m.webhooks, m.plans, m.providers, m.tenancy, m.encryption}
}
