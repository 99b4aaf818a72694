package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
)

// apiClient is a minimal client of an API server. It does not decode objects, which would
// cost the machine more than serving them.
type apiClient struct {
	title string
	http  *http.Client
	// collectionURL is the URL of the notes or Deployments of a namespace.
	collectionURL string
	// user is the user for whom a simulated member's API server forwards requests.
	user string
	// refused counts the answers 429 Too Many Requests.
	refused atomic.Int64
}

// noteData is the payload of a note, in addition to the number of its last write.
var noteData = strings.Repeat("An island in a ring, and a lagoon. ", valueSize/35)

func notesPath(group string) string { return "/apis/" + group + "/v1/namespaces/default/notes" }

// newAPIClient returns a client with the identity of a client configuration.
func newAPIClient(title string, config *rest.Config, group string) (*apiClient, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	return &apiClient{title: title, http: client, collectionURL: strings.TrimSuffix(config.Host, "/") + notesPath(group)}, nil
}

// open sends a request and returns the body of a successful response. Like client-go, it
// retries after 429 Too Many Requests.
func (f *apiClient) open(ctx context.Context, method, url string, body []byte) (io.ReadCloser, error) {
	const patience = 10
	for try := 0; ; try++ {
		answer, later, err := f.openOnce(ctx, method, url, body)
		if err == nil || later == 0 || try == patience {
			return answer, err
		}
		f.refused.Add(1)
		select {
		case <-time.After(later):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (f *apiClient) openOnce(ctx context.Context, method, url string, body []byte) (answer io.ReadCloser, later time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if f.user != "" {
		req.Header.Set("X-Remote-User", f.user)
		req.Header.Set("X-Remote-Group", "system:authenticated")
	}
	response, err := f.http.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", f.title, err)
	}
	if response.StatusCode/100 == 2 {
		return response.Body, 0, nil
	}
	defer response.Body.Close()
	message, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && response.StatusCode == http.StatusTooManyRequests {
		later = time.Duration(max(1, seconds)) * time.Second
	}
	return nil, later, fmt.Errorf("%s: %s: %s: %s", f.title, method, response.Status, message)
}

// document is the part of objects and lists that is read.
type document struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
}

func (f *apiClient) do(ctx context.Context, method, url string, body []byte) (d document, err error) {
	answer, err := f.open(ctx, method, url, body)
	if err != nil {
		return d, err
	}
	defer answer.Close()
	raw, err := io.ReadAll(answer)
	if err != nil {
		return d, fmt.Errorf("%s: %w", f.title, err)
	}
	return d, json.Unmarshal(raw, &d)
}

// list reads the whole collection as an informer does, and returns its resource version.
func (f *apiClient) list(ctx context.Context) (version string, err error) {
	query := url.Values{"resourceVersion": {"0"}, "limit": {"500"}}
	for {
		page, err := f.do(ctx, http.MethodGet, f.collectionURL+"?"+query.Encode(), nil)
		if err != nil || page.Metadata.Continue == "" {
			return page.Metadata.ResourceVersion, err
		}
		query = url.Values{"continue": {page.Metadata.Continue}, "limit": {"500"}}
	}
}

// notes are the objects of one run, by number.
type notes struct {
	name string
	mu   sync.Mutex
	// versions are the current resource versions; empty for a note that is not created yet.
	versions []string
}

func newNotes(name string, count int) *notes {
	return &notes{name: name, versions: make([]string, count)}
}

// write creates or updates a note. Its content is the number of the write.
func (n *notes) write(ctx context.Context, f *apiClient, i, number int) error {
	n.mu.Lock()
	version := n.versions[i]
	n.mu.Unlock()
	name := fmt.Sprintf("%s-%05d", n.name, i)
	body := fmt.Appendf(nil, `{"apiVersion":"%s","kind":"Note","metadata":{"name":"%s","resourceVersion":"%s"},"spec":{"write":%d,"data":"%s"}}`,
		f.apiVersion(), name, version, number, noteData)
	method, at := http.MethodPut, f.collectionURL+"/"+name
	if version == "" {
		method, at = http.MethodPost, f.collectionURL
	}
	written, err := f.do(ctx, method, at, body)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.versions[i] = written.Metadata.ResourceVersion
	return nil
}

func (f *apiClient) apiVersion() string {
	_, path, _ := strings.Cut(f.collectionURL, "/apis/")
	version, _, _ := strings.Cut(path, "/namespaces/")
	return version
}

// unmeasured is the number of writes whose events are ignored.
const unmeasured = -1

// journal holds the times at which the writes of one run were sent and acknowledged. The
// same process receives the events, so that all times come from one clock.
type journal struct {
	began time.Time
	// first is the number of its first write. Numbers are unique over all runs, because a
	// watch may start with events of an earlier run.
	first       int
	sent, acked []atomic.Int64
}

// nextWrite assigns the numbers of writes over all journals.
type writeNumbers struct{ n int }

func (next *writeNumbers) journal(count int) *journal {
	j := &journal{began: time.Now(), first: next.n, sent: make([]atomic.Int64, count), acked: make([]atomic.Int64, count)}
	next.n += count
	return j
}

func (j *journal) now() int64 { return int64(time.Since(j.began)) }

// send sends all writes at a rate per second, whether or not earlier ones have been
// answered: a slow server does not get fewer writes.
func (j *journal) send(ctx context.Context, rate float64, send func(ctx context.Context, i, number int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for i := range j.sent {
		due := time.Duration(float64(i) / rate * float64(time.Second))
		select {
		case <-time.After(due - time.Since(start)):
		case <-ctx.Done():
			if err := group.Wait(); err != nil {
				return err
			}
			return context.Cause(ctx)
		}
		group.Go(func() error {
			j.sent[i].Store(j.now())
			err := send(ctx, i, j.first+i)
			j.acked[i].Store(j.now())
			return err
		})
	}
	return group.Wait()
}

// arrivals holds the times at which the events of a journal's writes reached one watcher.
type arrivals struct {
	at []int64 // by write; 0 before its event arrived
	// resumed is the number of times that the server ended the watch early, as it does when
	// a watcher falls behind.
	resumed int
}

// watch receives the events of all writes of the journal, each of them once, starting at a
// resource version. It calls synced when the watch has started.
func (f *apiClient) watch(ctx context.Context, j *journal, version string, synced func()) (*arrivals, error) {
	came := &arrivals{at: make([]int64, len(j.sent))}
	for left := len(came.at); ; came.resumed++ {
		query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}, "timeoutSeconds": {"3600"}}
		events, err := f.open(ctx, http.MethodGet, f.collectionURL+"?"+query.Encode(), nil)
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		synced()
		version, left, err = f.read(events, j, came.at, version, left)
		events.Close()
		if err != nil {
			return nil, err
		}
		if left == 0 {
			return came, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: watch: %w; %d of %d events are missing", f.title, context.Cause(ctx), left, len(came.at))
		}
	}
}

// read records events until all have arrived or the stream ends. It returns the resource
// version to resume from and the number of missing events.
func (f *apiClient) read(events io.Reader, j *journal, came []int64, version string, left int) (string, int, error) {
	for lines := bufio.NewReaderSize(events, 16<<10); left > 0; {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return version, left, nil
		}
		now := j.now()
		if bytes.HasPrefix(line, []byte(`{"type":"ERROR"`)) {
			return version, left, fmt.Errorf("%s: watch: %s", f.title, line)
		}
		if _, rest, ok := bytes.Cut(line, []byte(`"resourceVersion":"`)); ok {
			version = string(rest[:bytes.IndexByte(rest, '"')])
		}
		number, ok := writeOf(line)
		at := number - j.first
		switch {
		case !ok || at < 0 || at >= len(came):
		case came[at] != 0:
			return version, left, fmt.Errorf("%s: write %d came twice", f.title, number)
		default:
			came[at] = now
			left--
		}
	}
	return version, left, nil
}

// writeOf returns the number of the write in an event. The same name among managed fields
// has a letter before it.
func writeOf(event []byte) (int, bool) {
	_, rest, ok := bytes.Cut(event, []byte(`"write":`))
	if !ok {
		return 0, false
	}
	end := bytes.IndexAny(rest, ",} ")
	if end < 0 {
		return 0, false
	}
	number, err := strconv.Atoi(string(rest[:end]))
	return number, err == nil
}

// delays returns the delays of events since their writes were sent, and since the writes
// were acknowledged: 0 for an event that came before.
func (j *journal) delays(all ...*arrivals) (sent, acked *samples) {
	sent, acked = &samples{}, &samples{}
	for _, came := range all {
		for i, at := range came.at {
			sent.add(time.Duration(at - j.sent[i].Load()))
			acked.add(time.Duration(max(0, at-j.acked[i].Load())))
		}
	}
	return sent, acked
}

// writes returns the latencies of the writes.
func (j *journal) writes() *samples {
	s := &samples{}
	for i := range j.sent {
		s.add(time.Duration(j.acked[i].Load() - j.sent[i].Load()))
	}
	return s
}

// watchers are clients that watch one journal's writes.
type watchers struct {
	clients []*apiClient
	came    []*arrivals
	group   *errgroup.Group
	// failed is cancelled when a watcher fails.
	failed context.Context
}

// startWatchers starts to list and watch with all clients, and returns when all watch.
func startWatchers(ctx context.Context, j *journal, clients []*apiClient) (*watchers, error) {
	w := &watchers{clients: clients, came: make([]*arrivals, len(clients))}
	w.group, w.failed = errgroup.WithContext(ctx)
	var synced sync.WaitGroup
	atOnce := make(chan struct{}, 16)
	for i, f := range clients {
		synced.Add(1)
		done := sync.OnceFunc(func() { synced.Done() })
		w.group.Go(func() (err error) {
			defer done()
			atOnce <- struct{}{}
			version, err := f.list(w.failed)
			<-atOnce
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			w.came[i], err = f.watch(w.failed, j, version, done)
			return err
		})
	}
	synced.Wait()
	if w.failed.Err() != nil {
		return nil, w.group.Wait()
	}
	return w, nil
}

// during sends the writes while the watchers watch. The error of a watcher takes
// precedence over the error of a write.
func (w *watchers) during(j *journal, rate float64, send func(ctx context.Context, i, number int) error) error {
	err := j.send(w.failed, rate, send)
	if cause := context.Cause(w.failed); cause != nil {
		return cause
	}
	return err
}

// eventTimeout is the timeout for the last events.
const eventTimeout = 30 * time.Second

// wait waits until all watchers have received all events.
func (w *watchers) wait() ([]*arrivals, error) {
	done := make(chan error, 1)
	go func() { done <- w.group.Wait() }()
	select {
	case err := <-done:
		return w.came, err
	case <-time.After(eventTimeout):
		return nil, fmt.Errorf("%s after the last write, some watchers have not received all events", eventTimeout)
	}
}
