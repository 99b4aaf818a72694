package tunnel

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Level is which requests a syncer passes on to its cluster. Each level includes those before it.
type Level string

const (
	// None: no tunnel is opened.
	None Level = "none"
	// Read: pods, their logs, events, nodes and metrics are read, and of other objects metadata, to find what pods belong to.
	Read Level = "read"
	// Pods: connections into containers, and changes of pods.
	Pods Level = "pods"
	// All: every request. The permissions of the syncer in its cluster are the only limit.
	All Level = "all"
)

// metricsGroup has what pods and nodes use.
const metricsGroup = "metrics.k8s.io"

// Levels returns all levels, ascending.
func Levels() []Level { return []Level{None, Read, Pods, All} }

// ParseLevel returns the level of a name.
func ParseLevel(name string) (Level, error) {
	if !slices.Contains(Levels(), Level(name)) {
		return "", fmt.Errorf("invalid level %q: use %s, %s, %s or %s", name, None, Read, Pods, All)
	}
	return Level(name), nil
}

func (l Level) includes(other Level) bool {
	return slices.Index(Levels(), l) >= slices.Index(Levels(), other)
}

// request is what decides whether a request is passed on.
type request struct {
	method, path string
	accept       []string
	escaped      bool // the path has escapes, which a server could read differently
}

// describe returns the parts of a request that decide.
func describe(r *http.Request) request {
	return request{method: r.Method, path: r.URL.Path, accept: r.Header.Values("Accept"), escaped: r.URL.RawPath != ""}
}

// target is what a path names.
type target struct {
	group, resource, name, subresource string
}

// parse returns what a path names; false if it names no resource.
func parse(path string) (t target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		t.group, parts = parts[1], parts[3:]
	default:
		return t, false
	}
	if parts[0] == "namespaces" && len(parts) >= 3 {
		parts = parts[2:]
	}
	parts = append(slices.Clone(parts), "", "")
	t.resource, t.name, t.subresource = parts[0], parts[1], parts[2]
	return t, true
}

// needs returns the level that passes a request on. If accept is not empty, it must be passed on with that, and no other
// accepted content.
func (r request) needs() (level Level, accept string) {
	if r.isUnclear() {
		return All, ""
	}
	t, ok := parse(r.path)
	switch {
	case !ok:
		if r.method == http.MethodGet && r.isDiscovery() {
			return Read, ""
		}
		return All, ""
	case t.group == "" && t.resource == "pods":
		return r.ofPod(t), ""
	case t.group == "" && t.resource == "services" && t.name != "" && t.subresource == "proxy":
		return Pods, ""
	case r.method != http.MethodGet || t.subresource != "":
		return All, ""
	case t.group == "" && (t.resource == "events" || t.resource == "nodes"):
		return Read, ""
	case t.group == metricsGroup && (t.resource == "pods" || t.resource == "nodes"):
		return Read, ""
	case t.mayOwnPods():
		if accept = r.metadata(); accept != "" {
			return Read, accept
		}
	}
	return All, ""
}

// isUnclear reports whether the cluster could read the path differently. Below proxy it is the container's.
func (r request) isUnclear() bool {
	own, _, proxied := strings.Cut(r.path, "/proxy/")
	if r.escaped && !proxied {
		return true
	}
	return slices.ContainsFunc(strings.Split(strings.TrimPrefix(own, "/"), "/"), func(part string) bool {
		return part == "" && own != "/" || part == "." || part == ".." || strings.ContainsAny(part, "\\;%\x00")
	})
}

func (r request) isDiscovery() bool {
	parts := strings.Split(strings.Trim(r.path, "/"), "/")
	switch parts[0] {
	case "api":
		return len(parts) <= 2
	case "apis":
		return len(parts) <= 3
	case "version":
		return len(parts) == 1
	}
	return false
}

// ofPod returns the level for a request for pods.
func (r request) ofPod(t target) Level {
	get := r.method == http.MethodGet
	switch {
	case get && (t.subresource == "" || t.subresource == "log"):
		return Read
	case t.name == "": // a collection
		return All
	case t.subresource == "" && (r.method == http.MethodDelete || r.method == http.MethodPatch):
		return Pods
	case slices.Contains([]string{"exec", "attach", "portforward"}, t.subresource) && (get || r.method == http.MethodPost):
		return Pods
	case t.subresource == "proxy":
		return Pods
	case t.subresource == "eviction" && r.method == http.MethodPost:
		return Pods
	case slices.Contains([]string{"ephemeralcontainers", "resize"}, t.subresource) && (get || r.method == http.MethodPatch):
		return Pods
	}
	return All
}

// mayOwnPods reports whether objects of a kind may own pods. ConfigMaps and Secrets do not, and the annotations of theirs that
// kubectl writes contain their data.
func (t target) mayOwnPods() bool { return t.group != "" || t.resource == "replicationcontrollers" }

// metadata returns the accepted content of a request that is metadata of objects. Clients that want it also accept whole
// objects, from servers that have no other.
func (r request) metadata() string {
	var out []string
	for _, header := range r.accept {
		for clause := range strings.SplitSeq(header, ",") {
			if slices.ContainsFunc(strings.Split(clause, ";"), func(part string) bool {
				as, is := strings.CutPrefix(strings.TrimSpace(part), "as=")
				return is && (as == "PartialObjectMetadata" || as == "PartialObjectMetadataList")
			}) {
				out = append(out, strings.TrimSpace(clause))
			}
		}
	}
	return strings.Join(out, ",")
}
