package aggregate

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// A wish is one clause of an Accept header: a media type and, when the client
// wants the answer converted (";as=…;g=…;v=…"), into what.
type wish struct {
	mediaType          string
	as, group, version string
	quality            float64
}

// wishes reads an Accept header, best first. None at all means anything.
func wishes(accept string) (found []wish) {
	for clause := range strings.SplitSeq(accept, ",") {
		mediaType, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue // a clause that nobody understands asks for nothing
		}
		w := wish{mediaType: mediaType, as: params["as"], group: params["g"], version: params["v"], quality: 1}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			w.quality = q
		}
		if mediaType == "*/*" || mediaType == "application/*" {
			w.mediaType = runtime.ContentTypeJSON
		}
		found = append(found, w)
	}
	if strings.TrimSpace(accept) == "" {
		found = append(found, wish{mediaType: runtime.ContentTypeJSON, quality: 1})
	}
	slices.SortStableFunc(found, func(a, b wish) int { return cmp.Compare(b.quality, a.quality) })
	return found
}

// encoding gives the first media type wished for that we can both read and
// write, or JSON.
func encoding(accept string) string {
	for _, w := range wishes(accept) {
		if w.mediaType == runtime.ContentTypeJSON || w.mediaType == runtime.ContentTypeProtobuf {
			return w.mediaType
		}
	}
	return runtime.ContentTypeJSON
}

func convertedTo(mediaType, as, group, version string) string {
	return mediaType + ";g=" + group + ";v=" + version + ";as=" + as
}
