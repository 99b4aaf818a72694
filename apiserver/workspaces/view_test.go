package workspaces

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestViewPath(t *testing.T) {
	for rest, want := range map[string]viewPath{
		"/apiexports/widgets/clusters/a/apis/example.com/v1/widgets": {"widgets", "a", "/apis/example.com/v1/widgets", "/apis/example.com/v1/widgets"},
		"/apiexports/widgets/clusters/a:b/apis":                      {"widgets", "a:b", "/apis", "/apis"},
		"/apiexports/w.x/clusters/*/apis/":                           {"w.x", "*", "/apis/", "/apis/"},
	} {
		if got, ok := splitViewPath(rest, rest); !ok || got != want {
			t.Errorf("%s: %+v, %v", rest, got, ok)
		}
	}
	const rest = "/apiexports/w/clusters/*/apis/x"
	for escaped, want := range map[string]bool{rest: true, "/apiexports/w/clusters/%2A/apis/x": true, "/apiexports/w/clusters/%2a/apis/x": false,
		"/apiexports/%77/clusters/*/apis/x": false, "/apiexports/w/clusters%2F*/apis/x": false} {
		if got, ok := splitViewPath(rest, escaped); ok != want {
			t.Errorf("%s: %+v, %v", escaped, got, ok)
		}
	}
	for _, rest := range []string{"/apiexports", "/apiexports/", "/apiexports/w", "/apiexports/w/clusters/a", "/apiexports/w/clusters/a/api/v1", "/apiexports/w/clusters/a/apisx",
		"/apiexports/w/clusters//apis", "/apiexports/*/clusters/a/apis", "/apiexports/W/clusters/a/apis", "/apiexports/w/clusters/a:*/apis", "/apiexports/w/clusters/**/apis",
		"/apiexports/w/other/a/apis", "/apiexports//clusters/a/apis"} {
		if got, ok := splitViewPath(rest, rest); ok || !isView(rest) {
			t.Errorf("%s: %+v", rest, got)
		}
	}
}

// TestMerger: there is no position while a workspace sends its initial objects, and then it has everything that was sent and nothing else.
func TestMerger(t *testing.T) {
	m := newMerger(true)
	is := func(want position) {
		t.Helper()
		if at, ok := m.position(); ok != (want != nil) || !maps.Equal(at, want) {
			t.Errorf("position %v, %v, want %v", at, ok, want)
		}
	}
	bookmark := func(left, want time.Duration, due bool) {
		t.Helper()
		if after, is := m.bookmarkIn(left); after != want || is != due {
			t.Errorf("bookmark in %v, %v; want %v, %v", after, is, want, due)
		}
	}
	const long = time.Hour
	bookmark(long, 0, true) // no workspace: the initial objects are complete
	m.begin("a", 0)
	m.begin("b", 0)
	m.begin("gone", 0)
	is(nil)
	bookmark(long, 0, false)
	m.sent("a", 7)
	m.reached("a", 9)
	m.absent("gone")
	is(nil)
	m.reached("b", 4)
	is(position{"a": 9, "b": 4})
	bookmark(long, 0, true)
	m.bookmarked()
	bookmark(long, 0, false)
	m.sent("b", 5)
	is(position{"a": 9, "b": 5})
	bookmark(long, bookmarkAfterEvent, true)
	bookmark(mergedBookmarkLead, 0, true)
	m.bookmarked()
	m.reached("a", 12)
	m.reached("a", 11) // reported late
	is(position{"a": 12, "b": 5})
	bookmark(long, bookmarkAfterProgress, true)
	bookmark(mergedBookmarkLead/2, 0, true)
	m.bookmarked()
	m.begin("late", 0) // a consumer that comes while the watch runs
	m.sent("late", 3)
	is(nil)
	bookmark(long, 0, false)
	m.reached("late", 8)
	is(position{"a": 12, "b": 5, "late": 8})
	m.begin("again", 21)
	m.sent("again", 22)
	is(position{"a": 12, "b": 5, "late": 8, "again": 22})
	m.absent("late")
	is(position{"a": 12, "b": 5, "again": 22})
}

// TestPositions: numbers increase, also if the clock does not. Each belongs to one list or watch. The oldest are forgotten.
func TestPositions(t *testing.T) {
	p := &positions{limit: 8}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	first := p.remember("x", position{"a": 1}, now)
	second := p.remember("x", position{"a": 2, "b": 1}, now.Add(-time.Hour))
	if second <= first || first < firstPosition || (&positions{}).remember("x", nil, time.Time{}) < firstPosition {
		t.Errorf("%d, then %d", first, second)
	}
	if at, ok := p.recall("x", second); !ok || !maps.Equal(at, position{"a": 2, "b": 1}) {
		t.Errorf("%v, %v", at, ok)
	}
	if at, ok := p.recall("y", second); ok {
		t.Errorf("another watch has it: %v", at)
	}
	for i := range 20 {
		last := p.remember("x", position{"a": int64(i)}, now)
		if _, ok := p.recall("x", last); !ok || p.size > p.limit || len(p.kept) != len(p.order) {
			t.Fatalf("after %d: %v, %d entries, %v", i, ok, p.size, p.order)
		}
	}
	for _, old := range []uint64{first, second} {
		if _, ok := p.recall("x", old); ok {
			t.Errorf("%d is remembered", old)
		}
	}
	for _, number := range append([]uint64{1}, p.order...) {
		p.forget(number)
	}
	if p.size != 0 || len(p.kept) != 0 || len(p.order) != 0 {
		t.Errorf("after all are forgotten: %+v", p)
	}
	if large := p.remember("x", position{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1}, now); len(p.order) != 1 || p.order[0] != large {
		t.Error("a position that is larger than the limit is not remembered")
	}
}

func TestContinuation(t *testing.T) {
	want := continuation{1 << 60, "uid", "inner"}
	if got, err := parseContinuation(want.String()); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, token := range []string{"%", "e30x", "AAAA"} {
		if got, err := parseContinuation(token); err == nil {
			t.Errorf("%s: %+v", token, got)
		}
	}
}

// TestViewAuthorizer: the request of a view needs a verb of the export. What else is asked is not changed, such as the right to impersonate.
func TestViewAuthorizer(t *testing.T) {
	var asked string
	inner := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		asked = fmt.Sprintf("%s %s.%s %s", a.GetVerb(), a.GetResource(), a.GetAPIGroup(), a.GetName())
		return authorizer.DecisionNoOpinion, "", nil
	})
	ofView := context.WithValue(t.Context(), viewKey{}, &view{viewPath: viewPath{export: "databases"}})
	for _, c := range []struct {
		ctx  context.Context
		verb string
		want string
	}{
		{ofView, "get", "view apiexports.tenancy.atoll.dev databases"},
		{ofView, "watch", "view apiexports.tenancy.atoll.dev databases"},
		{ofView, "patch", "manage apiexports.tenancy.atoll.dev databases"},
		{ofView, "deletecollection", "manage apiexports.tenancy.atoll.dev databases"},
		{ofView, "impersonate", "impersonate widgets.example.com w"},
		{ofView, "impersonate-on:user-info:get", "impersonate-on:user-info:get widgets.example.com w"},
		{t.Context(), "get", "get widgets.example.com w"},
	} {
		of := authorizer.AttributesRecord{User: &user.DefaultInfo{}, Verb: c.verb, APIGroup: "example.com", Resource: "widgets", Name: "w", ResourceRequest: true}
		if _, _, err := (viewAuthorizer{inner}).Authorize(c.ctx, of); err != nil || asked != c.want {
			t.Errorf("%s: asked %q, want %q (%v)", c.verb, asked, c.want, err)
		}
	}
}
