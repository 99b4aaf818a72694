package apiserver

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// exportMetrics adds the workspace's own metrics to upstream's at /metrics.
// Upstream has one registry per process, so each metric gets the workspace's name as a
// label. If the process serves the same workspace twice (as tests do), the metrics of
// the first are visible. The returned function unregisters them.
func exportMetrics(workspace string, collectors []prometheus.Collector) (withdraw func(), err error) {
	registry := prometheus.WrapRegistererWith(prometheus.Labels{"workspace": workspace}, legacyregistry.Registerer())
	var exported []prometheus.Collector
	withdraw = func() {
		for _, c := range exported {
			registry.Unregister(c)
		}
	}
	for _, c := range collectors {
		err := registry.Register(c)
		if _, twice := errors.AsType[prometheus.AlreadyRegisteredError](err); twice {
			continue
		}
		if err != nil {
			withdraw()
			return nil, fmt.Errorf("export metrics: %w", err)
		}
		exported = append(exported, c)
	}
	return withdraw, nil
}
