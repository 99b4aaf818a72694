package cli

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// rootWorkspace is how users name the API that has the workspaces.
const rootWorkspace = "root"

// workspacePathHelp describes the argument PATH of commands.
const workspacePathHelp = `PATH has the names of the workspaces from the root down, separated by colons: team-a:staging. A path that begins with
a colon counts from the current workspace, ".." is the one above it, and "root" is the server's own API.`

// splitWorkspaceURL splits the URL of a workspace's API into that of the root and the workspace's path, which is "" for the root.
func splitWorkspaceURL(server string) (root, path string) {
	root, path, _ = strings.Cut(strings.TrimSuffix(server, "/"), "/clusters/")
	return root, path
}

// workspaceURL is the URL of a workspace's API.
func workspaceURL(root, path string) string {
	if path == "" {
		return root
	}
	return root + "/clusters/" + path
}

// workspacePath returns the path that a user means who uses a workspace now; "" is the root.
func workspacePath(current, given string) (string, error) {
	switch {
	case given == rootWorkspace || given == ":" && current == "":
		return "", nil
	case given == "..":
		if current == "" {
			return "", fmt.Errorf("the current workspace is the root, which has none above it")
		}
		above, _ := splitWorkspacePath(current)
		return above, nil
	case strings.HasPrefix(given, ":") && current != "":
		given = current + given
	}
	given = strings.TrimPrefix(given, ":")
	for _, name := range strings.Split(given, ":") {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return "", fmt.Errorf("%q is not the path of a workspace: the name %q is invalid: %s", given, name, problems[0])
		}
	}
	return given, nil
}

// splitWorkspacePath splits a path into that of the workspace above, which is "" for the root, and the name.
func splitWorkspacePath(path string) (above, name string) {
	i := strings.LastIndex(path, ":")
	return path[:max(i, 0)], path[i+1:]
}
