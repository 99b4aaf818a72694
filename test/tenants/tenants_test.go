// Package tenants uses many workspaces of a real server while it is killed and started again: nothing that was acknowledged is lost, no
// workspace has anything of another one, and a sleeping one has no goroutine.
package tenants

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
)

var (
	runs       = flag.Int("runs", 5, "number of times that the server is killed in TestKilled")
	seed       = flag.Uint64("seed", 1, "seed of TestKilled")
	onPostgres = flag.Bool("postgres", false, "use a PostgreSQL instead of SQLite")
)

const (
	count   = 20
	writers = 8
	// idle is how long a workspace stays open: most wakes are after a sleep.
	idle = time.Second
	// noise is the number of goroutines that come and go without workspaces.
	noise = 50
	// settle is how long the server may take on a busy machine.
	settle = 2 * time.Minute
)

func TestMain(m *testing.M) {
	programs.Main(system.Roles())
	os.Exit(m.Run())
}

// book has what the writers know of each workspace.
type book struct {
	mu sync.Mutex
	// acknowledged objects exist, unless they were deleted; attempted ones may exist.
	acknowledged, attempted map[string]map[string]bool
}

func (b *book) set(in map[string]map[string]bool, workspace, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if in[workspace] == nil {
		in[workspace] = map[string]bool{}
	}
	in[workspace][name] = true
}

// TestKilled: writers create objects in random workspaces while the server is killed at random times and started again, and workspaces fall
// asleep between two requests, or all at once. At the end, each has exactly its objects, and the server has no more goroutines than
// before they were woken some more times.
func TestKilled(t *testing.T) {
	random := rand.New(rand.NewPCG(*seed, 0))
	t.Logf("-runs %d -seed %d", *runs, *seed)
	config := newConfig(t, "--workspace-idle", idle.String())
	server := start(t, config)
	defer func() { server.Kill() }()
	api := &caller{}
	api.use(t, server)
	for i := range count {
		api.must(t, http.MethodPost, "/apis/tenancy.atoll.dev/v1alpha1/workspaces", `{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"Workspace","metadata":{"name":"`+name(i)+`"}}`)
	}
	written := &book{acknowledged: map[string]map[string]bool{}, attempted: map[string]map[string]bool{}}
	load := newLoad(t, api, written)
	kills, sleeps := 0, 0
	for run := range *runs {
		load.while(time.Duration(200+random.IntN(1500)) * time.Millisecond)
		switch random.IntN(4) {
		case 0:
			load.stop()
			asleep(t, api)
			check(t, api, name(random.IntN(count)), written) // it wakes
			sleeps++
		case 1, 2: // some fall asleep while others are used
		case 3:
			server.Kill()
			<-server.Done()
			server = start(t, config)
			api.use(t, server)
			kills++
		}
		if run%50 == 49 {
			t.Logf("run %d: killed %d times, asleep %d times", run+1, kills, sleeps)
		}
	}
	wake := func() {
		for range 5 {
			load.while(500 * time.Millisecond)
			load.stop()
			asleep(t, api)
		}
	}
	wake() // what the server starts with the first use of workspaces is running now
	before := settled(t, api)
	wake()

	total := 0
	for i := range count {
		total += check(t, api, name(i), written)
	}
	t.Logf("%d objects", total)
	if total == 0 {
		t.Error("nothing was written")
	}
	asleep(t, api) // again, after they were read
	programs.Eventually(t, settle, "the goroutines of the workspaces have ended", func(ctx context.Context) error {
		now, err := api.gauge(ctx, "go_goroutines")
		if err == nil && now > before+noise {
			err = fmt.Errorf("%.0f goroutines, %.0f before they were woken", now, before)
		}
		return err
	})
}

func name(i int) string { return "team-" + strconv.Itoa(i) }

// newConfig returns the configuration of a server with a new datastore.
func newConfig(t *testing.T, flags ...string) atoll.Config {
	t.Helper()
	dir := t.TempDir()
	config := atoll.Config{Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"), Flags: flags}
	if *onPostgres {
		db, err := postgres.Start(t.Context(), postgres.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Stop() })
		config.Datastore = db.URL()
	}
	return config
}

func start(t *testing.T, config atoll.Config) *atoll.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	server, err := atoll.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// load is writers that may run or not.
type load struct {
	write func(ctx context.Context, writer int)
	end   context.CancelFunc // nil: they do not run
	group sync.WaitGroup
}

func newLoad(t *testing.T, api *caller, written *book) *load {
	var random [writers]*rand.Rand
	for w := range random {
		random[w] = rand.New(rand.NewPCG(*seed, uint64(w)+1))
	}
	var objects [writers]int
	l := &load{write: func(ctx context.Context, w int) { write(ctx, api, w, &objects[w], random[w], written) }}
	t.Cleanup(l.stop)
	return l
}

// while lets the writers run, and waits for some time. They go on afterwards.
func (l *load) while(wait time.Duration) {
	if l.end == nil {
		ctx, end := context.WithCancel(context.Background())
		l.end = end
		for w := range writers {
			l.group.Go(func() { l.write(ctx, w) })
		}
	}
	time.Sleep(wait)
}

func (l *load) stop() {
	if l.end != nil {
		l.end()
		l.group.Wait()
		l.end = nil
	}
}

// write creates objects in random workspaces until ctx ends. A name is used once: an error leaves open whether the object exists.
func write(ctx context.Context, api *caller, writer int, n *int, random *rand.Rand, written *book) {
	for ; ctx.Err() == nil; *n++ {
		workspace, object := name(random.IntN(count)), fmt.Sprintf("w%d-%06d", writer, *n)
		written.set(written.attempted, workspace, object)
		err := api.post(ctx, "/clusters/"+workspace+"/api/v1/namespaces/default/configmaps",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+object+`"},"data":{"of":"`+workspace+`"}}`)
		if err == nil {
			written.set(written.acknowledged, workspace, object)
			continue
		}
		select { // the server may be down
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// check compares the objects of a workspace with the book, and returns their number.
func check(t *testing.T, api *caller, workspace string, written *book) int {
	t.Helper()
	_, config := api.present()
	in := rest.CopyConfig(config)
	in.Host += "/clusters/" + workspace
	reader, err := kubernetes.NewForConfig(in)
	if err != nil {
		t.Fatal(err)
	}
	list, err := reader.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, o := range list.Items {
		if o.Name == "kube-root-ca.crt" {
			continue
		}
		found[o.Name] = true
		if !written.attempted[workspace][o.Name] || o.Data["of"] != workspace {
			t.Errorf("%s has %s, of %q", workspace, o.Name, o.Data["of"])
		}
	}
	for object := range written.acknowledged[workspace] {
		if !found[object] {
			t.Errorf("%s has lost %s", workspace, object)
		}
	}
	return len(found)
}

// caller makes requests as the administrator. The server has another port after each start.
type caller struct {
	mu     sync.Mutex
	config *rest.Config
	http   *http.Client
}

// use makes requests go to a server from now on.
func (c *caller) use(t *testing.T, server *atoll.Server) {
	t.Helper()
	config, err := server.REST()
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config, c.http = config, client
}

func (c *caller) present() (*http.Client, *rest.Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.http, c.config
}

// do makes a request, and returns an error unless it succeeded.
func (c *caller) do(ctx context.Context, method, path, body string, answer *bytes.Buffer) error {
	client, config := c.present()
	r, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = errors.New(resp.Status + ": " + string(out[:min(len(out), 200)]))
	}
	if answer != nil {
		answer.Write(out)
	}
	return err
}

func (c *caller) must(t *testing.T, method, path, body string) string {
	t.Helper()
	var answer bytes.Buffer
	if err := c.do(t.Context(), method, path, body, &answer); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer.String()
}

// patience is how long a writer waits for an answer: the server may be killed meanwhile.
const patience = 10 * time.Second

func (c *caller) post(ctx context.Context, path, body string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.do(ctx, http.MethodPost, path, body, nil)
}

// gauge returns a metric without labels, or the only one of its name.
func (c *caller) gauge(ctx context.Context, metric string) (float64, error) {
	var all bytes.Buffer
	if err := c.do(ctx, http.MethodGet, "/metrics", "", &all); err != nil {
		return 0, err
	}
	for line := range strings.Lines(all.String()) {
		labelled, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(labelled, "{"); found && base == metric {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", metric)
}

// settled returns the number of goroutines after it has stayed nearly the same for some time: a server starts parts of it after it is ready.
func settled(t *testing.T, api *caller) float64 {
	t.Helper()
	var last []float64
	programs.Eventually(t, settle, "the number of goroutines stays the same", func(ctx context.Context) error {
		now, err := api.gauge(ctx, "go_goroutines")
		if err != nil {
			return err
		}
		last = append(last, now)
		if last = last[max(0, len(last)-20):]; len(last) < 20 || slices.Max(last)-slices.Min(last) > noise {
			return fmt.Errorf("it was %v", last)
		}
		return nil
	})
	return slices.Max(last)
}

// asleep waits until no workspace is open.
func asleep(t *testing.T, api *caller) {
	t.Helper()
	asleepBut(t, api, 0)
}

// asleepBut waits until only so many workspaces are open.
func asleepBut(t *testing.T, api *caller, open float64) {
	t.Helper()
	programs.Eventually(t, settle, "workspaces are asleep", func(ctx context.Context) error {
		n, err := api.gauge(ctx, "atoll_tenancy_workspaces_awake")
		if err == nil && n > open {
			err = fmt.Errorf("%.0f are awake", n)
		}
		return err
	})
}
