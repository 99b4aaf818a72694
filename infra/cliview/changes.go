package cliview

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
)

// Filter selects changes of a plan.
type Filter struct {
	// Actions lists the selected actions; by default all but no-op.
	Actions []string
	// Drift selects only changes made outside of Atoll.
	Drift bool
}

// actions returns the action names that users can filter by.
func actions() []string {
	return []string{string(change.Create), string(change.Update), string(change.Replace), string(change.Delete), string(change.Read), string(change.Import), string(change.Move), string(change.Forget),
		string(change.Place), string(change.Deferred), string(change.NoOp)}
}

// Check rejects unknown actions.
func (f Filter) Check() error {
	known := map[string]bool{}
	for _, a := range actions() {
		known[a] = true
	}
	for _, a := range f.Actions {
		if !known[a] {
			return fmt.Errorf("--action %s: unknown action: use one of %s", a, joined(actions()))
		}
	}
	return nil
}

func (f Filter) query() url.Values {
	q := url.Values{}
	chosen := f.Actions
	if len(chosen) == 0 && !f.Drift {
		for _, a := range actions() {
			if a != string(change.NoOp) {
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

// changeList is a page of the subresource changes.
type changeList struct {
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// pageSize is the number of changes in a page.
const pageSize = 1000

// pages visits the filtered changes of a plan page by page, in the order of their addresses, as raw JSON.
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

// page reads one page, and retries while a server is going away.
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
				return nil, fmt.Errorf("decode the changes of plan %s: %w", name, err)
			}
			return page, nil
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			return nil, fmt.Errorf("read the changes of plan %s: it was computed again meanwhile: %w: run the command again", name, err)
		case tries < 5 && transient(err) && ctx.Err() == nil:
			select {
			case <-ctx.Done():
			case <-s.Clock.After(s.PollInterval):
			}
		default:
			return nil, s.explain(ctx, "read the changes of plan "+name, planKind(), name, err)
		}
	}
}

// changes visits the filtered changes one by one.
func (s *Session) changes(ctx context.Context, name string, filter Filter, visit func(*change.Change) error) error {
	return s.pages(ctx, name, filter, func(page []json.RawMessage) error {
		for _, text := range page {
			c := &change.Change{}
			if err := json.Unmarshal(text, c); err != nil {
				return fmt.Errorf("decode a change of plan %s: %w: the server may have another version than this command", name, err)
			}
			if err := visit(c); err != nil {
				return err
			}
		}
		return nil
	})
}
