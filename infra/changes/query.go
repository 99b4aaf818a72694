package changes

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

	"github.com/atoll-dev/atoll/infra/plan"
)

const (
	// defaultLimit is how many changes a page has, unless something else is asked for, and maxLimit
	// how many at most: more are asked for page by page, or as a stream.
	defaultLimit = 500
	maxLimit     = 5000
)

// query is what is asked for.
type query struct {
	filter filter
	stream bool
	limit  int
	token  string
}

// parse reads the parameters. One that is not known is refused: a filter that is misspelt would
// otherwise show everything.
func parse(r *http.Request) (*query, error) {
	q := &query{limit: defaultLimit, stream: accepts(r, Lines)}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse("query", "cannot be read: escape what is not a letter or a digit, such as %5B for [")
	}
	for name := range values {
		if !slices.Contains(parameters(), name) {
			return nil, refuse(name, fmt.Sprintf("is not a parameter of changes: those are %s", strings.Join(parameters(), ", ")))
		}
	}
	if err := q.readFilter(values); err != nil {
		return nil, err
	}
	if values.Has("stream") {
		if q.stream, err = yes(values, "stream"); err != nil {
			return nil, err
		}
	}
	if text := values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil || n < 0:
			return nil, refuse("limit", fmt.Sprintf("%q is not how many there can be on a page: give a number from 1 to %d, or leave it out for %d", text, maxLimit, defaultLimit))
		case n > 0 && q.stream:
			return nil, refuse("limit", "a stream has no pages: leave out limit, or the stream")
		case n > 0: // 0 is none in particular, as in any list
			q.limit = min(n, maxLimit)
		}
	}
	q.token = values.Get("continue")
	return q, nil
}

// parameters are all that there are. The last two are of any request.
func parameters() []string {
	return []string{"action", "continue", "drift", "kind", "limit", "name", "stream", "type", "pretty", "timeout"}
}

func (q *query) readFilter(values url.Values) (err error) {
	for _, text := range listed(values, "action") {
		if !slices.Contains(actions(), plan.Action(text)) {
			return refuse("action", fmt.Sprintf("%q is not one: give one of %s, or several", text, joined(actions())))
		}
		q.filter.actions = append(q.filter.actions, plan.Action(text))
	}
	q.filter.types, q.filter.kinds, q.filter.names = listed(values, "type"), listed(values, "kind"), listed(values, "name")
	q.filter.drift, err = yes(values, "drift")
	return err
}

func actions() []plan.Action {
	return []plan.Action{plan.Create, plan.Update, plan.Replace, plan.Delete, plan.Read, plan.Import, plan.Forget, plan.Place, plan.NoOp, plan.Deferred}
}

func joined[S ~string](all []S) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = string(s)
	}
	return strings.Join(texts, ", ")
}

// listed is what is given for a parameter, several times or with commas between.
func listed(values url.Values, name string) (out []string) {
	for _, text := range values[name] {
		for one := range strings.SplitSeq(text, ",") {
			if one = strings.TrimSpace(one); one != "" {
				out = append(out, one)
			}
		}
	}
	return out
}

func yes(values url.Values, name string) (bool, error) {
	text := values.Get(name)
	if text == "" {
		return values.Has(name), nil
	}
	is, err := strconv.ParseBool(text)
	if err != nil {
		return false, refuse(name, fmt.Sprintf("%q is neither true nor false: give one of them", text))
	}
	return is, nil
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

// refuse is of a parameter that is wrong, with the remedy.
func refuse(parameter, text string) error {
	err := apierrors.NewBadRequest(fmt.Sprintf("%s: %s", parameter, text))
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{
		{Type: metav1.CauseTypeFieldValueInvalid, Field: parameter, Message: text},
	}}
	return err
}
