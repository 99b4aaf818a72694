package changesapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/changesapi"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// testAPI is a handler over an API server in memory.
type testAPI struct {
	*changesapi.Handler
	api *fakeapi.Server
}

func newTestAPI(tb testing.TB) *testAPI {
	tb.Helper()
	api := fakeapi.New(tb, fakeapi.Custom("Plan", v1alpha1.PlanResource), fakeapi.Custom("PlanChanges", v1alpha1.PlanChangesResource))
	return &testAPI{changesapi.New(api.Dynamic()), api}
}

// put stores a plan with these changes and returns it.
func (s *testAPI) put(tb testing.TB, name string, all []*change.Change) *v1alpha1.Plan {
	tb.Helper()
	p := &v1alpha1.Plan{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID("uid-of-" + name)},
		Status:     v1alpha1.PlanStatus{Phase: v1alpha1.PlanPlanned},
	}
	chunks := planstore.NewChunkWriter(func(chunk int, pieces [][]byte) error {
		for i, content := range pieces {
			s.api.Put(&v1alpha1.PlanChanges{
				TypeMeta:   metav1.TypeMeta{APIVersion: "infra.atoll.dev/v1alpha1", Kind: "PlanChanges"},
				ObjectMeta: metav1.ObjectMeta{Name: planstore.PieceName(name, chunk, i), Namespace: "shop"},
				Spec:       v1alpha1.PlanPieceSpec{Plan: name, Chunk: int32(chunk), Piece: int32(i), Content: content},
			})
		}
		return nil
	})
	for _, c := range all {
		if err := chunks.Add(c); err != nil {
			tb.Fatal(err)
		}
	}
	contents, err := chunks.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	planstore.SetContents(&p.Status, contents)
	s.store(p)
	return p
}

func (s *testAPI) store(p *v1alpha1.Plan) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "infra.atoll.dev/v1alpha1", Kind: "Plan"}
	s.api.Put(p)
}

// ask sends a request for the changes of a plan, with headers in pairs.
func (s *testAPI) ask(tb testing.TB, name string, query url.Values, headers ...string) *http.Response {
	tb.Helper()
	r := httptest.NewRequest(http.MethodGet, "/?"+query.Encode(), nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.Serve(w, r, "shop", name)
	return w.Result()
}

// list requests a page.
func (s *testAPI) list(tb testing.TB, name string, query url.Values) changesapi.List {
	tb.Helper()
	response := s.ask(tb, name, query)
	var list changesapi.List
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil || response.StatusCode != http.StatusOK {
		tb.Fatalf("%s: %d, %v", query.Encode(), response.StatusCode, err)
	}
	if list.Kind != "PlanChangeList" || list.APIVersion != "infra.atoll.dev/v1alpha1" || list.Items == nil {
		tb.Fatalf("not a list: %+v", list)
	}
	return list
}

// lines requests a stream.
func (s *testAPI) lines(tb testing.TB, name string, query url.Values) []*change.Change {
	tb.Helper()
	response := s.ask(tb, name, query, "Accept", "application/x-ndjson, application/json")
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != changesapi.StreamMediaType {
		tb.Fatalf("%s: %d, %s", query.Encode(), response.StatusCode, response.Header)
	}
	var out []*change.Change
	in := bufio.NewScanner(response.Body)
	in.Buffer(nil, 8<<20)
	for in.Scan() {
		c := &change.Change{}
		if err := json.Unmarshal(in.Bytes(), c); err != nil {
			tb.Fatalf("%q: %v", in.Text(), err)
		}
		out = append(out, c)
	}
	return out
}

// generated returns random changes, sorted.
func generated(random *rand.Rand, n int) []*change.Change {
	actions := []change.Action{change.NoOp, change.Create, change.Update, change.Replace, change.Delete, change.Read, change.Import, change.Forget}
	kinds := []string{"demo_file", "demo_secret_box", "other_disk"}
	out := make([]*change.Change, n)
	for i := range out {
		c := &change.Change{
			Address: change.Address{Type: kinds[random.IntN(len(kinds))], Name: fmt.Sprintf("n%06d", i), Data: random.IntN(20) == 0},
			Action:  actions[random.IntN(len(actions))],
			After:   &change.Value{JSON: json.RawMessage(`{"a":"` + strings.Repeat("x<", random.IntN(300)) + `"}`)},
		}
		if random.IntN(10) == 0 {
			c.Drift = &change.Difference{After: &change.Value{JSON: json.RawMessage(`{}`)}}
		}
		if random.IntN(30) == 0 {
			c.Action, c.Deferred = change.NoOp, "it waits"
		}
		out[i] = c
	}
	slices.SortFunc(out, func(a, b *change.Change) int { return a.Address.Compare(b.Address) })
	return out
}

// fits evaluates the filters of a query for one change.
func fits(c *change.Change, q url.Values) bool {
	filed := string(c.Action)
	if c.Deferred != "" {
		filed = "deferred"
	}
	kind := map[string]string{"demo_file": "File", "demo_secret_box": "SecretBox", "other_disk": "Disk"}[c.Address.Type]
	if c.Address.Data {
		kind = "Data" + kind
	}
	return (!q.Has("action") || slices.Contains(q["action"], filed)) &&
		(!q.Has("type") || slices.Contains(q["type"], c.Address.Type)) &&
		(!q.Has("name") || slices.Contains(q["name"], c.Address.Name)) &&
		(!q.Has("kind") || slices.Contains(q["kind"], kind)) &&
		(!q.Has("drift") || c.Drift != nil)
}

func addresses(all []*change.Change) []string {
	out := []string{}
	for _, c := range all {
		out = append(out, c.Address.String())
	}
	return out
}

// TestPagesAndStreams checks that pages of any size, one after another, equal the stream and all
// matching changes in order. Each page has the right number of remaining changes.
func TestPagesAndStreams(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all := generated(random, 5000)
	s := newTestAPI(t)
	p := s.put(t, "big", all)
	if len(p.Status.Chunks) < 3 {
		t.Fatalf("%d chunks are too few for this", len(p.Status.Chunks))
	}
	pick := func(q url.Values, name string, from ...string) {
		for range random.IntN(3) {
			q.Add(name, from[random.IntN(len(from))])
		}
	}
	for range 8 {
		q := url.Values{}
		pick(q, "action", "create", "delete", "deferred", "no-op", "replace")
		if random.IntN(2) == 0 {
			pick(q, "type", "demo_file", "other_disk", "unknown")
			pick(q, "kind", "File", "DataFile", "SecretBox")
			if random.IntN(2) == 0 {
				q.Set("drift", "true")
			}
			if random.IntN(4) == 0 {
				pick(q, "name", all[0].Address.Name, all[len(all)-1].Address.Name)
			}
		}
		var want []*change.Change
		for _, c := range all {
			if fits(c, q) {
				want = append(want, c)
			}
		}
		if got := s.lines(t, "big", q); !reflect.DeepEqual(addresses(got), addresses(want)) {
			t.Fatalf("%s: %d streamed, want %d", q.Encode(), len(got), len(want))
		}
		limit := 1 + random.IntN(3000)
		if len(want) > 15*limit {
			limit = 500 // to limit the number of pages
		}
		var got []*change.Change
		for left := (*int64)(nil); ; {
			q.Set("limit", strconv.Itoa(limit))
			list := s.list(t, "big", q)
			got = append(got, list.Items...)
			if left != nil && *left != int64(len(want)-len(got)+len(list.Items)) {
				t.Errorf("%s: remainingItemCount is %d, want %d", q.Encode(), *left, len(want)-len(got)+len(list.Items))
			}
			if left = list.RemainingItemCount; left == nil && list.Continue != "" && !q.Has("type") && !q.Has("kind") && !q.Has("name") && !q.Has("drift") {
				t.Errorf("%s: no remainingItemCount", q.Encode())
			}
			if list.Continue == "" {
				break
			}
			if len(list.Items) != limit {
				t.Errorf("a page of %d has %d", limit, len(list.Items))
			}
			q.Set("continue", list.Continue)
		}
		if !reflect.DeepEqual(addresses(got), addresses(want)) {
			t.Fatalf("%s: %d on pages, want %d", q.Encode(), len(got), len(want))
		}
	}
	// Compare whole changes, not only their addresses.
	if !reflect.DeepEqual(encoded(t, s.lines(t, "big", nil)), encoded(t, all)) {
		t.Error("the streamed changes differ from the plan")
	}
}

func encoded(t *testing.T, all []*change.Change) (out []string) {
	t.Helper()
	for _, c := range all {
		text, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	return out
}

// TestPagesAreBounded checks the default limit, and that pages of large changes have fewer.
func TestPagesAreBounded(t *testing.T) {
	s := newTestAPI(t)
	random := rand.New(rand.NewPCG(3, 4))
	s.put(t, "many", generated(random, 600))
	if n := len(s.list(t, "many", nil).Items); n != 500 {
		t.Errorf("a page has %d", n)
	}
	if n := len(s.list(t, "many", url.Values{"limit": {"100000"}}).Items); n != 600 {
		t.Errorf("a page of many has %d", n)
	}
	var large []*change.Change
	for i := range 12 {
		text := make([]byte, 1<<20)
		for j := range text {
			text[j] = byte('a' + random.IntN(26))
		}
		large = append(large, &change.Change{
			Address: change.Address{Type: "demo_file", Name: fmt.Sprintf("n%02d", i)}, Action: change.Create,
			After: &change.Value{JSON: json.RawMessage(`"` + string(text) + `"`)},
		})
	}
	p := s.put(t, "large", large)
	if p.Status.Chunks[0].Pieces < 2 {
		t.Fatal("the chunk has only one piece")
	}
	list := s.list(t, "large", nil)
	if len(list.Items) != 8 || list.RemainingItemCount == nil || *list.RemainingItemCount != 4 {
		t.Errorf("a page has %d, %v left", len(list.Items), list.RemainingItemCount)
	}
	if rest := s.list(t, "large", url.Values{"continue": {list.Continue}}); len(rest.Items) != 4 || rest.Continue != "" {
		t.Errorf("the next page has %d, and continues at %q", len(rest.Items), rest.Continue)
	}
	if got := s.lines(t, "large", nil); !reflect.DeepEqual(got, large) {
		t.Error("the streamed changes differ from the plan")
	}
}

// TestNothingToDo checks that an empty plan has an empty page.
func TestNothingToDo(t *testing.T) {
	s := newTestAPI(t)
	s.put(t, "empty", nil)
	if list := s.list(t, "empty", nil); len(list.Items) != 0 || list.Continue != "" {
		t.Errorf("got %+v", list)
	}
	if got := s.lines(t, "empty", nil); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestRefused checks that errors name the parameter and the remedy.
func TestRefused(t *testing.T) {
	s := newTestAPI(t)
	all := generated(rand.New(rand.NewPCG(5, 6)), 10)
	s.put(t, "good", all)
	s.put(t, "twin", all)
	token := s.list(t, "good", url.Values{"limit": {"3"}}).Continue
	s.store(&v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: "shop"}})
	s.store(&v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "failed", Namespace: "shop"}, Status: v1alpha1.PlanStatus{Phase: v1alpha1.PlanFailed}})
	other := base64.RawURLEncoding.EncodeToString([]byte(`{"plan":"uid-of-good","digest":"sha256:other","after":{"type":"t","name":"n"}}`))
	for _, tt := range []struct {
		plan, query string
		code        int
		reason      metav1.StatusReason
		field, says string
	}{
		{"good", "limit=-1", 400, metav1.StatusReasonBadRequest, "limit", "use a number from 1 to 5000"},
		{"good", "limit=ten", 400, metav1.StatusReasonBadRequest, "limit", "use a number from 1 to 5000"},
		{"good", "limit=3&stream=true", 400, metav1.StatusReasonBadRequest, "limit", "a stream has no pages"},
		{"good", "action=destroy", 400, metav1.StatusReasonBadRequest, "action", `"destroy" is not an action: use one or more of create, update`},
		{"good", "action=create,destroy", 400, metav1.StatusReasonBadRequest, "action", `"destroy" is not an action`},
		{"good", "actoin=delete", 400, metav1.StatusReasonBadRequest, "actoin", "unknown parameter: use one of action,"},
		{"good", "drift=maybe", 400, metav1.StatusReasonBadRequest, "drift", "use true or false"},
		{"good", "stream=maybe", 400, metav1.StatusReasonBadRequest, "stream", "use true or false"},
		{"good", "a=%zz", 400, metav1.StatusReasonBadRequest, "query", "escape"},
		{"good", "continue=nonsense", 400, metav1.StatusReasonBadRequest, "continue", "use metadata.continue of the previous page"},
		{"good", "continue=%7B%7D", 400, metav1.StatusReasonBadRequest, "continue", "use metadata.continue of the previous page"},
		{"good", "continue=" + other, 410, metav1.StatusReasonExpired, "", "omit it to start over"},
		{"twin", "continue=" + token, 410, metav1.StatusReasonExpired, "", "omit it to start over"},
		{"none", "", 404, metav1.StatusReasonNotFound, "", `plans.infra.atoll.dev "none" not found`},
		{"waiting", "", 409, metav1.StatusReasonConflict, "", "the plan is Pending: wait until its status.phase is Planned"},
		{"failed", "stream=true", 409, metav1.StatusReasonConflict, "", "the plan is Failed: see its status.problems"},
	} {
		t.Run(tt.plan+"?"+tt.query, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.URL.RawQuery = tt.query
			w := httptest.NewRecorder()
			s.Serve(w, r, "shop", tt.plan)
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
				t.Fatal(err)
			}
			if w.Code != tt.code || status.Kind != "Status" || int(status.Code) != tt.code || status.Reason != tt.reason || !strings.Contains(status.Message, tt.says) {
				t.Errorf("%d %+v", w.Code, status)
			}
			if tt.field != "" && (len(status.Details.Causes) != 1 || status.Details.Causes[0].Field != tt.field || !strings.HasPrefix(status.Message, tt.field+": ")) {
				t.Errorf("the field is not %s: %+v", tt.field, status)
			}
		})
	}
}

// TestTampered checks that changes that do not match the approved digest are never shown.
func TestTampered(t *testing.T) {
	s := newTestAPI(t)
	all := generated(rand.New(rand.NewPCG(7, 8)), 1500)
	p := s.put(t, "mine", all)
	if len(p.Status.Chunks) != 2 {
		t.Fatalf("there are %d chunks, not 2", len(p.Status.Chunks))
	}

	// Replace the second chunk by another one that is valid in itself.
	theirs := slices.Clone(all)
	for i, c := range theirs {
		harmless := *c
		harmless.Action, harmless.Deferred = change.NoOp, ""
		theirs[i] = &harmless
	}
	other := newTestAPI(t)
	other.put(t, "mine", theirs)
	s.api.Put(other.api.Get(v1alpha1.PlanChangesResource, "shop", planstore.PieceName("mine", 1, 0)))
	response := s.ask(t, "mine", url.Values{"limit": {"5000"}})
	body := new(bytes.Buffer)
	_, _ = body.ReadFrom(response.Body)
	if response.StatusCode != 500 || !strings.Contains(body.String(), "do not approve it") {
		t.Errorf("a page: %d %s", response.StatusCode, body)
	}
	// A stream has started by then, so that its last line has the error.
	body.Reset()
	_, _ = body.ReadFrom(s.ask(t, "mine", url.Values{"stream": {""}}).Body)
	lines := strings.Split(strings.TrimSpace(body.String()), "\n")
	var status metav1.Status
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &status); err != nil || status.Kind != "Status" || !strings.Contains(status.Message, "do not approve it") {
		t.Errorf("the last line is %s", lines[len(lines)-1])
	}
	if n := int(p.Status.Chunks[0].Changes); len(lines) != n+1 {
		t.Errorf("%d lines, want %d", len(lines), n+1)
	}

	// Chunk digests in the status must match the digest, too.
	p.Status.Chunks[1].Digest = p.Status.Chunks[0].Digest
	s.store(p)
	if response := s.ask(t, "mine", nil); response.StatusCode != 500 {
		t.Errorf("with another digest: %d", response.StatusCode)
	}
}

// TestDeletedMeanwhile checks that changes deleted during a read give 410 Gone, not 404.
func TestDeletedMeanwhile(t *testing.T) {
	s := newTestAPI(t)
	s.put(t, "short", generated(rand.New(rand.NewPCG(9, 10)), 10))
	s.api.Delete(v1alpha1.PlanChangesResource, "shop", planstore.PieceName("short", 0, 0))
	if response := s.ask(t, "short", nil); response.StatusCode != http.StatusGone {
		t.Errorf("got %d", response.StatusCode)
	}
}

// TestClientGone checks that reading stops when the client is gone.
func TestClientGone(t *testing.T) {
	s := newTestAPI(t)
	p := s.put(t, "big", generated(rand.New(rand.NewPCG(11, 12)), 9000))
	ctx, cancel := context.WithCancel(t.Context())
	var read atomic.Int32
	s.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource == v1alpha1.PlanChangesResource {
			read.Add(1)
			cancel() // while the first chunk is read
		}
		return nil
	})
	r := httptest.NewRequest(http.MethodGet, "/?stream=true", nil).WithContext(ctx)
	s.Serve(httptest.NewRecorder(), r, "shop", "big")
	if n := read.Load(); n != 1 || len(p.Status.Chunks) < 2 {
		t.Errorf("%d of %d chunks were read", n, len(p.Status.Chunks))
	}
}

func TestStreams(t *testing.T) {
	for query, want := range map[string]bool{"": false, "stream": true, "stream=true": true, "stream=false": false, "stream=maybe": false} {
		if got := changesapi.IsStream(httptest.NewRequest(http.MethodGet, "/?"+query, nil)); got != want {
			t.Errorf("%q: %v", query, got)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "application/json;q=0.5, application/x-ndjson;q=1")
	if !changesapi.IsStream(r) {
		t.Error("the Accept header is ignored")
	}
}

// BenchmarkStream streams a plan of 100,000 changes.
func BenchmarkStream(b *testing.B) {
	s := newTestAPI(b)
	s.put(b, "big", generated(rand.New(rand.NewPCG(13, 14)), 100_000))
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodGet, "/?stream=true", nil)
		w := &discarded{header: http.Header{}}
		s.Serve(w, r, "shop", "big")
		b.SetBytes(int64(w.n))
	}
}

// discarded is a response that is thrown away.
type discarded struct {
	header http.Header
	n      int
}

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) WriteHeader(int)             {}
func (d *discarded) Write(p []byte) (int, error) { d.n += len(p); return len(p), nil }
func (d *discarded) Flush()                      {}
