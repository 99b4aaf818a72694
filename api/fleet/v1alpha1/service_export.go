package v1alpha1

// Marks of Services that clusters share with each other (multicluster.x-k8s.io).
const (
	// ExportedAnnotation on the ResourceBinding of a Service is the UID of the ServiceExport of the same name: the
	// syncers of its clusters report the endpoints of the Service there. Only then may they.
	ExportedAnnotation = Group + "/exported"
	// ImportedLabel ("true") is on everything that Atoll makes of a ServiceExport: the ServiceImport, the derived
	// Service, and its EndpointSlices.
	ImportedLabel = Group + "/imported"
	// ClusterIPsAnnotation on a ServiceImport has the addresses of the derived Service in each cluster, as JSON. Each
	// cluster gets its own, in spec.ips.
	ClusterIPsAnnotation = Group + "/cluster-ips"
)

// Bounds of the endpoints that a cluster reports for one Service.
const (
	// MaxExportedEndpoints of a Service in one cluster are known to the others.
	MaxExportedEndpoints = 1000
	// MaxEndpointsOfSlice are in one EndpointSlice.
	MaxEndpointsOfSlice = 100
	// MaxExportedSlices of a Service come from one cluster. There are more than endpoints need, because endpoints with
	// other ports or of another address family have EndpointSlices of their own.
	MaxExportedSlices = 32
	// MaxExportedPorts are in one EndpointSlice.
	MaxExportedPorts = 100
	// MaxClusterIPs of a Service: one of each address family.
	MaxClusterIPs = 2
)
