package placement

import "github.com/atoll-dev/atoll/api/fleet/v1alpha1"

// IsSilent reports whether nothing is known about what happens in a cluster now. One that answers, and says that it is
// not ready, is not silent.
func (c *Cluster) IsSilent() bool {
	return !c.Ready && c.Why != v1alpha1.ReasonClusterNotReady
}

// LeavesAsIs reports whether a cluster leaves the fleet and keeps its objects, or cannot report whether it removed them.
func (c *Cluster) LeavesAsIs() bool {
	if c.Object == nil {
		return false
	}
	leaving, orphan := c.Object.Leaving()
	return leaving && (orphan || !c.Ready)
}
