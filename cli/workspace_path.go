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

// wholeTree ends the path of a tree: all workspaces below the one before it.
const wholeTree = "*"

// isTree reports whether a path is that of a tree.
func isTree(path string) bool { return path == wholeTree || strings.HasSuffix(path, ":"+wholeTree) }

// treeTop returns the path of the workspace that a tree is below, or the path itself if it is no tree.
func treeTop(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(path, wholeTree), ":")
}

// readablePath is workspacePath for commands that may read a tree: "*", or "PATH:*".
func readablePath(current, given string) (string, error) {
	if !isTree(given) {
		return workspacePath(current, given)
	}
	top := treeTop(given)
	switch {
	case given == wholeTree, top == rootWorkspace, top == "" && treeTop(current) == "":
		return wholeTree, nil
	case top == "":
		return treeTop(current) + ":" + wholeTree, nil
	}
	top, err := workspacePath(current, top)
	if err != nil {
		return "", err
	}
	if top == "" {
		return wholeTree, nil
	}
	return top + ":" + wholeTree, nil
}

// workspacePath returns the path that a user means who uses a workspace now; "" is the root.
func workspacePath(current, given string) (string, error) {
	if isTree(given) {
		return "", fmt.Errorf("%q is all workspaces of a tree: name one workspace", given)
	}
	current = treeTop(current)
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
