package aggregate

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A target is what a request of a member is about.
type target int

const (
	// objects of an exposed group.
	objects target = iota
	// documents about one exposed group, which the workspace's own answer fits.
	groupDocument
	// documents about all groups, of which the member sees its own.
	discovery
	openAPIV2
	openAPIV3
)

// locate says what a request is about, or why the member may not have it.
//
// What is not exposed is forbidden, never "not found": a member's garbage
// collector takes a 404 of an owner as leave to delete what the owner owned.
func (m *member) locate(method, path string) (target, *apierrors.StatusError) {
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
		return 0, forbidden(fmt.Sprintf("cluster %s may reach only API groups that are exposed to it, not %s; connect to Atoll itself", m.name, path))
	}
	if group != "" && !m.groups[group] {
		return 0, forbidden(fmt.Sprintf("API group %s is not exposed to cluster %s; to change that: atoll expose %s --to %s", group, m.name, group, m.name))
	}
	if found != objects && method != http.MethodGet {
		return 0, status(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, fmt.Sprintf("%s can only be read", path))
	}
	return found, nil
}

// split takes a path apart. Parts that a later reader might resolve (empty ones,
// dots) are refused, so that all readers see the same path; one slash at the end
// means nothing.
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
