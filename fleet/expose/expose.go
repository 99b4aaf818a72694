// Package expose has member clusters serve API groups of the control plane. For
// each member that a SharedAPI chooses it keeps there what aggregation needs: the
// APIServices, the Service and the addresses behind it, and roles; and it removes
// all of it, and nothing else, when the member is not to serve the groups any more.
package expose
