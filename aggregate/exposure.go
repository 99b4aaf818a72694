package aggregate

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// target classifies the path of a member's request.
type target int

const (
	// objects of an exposed group.
	objects target = iota
	// groupDocument is a document about one exposed group, served as the workspace
	// returns it.
	groupDocument
	// discovery and the following are documents about all groups, filtered for the
	// member.
	discovery
	openAPIV2
	openAPIV3
)

// classify returns the target of a request, or why the member may not have it.
//
// A group that is not exposed is 403 Forbidden, never 404: a member's garbage collector
// takes a 404 for an owner as permission to delete the owner's dependents.
func (m *member) classify(method, path string) (target, *apierrors.StatusError) {
	parts, ok := split(path)
	if !ok {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("path %q has empty or relative parts", path))
	}
	found, group := objects, ""
	switch {
	case len(parts) == 1 && parts[0] == "apis":
		found = discovery
	case len(parts) == 2 && parts[0] == "openapi" && parts[1] == "v2":
		found = openAPIV2
	case len(parts) == 2 && parts[0] == "openapi" && parts[1] == "v3":
		found = openAPIV3
	case len(parts) <= 5 && len(parts) >= 4 && parts[0] == "openapi" && parts[1] == "v3" && parts[2] == "apis":
		found, group = groupDocument, parts[3]
	case parts[0] == "apis" && len(parts) <= 3:
		found, group = groupDocument, parts[1]
	case parts[0] == "apis":
		group = parts[1]
	default:
		return 0, forbidden(fmt.Sprintf("cluster %s can reach only API groups that are exposed to it, not %s; connect to Atoll directly instead", m.name, path))
	}
	if group != "" && !m.groups[group] {
		return 0, forbidden(fmt.Sprintf("API group %s is not exposed to cluster %s; to expose it, run: atoll expose %s --to %s", group, m.name, group, m.name))
	}
	if found != objects && method != http.MethodGet {
		return 0, status(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, fmt.Sprintf("%s is read-only", path))
	}
	return found, nil
}

// split returns the segments of a path. It rejects segments that another parser might
// resolve (empty ones, dots), so that all parsers see the same path. One trailing slash
// is ignored.
func split(path string) ([]string, bool) {
	trimmed, ok := strings.CutPrefix(path, "/")
	if !ok {
		return nil, false
	}
	parts := strings.Split(strings.TrimSuffix(trimmed, "/"), "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." {
			return nil, false
		}
	}
	return parts, true
}
