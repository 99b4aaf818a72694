package tenants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/test/programs"
)

var sleepers = flag.Int("sleepers", 200, "number of workspaces that wake at the same time in TestWakeTogether, at most 10000")

const (
	// wakers are clients with connections of their own.
	wakers = 64
	// creators is how many workspaces are created at the same time.
	creators = 8
	// wakeTimeout is how long a client waits for its first answer.
	wakeTimeout = 2 * time.Minute
)

// TestWakeTogether: all workspaces of a server are asleep and get a request in the same moment, from many clients. Each is answered and
// nothing is lost, while a workspace that is awake is served. They fall asleep again, and wake once more. Then no goroutine is left. Watches
// continue over a sleep.
func TestWakeTogether(t *testing.T) {
	if *sleepers < 2 || *sleepers > 10000 {
		t.Fatalf("-sleepers %d: choose 2 to 10000", *sleepers)
	}
	server := start(t, newConfig(t, "--workspace-idle", idle.String()))
	defer server.Kill()
	api := &caller{}
	api.use(t, server)
	began := time.Now()
	createAll(t, api, *sleepers+1)
	t.Logf("%d workspaces after %s", *sleepers+1, time.Since(began).Round(time.Millisecond))
	clients := newClients(t, server)
	wakeAll(t, clients, "warm") // what the server starts with the first use of workspaces is running afterwards
	asleep(t, api)
	before, open := settled(t, api), 0.0

	awake := newAwake(t, api, name(*sleepers))
	for _, round := range []string{"first", "second"} {
		asleepBut(t, api, 1)
		answered := awake.answered.Load()
		first := wakeAll(t, clients, round)
		slices.Sort(first)
		peak, err := api.gauge(t.Context(), "atoll_tenancy_workspaces_awake")
		if err != nil {
			t.Fatal(err)
		}
		open = max(open, peak)
		t.Logf("%s round: first answers p50 %s, p99 %s, last %s; %d answers of the workspace that was awake; %s resident at most", round,
			first[len(first)/2].Round(time.Millisecond), first[len(first)*99/100].Round(time.Millisecond), first[len(first)-1].Round(time.Millisecond),
			awake.answered.Load()-answered, peakMemory(server.PID()))
		awake.more(t, 5)
	}
	if open < 2 {
		t.Error("no workspace was open after its request")
	}
	awake.end()
	asleep(t, api)
	for i := range *sleepers {
		has(t, clients[i%wakers], name(i), "warm", "first", "second")
	}
	asleep(t, api)
	programs.Eventually(t, settle, "the goroutines of the workspaces have ended", func(ctx context.Context) error {
		now, err := api.gauge(ctx, "go_goroutines")
		if err == nil && now > before+noise {
			err = fmt.Errorf("%.0f goroutines, %.0f before they were woken", now, before)
		}
		return err
	})
	watchOverSleep(t, api)
}

// createAll creates workspaces, and waits until they are complete.
func createAll(t *testing.T, api *caller, n int) {
	t.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	for range creators {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !t.Failed(); i = int(next.Add(1)) - 1 {
				if err := api.post(t.Context(), "/apis/tenancy.atoll.dev/v1alpha1/workspaces", `{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"Workspace","metadata":{"name":"`+name(i)+`"}}`); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	programs.Eventually(t, settle+time.Duration(n)*20*time.Millisecond, "all workspaces are Ready", func(ctx context.Context) error {
		var all bytes.Buffer
		if err := api.do(ctx, http.MethodGet, "/apis/tenancy.atoll.dev/v1alpha1/workspaces", "", &all); err != nil {
			return err
		}
		if ready := strings.Count(all.String(), `"phase":"Ready"`); ready < n {
			return fmt.Errorf("%d of %d are", ready, n)
		}
		return nil
	})
}

// newClients returns clients, each with a connection of its own.
func newClients(t *testing.T, server *atoll.Server) []*caller {
	t.Helper()
	var all []*caller
	for range wakers {
		config, err := server.REST()
		if err != nil {
			t.Fatal(err)
		}
		encryption, err := rest.TLSConfigFor(config)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: encryption, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		c := &caller{config: config, http: &http.Client{Transport: transport}}
		c.must(t, http.MethodGet, "/healthz", "") // the connection is open
		all = append(all, c)
	}
	return all
}

// wakeAll creates an object in each workspace in the same moment, and returns how long each request took.
func wakeAll(t *testing.T, clients []*caller, object string) []time.Duration {
	t.Helper()
	took := make([]time.Duration, *sleepers)
	begin := make(chan struct{})
	var group sync.WaitGroup
	for i := range took {
		group.Go(func() {
			<-begin
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), wakeTimeout)
			defer cancel()
			err := clients[i%wakers].do(ctx, http.MethodPost, "/clusters/"+name(i)+"/api/v1/namespaces/default/configmaps",
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+object+`"},"data":{"of":"`+name(i)+`"}}`, nil)
			if took[i] = time.Since(began); err != nil {
				t.Errorf("%s after %s: %v", name(i), took[i], err)
			}
		})
	}
	close(begin)
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return took
}

// has checks that a workspace has these objects of its own and no others.
func has(t *testing.T, api *caller, workspace string, objects ...string) {
	t.Helper()
	var list corev1.ConfigMapList
	if err := json.Unmarshal([]byte(api.must(t, http.MethodGet, "/clusters/"+workspace+"/api/v1/namespaces/default/configmaps", "")), &list); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, o := range list.Items {
		if o.Name == "kube-root-ca.crt" {
			continue
		}
		found = append(found, o.Name)
		if o.Data["of"] != workspace {
			t.Errorf("%s has %s of %q", workspace, o.Name, o.Data["of"])
		}
	}
	slices.Sort(found)
	slices.Sort(objects)
	if !slices.Equal(found, objects) {
		t.Errorf("%s has %v, want %v", workspace, found, objects)
	}
}

// awakeOne is a workspace that gets one request after the other.
type awakeOne struct {
	answered atomic.Int64
	end      func()
}

func newAwake(t *testing.T, api *caller, workspace string) *awakeOne {
	ctx, cancel := context.WithCancel(t.Context())
	a := &awakeOne{}
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			call, done := context.WithTimeout(ctx, wakeTimeout)
			err := api.do(call, http.MethodGet, "/clusters/"+workspace+"/api/v1/namespaces/default", "", nil)
			done()
			if err != nil && ctx.Err() == nil {
				t.Errorf("the workspace that is awake: %v", err)
				return
			}
			a.answered.Add(1)
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	a.end = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	t.Cleanup(a.end)
	return a
}

// more waits until the workspace has got more answers.
func (a *awakeOne) more(t *testing.T, n int64) {
	t.Helper()
	before := a.answered.Load()
	programs.Eventually(t, settle, "the workspace that is awake is served", func(context.Context) error {
		if a.answered.Load() < before+n {
			return errors.New("it has no more answers")
		}
		return nil
	})
}

// peakMemory returns the most memory that a process has had, as Linux has it.
func peakMemory(pid int) string {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return "unknown memory"
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return strings.TrimSpace(value)
		}
	}
	return "unknown memory"
}
