package server

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns the metrics of a new server, for tests of their names.
func Collectors() []prometheus.Collector { return newMetrics().collectors() }
