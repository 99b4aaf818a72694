// Package controllers has what the controllers of the API server, of the fleet and of infrastructure
// need around a Kubernetes client: the election of one server, workers for a queue, CRDs, and typed
// clients and caches. It knows no kind of Atoll: it imports nothing of this module, so any room on its
// floor may import it.
package controllers
