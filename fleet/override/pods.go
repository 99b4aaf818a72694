package override

import (
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// podSpecs returns the pod specs of an object: every object with a list "containers", at or below
// "template" and "spec". That covers all built-in kinds, and those that embed a pod template.
func podSpecs(obj map[string]any) []map[string]any {
	var out []map[string]any
	var walk func(m map[string]any, depth int)
	walk = func(m map[string]any, depth int) {
		if depth > 6 {
			return
		}
		if _, ok := m["containers"].([]any); ok {
			out = append(out, m)
			return
		}
		for _, name := range []string{"spec", "template", "jobTemplate"} {
			if child, ok := m[name].(map[string]any); ok {
				walk(child, depth+1)
			}
		}
	}
	walk(obj, 0)
	return out
}

func containers(pod map[string]any) []map[string]any {
	var out []map[string]any
	for _, field := range []string{"initContainers", "containers"} {
		list, _ := pod[field].([]any)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				out = append(out, m)
			}
		}
	}
	return out
}

func replaceImages(pod map[string]any, images []v1alpha1.ImageOverride) {
	for _, c := range containers(pod) {
		for i := range images {
			if name, ok := c["image"].(string); ok && name != "" {
				c["image"] = replaceImage(name, &images[i])
			}
		}
	}
}

// image is registry/repository with :tag or @digest.
type image struct{ registry, repository, suffix string }

const dockerHub = "docker.io"

// parse splits an image name as container runtimes do: the part before the first slash is a
// registry if it looks like a host.
func parse(name string) image {
	var out image
	rest := name
	if i := strings.IndexByte(rest, '@'); i >= 0 {
		rest, out.suffix = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		rest, out.suffix = rest[:i], rest[i:]+out.suffix
	}
	host, path, found := strings.Cut(rest, "/")
	if found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		out.registry, out.repository = host, path
		return out
	}
	out.registry, out.repository = dockerHub, rest
	if !found {
		out.repository = "library/" + rest
	}
	return out
}

func replaceImage(name string, o *v1alpha1.ImageOverride) string {
	is := parse(name)
	if o.Image != "" && !is.matches(o.Image) {
		return name
	}
	if o.Registry != "" {
		is.registry = strings.TrimSuffix(o.Registry, "/")
	}
	if o.Repository != "" {
		is.repository = o.Repository
	}
	if o.Tag != "" {
		is.suffix = ":" + o.Tag
	}
	return is.registry + "/" + is.repository + is.suffix
}

// matches reports whether an image has the given registry, repository, or both.
func (i image) matches(which string) bool {
	which = strings.TrimSuffix(which, "/")
	return which == i.registry || which == i.repository || which == i.registry+"/"+i.repository ||
		i.registry == dockerHub && "library/"+which == i.repository
}

func setVariables(pod map[string]any, env []v1alpha1.EnvOverride) {
	for _, c := range containers(pod) {
		name, _ := c["name"].(string)
		for _, e := range env {
			if len(e.Containers) > 0 && !slices.Contains(e.Containers, name) {
				continue
			}
			list, _ := c["env"].([]any)
			is := map[string]any{"name": e.Name, "value": e.Value}
			i := slices.IndexFunc(list, func(v any) bool {
				m, ok := v.(map[string]any)
				return ok && m["name"] == e.Name
			})
			if i >= 0 {
				list[i] = is
			} else {
				list = append(list, is)
			}
			c["env"] = list
		}
	}
}
