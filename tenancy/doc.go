// Package tenancy manages the workspaces of a server. The Directory finds a Workspace by its path. The Pool opens it for the first
// request that needs it, and closes it when no request has needed it for a while: idle workspaces cost nothing. On one server,
// RunController creates workspaces and removes those that are being deleted.
package tenancy
