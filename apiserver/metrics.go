package apiserver

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// exportMetrics has the workspace's own metrics served at /metrics beside
// upstream's, which has one registry per process: so each carries the workspace's
// name. If the process serves the same workspace twice (tests do), those of the
// first are what is seen. The function returned takes them back.
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
