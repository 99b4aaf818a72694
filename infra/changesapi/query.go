package changesapi

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/infra/change"
)

const (
	// defaultLimit is the default number of changes per page. maxLimit is the maximum; use several
	// pages or a stream for more.
	defaultLimit = 500
	maxLimit     = 5000
)

// query is a parsed request.
type query struct {
	filter filter
	stream bool
	limit  int
	token  string
}

// parse parses the query parameters. It rejects unknown ones: a misspelt filter would otherwise
// show everything.
func parse(r *http.Request) (*query, error) {
	q := &query{limit: defaultLimit, stream: accepts(r, StreamMediaType)}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badParameter("query", "cannot be parsed: escape characters other than letters and digits, such as %5B for [")
	}
	for name := range values {
		if !slices.Contains(parameters(), name) {
			return nil, badParameter(name, fmt.Sprintf("unknown parameter: use one of %s", strings.Join(parameters(), ", ")))
		}
	}
	if err := q.readFilter(values); err != nil {
		return nil, err
	}
	if values.Has("stream") {
		if q.stream, err = boolParameter(values, "stream"); err != nil {
			return nil, err
		}
	}
	if text := values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil || n < 0:
			return nil, badParameter("limit", fmt.Sprintf("%q is invalid: use a number from 1 to %d, or omit it for %d", text, maxLimit, defaultLimit))
		case n > 0 && q.stream:
			return nil, badParameter("limit", "a stream has no pages: omit either limit or stream")
		case n > 0: // 0 means no limit given, as in any list
			q.limit = min(n, maxLimit)
		}
	}
	q.token = values.Get("continue")
	return q, nil
}

// parameters returns all known parameters. The last two are those of any request.
func parameters() []string {
	return []string{"action", "continue", "drift", "kind", "limit", "name", "stream", "type", "pretty", "timeout"}
}

func (q *query) readFilter(values url.Values) (err error) {
	for _, text := range listParameter(values, "action") {
		if !slices.Contains(actions(), change.Action(text)) {
			return badParameter("action", fmt.Sprintf("%q is not an action: use one or more of %s", text, joined(actions())))
		}
		q.filter.actions = append(q.filter.actions, change.Action(text))
	}
	q.filter.types, q.filter.kinds, q.filter.names = listParameter(values, "type"), listParameter(values, "kind"), listParameter(values, "name")
	q.filter.drift, err = boolParameter(values, "drift")
	return err
}

func actions() []change.Action {
	return []change.Action{change.Create, change.Update, change.Replace, change.Delete, change.Read, change.Import, change.Move, change.Forget, change.Place, change.NoOp, change.Deferred}
}

func joined[S ~string](all []S) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = string(s)
	}
	return strings.Join(texts, ", ")
}

// listParameter returns the values of a parameter, which may be repeated or comma-separated.
func listParameter(values url.Values, name string) (out []string) {
	for _, text := range values[name] {
		for one := range strings.SplitSeq(text, ",") {
			if one = strings.TrimSpace(one); one != "" {
				out = append(out, one)
			}
		}
	}
	return out
}

func boolParameter(values url.Values, name string) (bool, error) {
	text := values.Get(name)
	if text == "" {
		return values.Has(name), nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, badParameter(name, fmt.Sprintf("%q is invalid: use true or false", text))
	}
	return value, nil
}

func accepts(r *http.Request, media string) bool {
	for _, header := range r.Header.Values("Accept") {
		for one := range strings.SplitSeq(header, ",") {
			if got, _, err := mime.ParseMediaType(one); err == nil && got == media {
				return true
			}
		}
	}
	return false
}

// badParameter returns a 400 error for a parameter.
func badParameter(parameter, text string) error {
	err := apierrors.NewBadRequest(fmt.Sprintf("%s: %s", parameter, text))
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{
		{Type: metav1.CauseTypeFieldValueInvalid, Field: parameter, Message: text},
	}}
	return err
}
