package fleet

import (
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ControlPlane identifies this control plane to its members, so that only one writes to them: not also
// a copy of its data.
type ControlPlane struct {
	// ID is that of its data. Data that was restored from a backup, or copied, has another one. If it
	// is empty, members are not claimed.
	ID string
	// Database identifies the running database. A copy of its files has the same ID, but is another
	// database.
	Database string
	// Server is the address of one of its servers, for users.
	Server string
}

// Holder identifies the control plane in claims.
func (c ControlPlane) Holder() string { return c.ID + "/" + c.Database }

// Claim returns the claim of this control plane, with an address; nil if members are not claimed.
func (c ControlPlane) Claim() *v1alpha1.ClusterClaim {
	if c.ID == "" {
		return nil
	}
	return &v1alpha1.ClusterClaim{Holder: c.Holder(), Server: c.Server}
}

// ControlPlaneOf returns the control plane of a claim.
func ControlPlaneOf(claim *v1alpha1.ClusterClaim) ControlPlane {
	id, database, _ := strings.Cut(claim.Holder, "/")
	return ControlPlane{ID: id, Database: database, Server: claim.Server}
}

// Owns reports whether this control plane may write to a cluster, as far as is recorded.
func (c ControlPlane) Owns(cluster *v1alpha1.Cluster) bool {
	return c.ID == "" || cluster.Status.Claim != nil && cluster.Status.Claim.Holder == c.Holder()
}
