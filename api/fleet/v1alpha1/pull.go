package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// ClusterMode says who goes to whom.
// +kubebuilder:validation:Enum=Push;Pull
type ClusterMode string

const (
	// ModePush: Atoll reaches the cluster by the kubeconfig in a Secret.
	ModePush ClusterMode = "Push"
	// ModePull: a syncer that runs elsewhere, in the cluster itself for instance,
	// comes and gets what is bound to it. Atoll has no access to the cluster.
	ModePull ClusterMode = "Pull"
)

// Pulls tells whether the cluster's syncer comes by itself.
func (c *Cluster) Pulls() bool { return c.Spec.Mode == ModePull }

// The identity of a syncer that comes by itself, and nobody else's.
const (
	// SyncerUserPrefix and a cluster's name is the user that its syncer is.
	SyncerUserPrefix = "atoll:syncer:"
	// SyncersGroup is all of them. It has no permission but what is for everybody
	// who is authenticated.
	SyncersGroup = "atoll:syncers"
	// CredentialGroupPrefix and an identifier is a group in each syncer's certificate.
	// The Cluster names the one that counts, so changing it revokes certificates.
	CredentialGroupPrefix = "atoll:credential:"
	// CredentialAnnotation on a Cluster names the only credential that counts. Taking it
	// off, or changing it, revokes every certificate that its syncer has.
	CredentialAnnotation = Group + "/credential"
)

// SyncerFieldManager owns in a member what a syncer applies there.
const SyncerFieldManager = "atoll-syncer"

// SyncerUser is who the syncer of a cluster is.
func SyncerUser(cluster string) string { return SyncerUserPrefix + cluster }

// ViewsPath and a cluster's name is where the cluster's view is served.
const ViewsPath = "/services/clusters/"

// ViewOf tells whose view a path is in, if it is in one, and the rest of the path.
// It takes the path as it is: whoever cleans it first must not come here.
func ViewOf(path string) (cluster, rest string, ok bool) {
	below, ok := strings.CutPrefix(path, ViewsPath)
	if !ok {
		return "", "", false
	}
	cluster, rest, _ = strings.Cut(below, "/")
	return cluster, "/" + rest, cluster != ""
}

// How syncers that come by themselves say that they are there: each by a Lease in
// SystemNamespace that carries HeartbeatLabel with the cluster's name and, as
// ObservationAnnotation, what the syncer saw of the cluster.
const (
	HeartbeatLabel        = Group + "/heartbeat"
	ObservationAnnotation = Group + "/observation"
	// HeartbeatEvery is how often a syncer says so, and HeartbeatExpiry after how long
	// without it the cluster is not Ready.
	HeartbeatEvery  = 20 * time.Second
	HeartbeatExpiry = 60 * time.Second
)

// HeartbeatLease is the name of that Lease.
func HeartbeatLease(cluster string) string { return "syncer-" + cluster }

// How the types that a cluster in mode Pull serves are kept as its syncer reports them: in
// ConfigMaps in SystemNamespace that carry ReportedTypesLabel with the cluster's name.
// One lists the API groups, and one for each group, which ReportedGroupAnnotation names,
// has what the cluster serves of it, by ReportedDigestAnnotation.
const (
	ReportedTypesLabel       = Group + "/reported-types"
	ReportedGroupAnnotation  = Group + "/reported-group"
	ReportedDigestAnnotation = Group + "/reported-digest"
	// ReportedTimeAnnotation is when the list was last confirmed.
	ReportedTimeAnnotation = Group + "/reported-time"
)

// TypesReportName is the name of the ConfigMap that lists a cluster's groups.
func TypesReportName(cluster string) string { return "types." + cluster }

// GroupReportName is the name of the ConfigMap of one group.
func GroupReportName(cluster, group string) string {
	sum := sha256.Sum256([]byte(group))
	return "typegroup." + hex.EncodeToString(sum[:8]) + "." + cluster
}
