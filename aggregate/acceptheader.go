package aggregate

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// acceptClause is one clause of an Accept header: a media type and, if the client asks
// for a conversion (";as=…;g=…;v=…"), the kind to convert to.
type acceptClause struct {
	mediaType          string
	as, group, version string
	quality            float64
}

// parseAccept parses an Accept header and sorts the clauses best first. An empty header
// accepts anything.
func parseAccept(accept string) (found []acceptClause) {
	for clause := range strings.SplitSeq(accept, ",") {
		mediaType, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue // a malformed clause is ignored
		}
		w := acceptClause{mediaType: mediaType, as: params["as"], group: params["g"], version: params["v"], quality: 1}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			w.quality = q
		}
		if mediaType == "*/*" || mediaType == "application/*" {
			w.mediaType = runtime.ContentTypeJSON
		}
		found = append(found, w)
	}
	if strings.TrimSpace(accept) == "" {
		found = append(found, acceptClause{mediaType: runtime.ContentTypeJSON, quality: 1})
	}
	slices.SortStableFunc(found, func(a, b acceptClause) int { return cmp.Compare(b.quality, a.quality) })
	return found
}

// negotiateEncoding returns the first accepted media type that the handler can both
// read and write, or JSON.
func negotiateEncoding(accept string) string {
	for _, w := range parseAccept(accept) {
		if w.mediaType == runtime.ContentTypeJSON || w.mediaType == runtime.ContentTypeProtobuf {
			return w.mediaType
		}
	}
	return runtime.ContentTypeJSON
}

func convertedTo(mediaType, as, group, version string) string {
	return mediaType + ";g=" + group + ";v=" + version + ";as=" + as
}
