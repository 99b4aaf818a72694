package workspaces

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// everyConsumer is the target of a view over all consumers of an export.
const everyConsumer = "*"

// viewPath is what the path of a request to a view names: /clusters/EXPORTER/apiexports/EXPORT/clusters/TARGET/apis/...
type viewPath struct {
	export string
	// target is the path of a consumer, or everyConsumer.
	target string
	// path and rawPath are those of the request within the view; they begin with /apis.
	path, rawPath string
}

// isView reports whether the rest of a path, below that of a workspace, is one of views.
func isView(rest string) bool {
	return rest == "/apiexports" || strings.HasPrefix(rest, "/apiexports/")
}

// splitViewPath splits the rest of a path, and the same as it was escaped in the request. It accepts one spelling of each path, and two of
// the asterisk: clients in Go escape it.
func splitViewPath(rest, escaped string) (v viewPath, ok bool) {
	below, found := strings.CutPrefix(rest, "/apiexports/")
	if !found {
		return v, false
	}
	v.export, below, _ = strings.Cut(below, "/")
	if len(validation.IsDNS1123Subdomain(v.export)) > 0 {
		return v, false
	}
	begin := "/apiexports/" + v.export + "/clusters/"
	if below, found = strings.CutPrefix(below, "clusters/"); !found {
		return v, false
	}
	v.target, v.path, _ = strings.Cut(below, "/")
	v.path = "/" + v.path
	if v.path != "/apis" && !strings.HasPrefix(v.path, "/apis/") {
		return v, false
	}
	spellings := []string{v.target}
	if v.target == everyConsumer {
		spellings = append(spellings, "%2A")
	} else if !IsPath(v.target) {
		return v, false
	}
	for _, spelling := range spellings {
		if raw, is := strings.CutPrefix(escaped, begin+spelling+"/"); is {
			v.rawPath = "/" + raw
			return v, true
		}
	}
	return v, false
}
