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

// face is an API server, as one client sees it. It speaks plain HTTP: to decode
// what comes would cost the machine more than to serve it.
type face struct {
	title string
	http  *http.Client
	// notes is the URL of the notes of a namespace.
	notes string
	// user is whom a simulated member's API server speaks for.
	user string
	// refused is how often it was told to come later.
	refused atomic.Int64
}

// noteData is what a note holds besides the number of its last write.
var noteData = strings.Repeat("An island in a ring, and a lagoon. ", valueSize/35)

func notesPath(group string) string { return "/apis/" + group + "/v1/namespaces/default/notes" }

// newFace is a face for whom a client configuration is made out to.
func newFace(title string, config *rest.Config, group string) (*face, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	return &face{title: title, http: client, notes: strings.TrimSuffix(config.Host, "/") + notesPath(group)}, nil
}

// open sends a request and returns the body of a good answer. Like client-go it
// comes again when it is told to come later.
func (f *face) open(ctx context.Context, method, url string, body []byte) (io.ReadCloser, error) {
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

func (f *face) openOnce(ctx context.Context, method, url string, body []byte) (answer io.ReadCloser, later time.Duration, err error) {
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
	said, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && response.StatusCode == http.StatusTooManyRequests {
		later = time.Duration(max(1, seconds)) * time.Second
	}
	return nil, later, fmt.Errorf("%s: %s: %s: %s", f.title, method, response.Status, said)
}

// document is what is read of objects and lists.
type document struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
}

func (f *face) do(ctx context.Context, method, url string, body []byte) (d document, err error) {
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

// list reads all notes as an informer does, and returns from where to watch.
func (f *face) list(ctx context.Context) (version string, err error) {
	query := url.Values{"resourceVersion": {"0"}, "limit": {"500"}}
	for {
		page, err := f.do(ctx, http.MethodGet, f.notes+"?"+query.Encode(), nil)
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
	// versions that they have now; empty of one that is still to be made.
	versions []string
}

func newNotes(name string, count int) *notes {
	return &notes{name: name, versions: make([]string, count)}
}

// write makes a note or changes it. What it says is the number of the write.
func (n *notes) write(ctx context.Context, f *face, i, number int) error {
	n.mu.Lock()
	version := n.versions[i]
	n.mu.Unlock()
	name := fmt.Sprintf("%s-%05d", n.name, i)
	body := fmt.Appendf(nil, `{"apiVersion":"%s","kind":"Note","metadata":{"name":"%s","resourceVersion":"%s"},"spec":{"write":%d,"data":"%s"}}`,
		f.apiVersion(), name, version, number, noteData)
	method, at := http.MethodPut, f.notes+"/"+name
	if version == "" {
		method, at = http.MethodPost, f.notes
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

func (f *face) apiVersion() string {
	_, path, _ := strings.Cut(f.notes, "/apis/")
	version, _, _ := strings.Cut(path, "/namespaces/")
	return version
}

// unmeasured is the number of writes whose events nobody waits for.
const unmeasured = -1

// journal is when the writes of one run were sent and acknowledged, by the clock
// of this process, which also sees the events: no two clocks have to agree.
type journal struct {
	began time.Time
	// first is the number of its first write. Numbers are not used again: a watch
	// may begin with what an earlier run left.
	first       int
	sent, acked []atomic.Int64
}

// nextWrite is the number of the next write, of all journals.
type nextWrite struct{ n int }

func (next *nextWrite) journal(count int) *journal {
	j := &journal{began: time.Now(), first: next.n, sent: make([]atomic.Int64, count), acked: make([]atomic.Int64, count)}
	next.n += count
	return j
}

func (j *journal) now() int64 { return int64(time.Since(j.began)) }

// keep sends all writes, rate a second, whether those before are answered or not: a
// server that is slow does not get fewer.
func (j *journal) keep(ctx context.Context, rate float64, send func(ctx context.Context, i, number int) error) error {
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

// arrivals are when the events of a journal's writes came to one watcher.
type arrivals struct {
	at []int64 // by write; 0 before it came
	// resumed is how often the server ended the watch before its time, as it does
	// when a watcher falls behind.
	resumed int
}

// watch sees all writes of the journal, each of them once, beginning with what has
// come since a version; synced is called when the server has begun to answer.
func (f *face) watch(ctx context.Context, j *journal, version string, synced func()) (*arrivals, error) {
	came := &arrivals{at: make([]int64, len(j.sent))}
	for left := len(came.at); ; came.resumed++ {
		query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}, "timeoutSeconds": {"3600"}}
		events, err := f.open(ctx, http.MethodGet, f.notes+"?"+query.Encode(), nil)
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
			return nil, fmt.Errorf("%s: watch: %w, with %d of %d events still to come", f.title, context.Cause(ctx), left, len(came.at))
		}
	}
}

// read notes events until all have come or the stream ends, and returns the version
// to go on from and how many are still to come.
func (f *face) read(events io.Reader, j *journal, came []int64, version string, left int) (string, int, error) {
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

// writeOf finds the number of a write in an event. The same name among managed
// fields has a letter before it.
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

// delays tells how long events took since their writes were sent, and since they
// were acknowledged: nothing if they came before.
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

// writes tells how long the writes took.
func (j *journal) writes() *samples {
	s := &samples{}
	for i := range j.sent {
		s.add(time.Duration(j.acked[i].Load() - j.sent[i].Load()))
	}
	return s
}

// watchers are faces that watch one journal's writes.
type watchers struct {
	faces []*face
	came  []*arrivals
	group *errgroup.Group
	// failed ends when one of them cannot go on.
	failed context.Context
}

// startWatchers has all faces list and watch, and returns when all do.
func startWatchers(ctx context.Context, j *journal, faces []*face) (*watchers, error) {
	w := &watchers{faces: faces, came: make([]*arrivals, len(faces))}
	w.group, w.failed = errgroup.WithContext(ctx)
	var synced sync.WaitGroup
	atOnce := make(chan struct{}, 16)
	for i, f := range faces {
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

// during keeps writing while they watch. What a watcher failed of comes before what
// became of writes.
func (w *watchers) during(j *journal, rate float64, send func(ctx context.Context, i, number int) error) error {
	err := j.keep(w.failed, rate, send)
	if cause := context.Cause(w.failed); cause != nil {
		return cause
	}
	return err
}

// settle is how long the last events may take.
const settle = 30 * time.Second

// wait waits until all have seen everything.
func (w *watchers) wait() ([]*arrivals, error) {
	done := make(chan error, 1)
	go func() { done <- w.group.Wait() }()
	select {
	case err := <-done:
		return w.came, err
	case <-time.After(settle):
		return nil, fmt.Errorf("%s after the last write not all watchers have seen all events", settle)
	}
}
