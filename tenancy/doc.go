// Package tenancy decides which workspaces of a server are awake. A workspace is opened for the first request that needs it, and is
// closed when no request has needed it for a while: idle workspaces cost nothing.
package tenancy
