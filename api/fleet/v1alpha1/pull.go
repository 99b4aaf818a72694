package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// ClusterMode is which side opens the connection.
// +kubebuilder:validation:Enum=Push;Pull
type ClusterMode string

const (
	// ModePush: Atoll connects to the cluster with the kubeconfig in a Secret.
	ModePush ClusterMode = "Push"
	// ModePull: a syncer that runs elsewhere, for example in the cluster itself, connects to Atoll.
	// Atoll has no access to the cluster.
	ModePull ClusterMode = "Pull"
)

// InPullMode reports whether the cluster is in mode Pull.
func (c *Cluster) InPullMode() bool { return c.Spec.Mode == ModePull }

// The identity of a syncer in mode Pull.
const (
	// SyncerUserPrefix and a cluster's name are the user name of its syncer.
	SyncerUserPrefix = "atoll:syncer:"
	// SyncersGroup is the group of all syncers. It has no permissions beyond those of every
	// authenticated user.
	SyncersGroup = "atoll:syncers"
	// CredentialGroupPrefix and an identifier are a group in each syncer's certificate. The Cluster
	// names the valid identifier, so changing it revokes certificates.
	CredentialGroupPrefix = "atoll:credential:"
	// CredentialAnnotation on a Cluster names the only valid credential. Removing or changing it
	// revokes all certificates of its syncer.
	CredentialAnnotation = Group + "/credential"
)

// Names for clusters that join with a bootstrap token. The syncer requests its certificate with the token, by a
// CertificateSigningRequest, and a user of the fleet approves that.
const (
	// SyncerSignerName is the signer of these requests.
	SyncerSignerName = Group + "/syncer"
	// BootstrapGroup is the group of users with such a token. It may only create these requests, and read them by name.
	BootstrapGroup = "system:bootstrappers:atoll:clusters"
	// BootstrapClusterAnnotation on the Secret of a token names the cluster that may join with it.
	BootstrapClusterAnnotation = Group + "/bootstrap-cluster"
	// BootstrapTokenAnnotation on a Cluster is the ID of the token with which its syncer may get a credential.
	BootstrapTokenAnnotation = Group + "/bootstrap-token"
)

// SyncerFieldManager is the field manager of syncers in members.
const SyncerFieldManager = "atoll-syncer"

// AggregateToSyncerLabel with the value "true" adds a ClusterRole of a member to the permissions of the syncer that runs
// there with the manifests of `atoll join --mode pull`.
const AggregateToSyncerLabel = Group + "/aggregate-to-syncer"

// SyncerUser returns the user name of a cluster's syncer.
func SyncerUser(cluster string) string { return SyncerUserPrefix + cluster }

// ViewsPath and a cluster's name are the path of the cluster's view.
const ViewsPath = "/services/clusters/"

// ControlPlanePath is where a server says which control plane it is, as a ClusterClaim: data that was
// restored or copied is another one's from its first start, before any cluster was probed.
const ControlPlanePath = "/services/control-plane/"

// Names for the tunnels of clusters in mode Pull. Each has a Lease in SystemNamespace, with the cluster's name as TunnelLabel,
// whose holder is the server that the cluster's syncer is connected to, at TunnelAddressAnnotation.
const (
	TunnelLabel             = Group + "/tunnel"
	TunnelAddressAnnotation = Group + "/tunnel-address"
	// TunnelsPath and a cluster's name are where servers pass connections on to each other, as members of ServersGroup.
	TunnelsPath  = "/services/tunnels/"
	ServersGroup = "atoll:servers"
)

// TunnelLease returns the name of the Lease.
func TunnelLease(cluster string) string { return "tunnel-" + cluster }

// ParseViewPath returns the cluster whose view contains a path, and the rest of the path. It takes
// the path as it was requested: the caller must not clean it first.
func ParseViewPath(path string) (cluster, rest string, ok bool) {
	below, ok := strings.CutPrefix(path, ViewsPath)
	if !ok {
		return "", "", false
	}
	cluster, rest, _ = strings.Cut(below, "/")
	return cluster, "/" + rest, cluster != ""
}

// Names and intervals for the heartbeats of syncers in mode Pull. Each syncer has a Lease in
// SystemNamespace, with the cluster's name as HeartbeatLabel and what it observed of the cluster as
// ObservationAnnotation.
const (
	HeartbeatLabel        = Group + "/heartbeat"
	ObservationAnnotation = Group + "/observation"
	// HeartbeatInterval is how often a syncer renews it. After HeartbeatExpiry without a renewal,
	// the cluster is not Ready.
	HeartbeatInterval = 20 * time.Second
	HeartbeatExpiry   = 60 * time.Second
)

// HeartbeatLease returns the name of the Lease.
func HeartbeatLease(cluster string) string { return "syncer-" + cluster }

// Names for the types that syncers in mode Pull report. They are stored in ConfigMaps in
// SystemNamespace, with the cluster's name as ReportedTypesLabel. One ConfigMap lists the API
// groups. Each group has a ConfigMap of its own, which ReportedGroupAnnotation names, with the
// types and their ReportedDigestAnnotation.
const (
	ReportedTypesLabel       = Group + "/reported-types"
	ReportedGroupAnnotation  = Group + "/reported-group"
	ReportedDigestAnnotation = Group + "/reported-digest"
	// ReportedTimeAnnotation is when the list was last confirmed.
	ReportedTimeAnnotation = Group + "/reported-time"
)

// TypesReportName returns the name of the ConfigMap that lists a cluster's groups.
func TypesReportName(cluster string) string { return "types." + cluster }

// GroupReportName returns the name of the ConfigMap of one group.
func GroupReportName(cluster, group string) string {
	sum := sha256.Sum256([]byte(group))
	return "typegroup." + hex.EncodeToString(sum[:8]) + "." + cluster
}
