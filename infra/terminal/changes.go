package terminal

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
)

// Filter is which changes of a plan are meant.
type Filter struct {
	// Actions are those to be done; all but no-op if none is given.
	Actions []string
	// Drift is of those alone that were changed outside.
	Drift bool
}

// actions are the names that people can filter by.
func actions() []string {
	return []string{string(plan.Create), string(plan.Update), string(plan.Replace), string(plan.Delete), string(plan.Read), string(plan.Import), string(plan.Forget),
		string(plan.Place), string(plan.Deferred), string(plan.NoOp)}
}

// Check refuses actions that there are not.
func (f Filter) Check() error {
	known := map[string]bool{}
	for _, a := range actions() {
		known[a] = true
	}
	for _, a := range f.Actions {
		if !known[a] {
			return fmt.Errorf("--action %s: there is no such action: name one of %s", a, joined(actions()))
		}
	}
	return nil
}

func (f Filter) query() url.Values {
	q := url.Values{}
	chosen := f.Actions
	if len(chosen) == 0 && !f.Drift {
		for _, a := range actions() {
			if a != string(plan.NoOp) {
				chosen = append(chosen, a)
			}
		}
	}
	q["action"] = chosen
	if f.Drift {
		q.Set("drift", "true")
	}
	return q
}

// changeList is a page of changes, as the subresource answers.
type changeList struct {
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// pageSize is how many changes are asked for at a time.
const pageSize = 1000

// pages gives the changes of a plan that pass the filter, page by page, in the order of their addresses, as they came.
func (s *Session) pages(ctx context.Context, name string, filter Filter, visit func([]json.RawMessage) error) error {
	q := filter.query()
	q.Set("limit", strconv.Itoa(pageSize))
	for {
		page, err := s.page(ctx, name, q)
		if err != nil {
			return err
		}
		if err := visit(page.Items); err != nil {
			return err
		}
		if page.Metadata.Continue == "" {
			return nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// page asks for one page, and once more if a server is just going away.
func (s *Session) page(ctx context.Context, name string, q url.Values) (*changeList, error) {
	at := []string{"/apis", v1alpha1.Group, v1alpha1.Version, "namespaces", s.Namespace, v1alpha1.PlanResource.Resource, name, "changes"}
	for tries := 0; ; tries++ {
		request := s.Discovery.RESTClient().Get().AbsPath(at...).SetHeader("Accept", "application/json")
		for key, values := range q {
			for _, value := range values {
				request.Param(key, value)
			}
		}
		text, err := request.Do(ctx).Raw()
		switch {
		case err == nil:
			page := &changeList{}
			if err := json.Unmarshal(text, page); err != nil {
				return nil, fmt.Errorf("read the changes of plan %s: %w", name, err)
			}
			return page, nil
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			return nil, fmt.Errorf("read the changes of plan %s: it was planned again meanwhile: %w: look at it from the beginning", name, err)
		case tries < 5 && transient(err) && ctx.Err() == nil:
			select {
			case <-ctx.Done():
			case <-s.Clock.After(s.Every):
			}
		default:
			return nil, s.explained(ctx, "read the changes of plan "+name, aPlan(), name, err)
		}
	}
}

// changes gives them one by one.
func (s *Session) changes(ctx context.Context, name string, filter Filter, visit func(*plan.Change) error) error {
	return s.pages(ctx, name, filter, func(page []json.RawMessage) error {
		for _, text := range page {
			c := &plan.Change{}
			if err := json.Unmarshal(text, c); err != nil {
				return fmt.Errorf("read a change of plan %s: %w: the server may be of another version than this command", name, err)
			}
			if err := visit(c); err != nil {
				return err
			}
		}
		return nil
	})
}
