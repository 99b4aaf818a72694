package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// workspacesRun has the figures of many workspaces in one server.
type workspacesRun struct {
	Database   string `json:"database"`
	Workspaces int    `json:"workspaces"`
	// Create is the time from the creation of a Workspace until a ConfigMap was created in it; MadePerSecond is with eight clients.
	CreateP50, CreateP99, MadePerSecond float64
	// Asleep and Awake are the heap of one workspace, in KiB, and its goroutines.
	AsleepKiB, AsleepGoroutines float64
	AwakeKiB, AwakeGoroutines   float64
	// RSSMiB is the resident memory of the server with all of them, while Used are awake.
	RSSMiB float64
	Used   int
	// CustomKiB is the heap and stack of a workspace with an own CustomResourceDefinition, in addition to AwakeKiB.
	CustomKiB, CustomGoroutines float64
	// BoundKiB is the heap and stack of a workspace with an API of another one, and an object of it, in addition to AwakeKiB; Bound is the
	// creation of the first object.
	BoundKiB, BoundGoroutines, BoundP50, BoundP99 float64
	// Cold is a get in a workspace that was asleep.
	ColdP50, ColdP99 float64
	// DiskKiB is the space of an empty workspace in the database.
	DiskKiB float64
	// QuietP99 is of creates in one workspace by four clients; FloodedP99 while 64 clients create in another one.
	QuietP99, FloodedP99 float64
	// MetricLines counts the lines of /metrics before and after.
	MetricLinesBefore, MetricLinesAfter int
	DeletedSeconds                      float64
}

// Clients and counts of the workspace benchmark.
const (
	workspaceClients   = 8
	workspacesMeasured = 500
	workspacesUsed     = 1000
	workspacesBatch    = 1000 // for the time limit of parallel
	workspacesCustom   = 10
	workspacesBound    = 200
	floodClients       = 64
	workspacesLimit    = 40 * time.Minute
	// The number of goroutines is settled if so many measurements differ by no more than this.
	settledSamples = 30
	settledNoise   = 50
	// workspacesIdle is long enough for all that is measured while workspaces are awake.
	workspacesIdle = 20 * time.Second
)

// measureWorkspaces measures the same on SQLite and PostgreSQL.
func (r *report) measureWorkspaces(ctx context.Context, o options, dir string) (err error) {
	where := postgres.Config{}
	if o.dir != "" {
		where.Dir = filepath.Join(dir, "postgres")
	}
	db, err := postgres.Start(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	for _, database := range strings.Split(o.databases, ",") {
		if database != "sqlite" && database != "postgres" {
			return fmt.Errorf("-databases %q: %q must be sqlite or postgres", o.databases, database)
		}
		b := &workspaceBench{profile: o.profile, steps: strings.Split(o.steps, ","), run: workspacesRun{Database: database, Workspaces: max(50, int(10_000*o.scale))}, dir: filepath.Join(dir, database)}
		if err := os.MkdirAll(b.dir, 0o700); err != nil {
			return err
		}
		if database == "postgres" {
			if b.url, err = makeDatabase(ctx, db, "workspaces"); err != nil {
				return err
			}
			b.size = func(ctx context.Context) (float64, error) { return databaseSize(ctx, db, "workspaces") }
		} else {
			b.size = func(context.Context) (float64, error) { return filesSize(filepath.Join(b.dir, "atoll")) }
		}
		if err := b.measure(ctx); err != nil {
			return fmt.Errorf("workspaces on %s: %w", database, err)
		}
		r.Workspaces = append(r.Workspaces, b.run)
		progress("")
		if err := writeWorkspaces(os.Stdout, r.Workspaces[len(r.Workspaces)-1:]); err != nil {
			return err
		}
	}
	return nil
}

// workspaceBench is one server with its clients.
type workspaceBench struct {
	run      workspacesRun
	dir, url string
	profile  string                                 // see profileTo
	steps    []string                               // those to measure after the creation
	size     func(context.Context) (float64, error) // of the database, in bytes
	server   *atoll.Server
	clients  []*http.Client
	host     string
}

func (b *workspaceBench) measure(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, workspacesLimit)
	defer cancel()
	b.server, err = atoll.Start(ctx, atoll.Config{Dir: filepath.Join(b.dir, "atoll"), Datastore: b.url, LogFile: filepath.Join(b.dir, "atoll.log"),
		Flags: []string{"--workspace-idle", workspacesIdle.String()}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Stop()) }()
	config, err := b.server.REST()
	if err != nil {
		return err
	}
	b.host = config.Host
	for range workspaceClients {
		transport, err := rest.TransportFor(config)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, &http.Client{Transport: transport})
	}
	if err := b.step(ctx, "create", b.create); err != nil {
		return err
	}
	steps := map[string]func(context.Context) error{"asleep": b.asleep, "awake": b.awake, "custom": b.custom, "bound": b.bound, "flood": b.flood, "delete": b.delete}
	for _, name := range b.steps {
		do, ok := steps[name]
		if !ok {
			return fmt.Errorf("-steps: %q must be one of %s", name, strings.Join(slices.Sorted(maps.Keys(steps)), ", "))
		}
		if err := b.step(ctx, name, do); err != nil {
			return err
		}
	}
	return nil
}

// step measures one thing.
func (b *workspaceBench) step(ctx context.Context, name string, do func(context.Context) error) error {
	progress(b.run.Database + ": " + name)
	profiled := func() error { return nil }
	if name == "flood" || name == "delete" { // the others take heap profiles, when they measure
		profiled = profileTo(ctx, b.server, b.profile, b.run.Database+"-"+name, longestProfile)
	}
	if err := errors.Join(do(ctx), profiled()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// do makes a request, and returns an error unless it succeeded.
func (b *workspaceBench) do(ctx context.Context, client int, method, path, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, b.host+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := b.clients[client%len(b.clients)].Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, out)
	}
	return err
}

const workspacesPath = "/apis/tenancy.atoll.dev/v1alpha1/workspaces"

func (b *workspaceBench) make(ctx context.Context, client int, name string) error {
	return b.do(ctx, client, http.MethodPost, workspacesPath, `{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"Workspace","metadata":{"name":"`+name+`"}}`)
}

func workspaceName(i int) string { return fmt.Sprintf("w%05d", i) }

// createMap creates a ConfigMap in a workspace.
func (b *workspaceBench) createMap(ctx context.Context, client int, workspace, name string) error {
	return b.do(ctx, client, http.MethodPost, "/clusters/"+workspace+"/api/v1/namespaces/default/configmaps",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"},"data":{"text":"`+strings.Repeat("x", 200)+`"}}`)
}

func (b *workspaceBench) create(ctx context.Context) error {
	if err := b.make(ctx, 0, "first"); err != nil {
		return err
	}
	if err := b.createMap(ctx, 0, "first", "one"); err != nil {
		return err
	}
	if err := b.define(ctx, "first"); err != nil { // what all share is there from now on
		return err
	}
	if err := b.sleep(ctx); err != nil {
		return err
	}
	lines, err := b.metricLines(ctx)
	if err != nil {
		return err
	}
	b.run.MetricLinesBefore = lines
	before, err := b.state(ctx)
	if err == nil {
		err = b.keepHeap(ctx, "first")
	}
	if err != nil {
		return err
	}
	disk, err := b.size(ctx)
	if err != nil {
		return err
	}
	measured := min(workspacesMeasured, b.run.Workspaces/2)
	_, s, err := parallel(ctx, 1, measured, func(ctx context.Context, c, i int) error {
		if err := b.make(ctx, c, workspaceName(i)); err != nil {
			return err
		}
		return b.createMap(ctx, c, workspaceName(i), "one")
	})
	if err != nil {
		return err
	}
	b.run.CreateP50, b.run.CreateP99 = s.ms(50), s.ms(99)
	began := time.Now()
	for made := measured; made < b.run.Workspaces; made += workspacesBatch {
		if _, _, err := parallel(ctx, workspaceClients, min(workspacesBatch, b.run.Workspaces-made), func(ctx context.Context, c, i int) error {
			return b.make(ctx, c, workspaceName(made+i))
		}); err != nil {
			return err
		}
	}
	b.run.MadePerSecond = float64(b.run.Workspaces-measured) / time.Since(began).Seconds()
	if err := b.ready(ctx); err != nil {
		return err
	}
	if err := b.sleep(ctx); err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err == nil {
		err = b.keepHeap(ctx, "asleep")
	}
	if err != nil {
		return err
	}
	n := float64(b.run.Workspaces)
	b.run.AsleepKiB, b.run.AsleepGoroutines = (after.heap-before.heap)/n/1024, (after.goroutines-before.goroutines)/n
	grown, err := b.size(ctx)
	b.run.DiskKiB = (grown - disk) / n / 1024
	return err
}

// asleep measures gets in workspaces that sleep.
func (b *workspaceBench) asleep(ctx context.Context) error {
	_, s, err := parallel(ctx, 1, min(workspacesMeasured, b.run.Workspaces), func(ctx context.Context, c, i int) error {
		return b.do(ctx, c, http.MethodGet, "/clusters/"+workspaceName(i)+"/api/v1/namespaces/default", "")
	})
	if err != nil {
		return err
	}
	b.run.ColdP50, b.run.ColdP99 = s.ms(50), s.ms(99)
	return b.sleep(ctx)
}

// awake measures workspaces that are used, first without and then with own definitions.
func (b *workspaceBench) awake(ctx context.Context) error {
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	b.run.Used = min(workspacesUsed, b.run.Workspaces)
	if _, _, err := parallel(ctx, workspaceClients, b.run.Used, func(ctx context.Context, c, i int) error {
		return b.createMap(ctx, c, workspaceName(i), "two")
	}); err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err != nil {
		return err
	}
	n := float64(b.run.Used)
	b.run.AwakeKiB, b.run.AwakeGoroutines = (after.heap-before.heap)/n/1024, (after.goroutines-before.goroutines)/n
	if b.run.RSSMiB, err = residentMiB(b.server.PID()); err != nil {
		return err
	}
	return nil
}

// flood measures creates in one workspace, alone and while another one is flooded.
func (b *workspaceBench) flood(ctx context.Context) error {
	creates := func(ctx context.Context, name string, clients, count int) (*samples, error) {
		_, s, err := parallel(ctx, clients, count, func(ctx context.Context, c, i int) error {
			return b.createMap(ctx, c, "first", fmt.Sprintf("%s-%06d", name, i))
		})
		return s, err
	}
	if _, err := creates(ctx, "warm", 4, 200); err != nil {
		return err
	}
	quiet, err := creates(ctx, "quiet", 4, 2000)
	if err != nil {
		return err
	}
	during, stop := context.WithCancel(ctx)
	defer stop()
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		_, _, _ = parallel(during, floodClients, 1_000_000, func(ctx context.Context, c, i int) error {
			_ = b.createMap(ctx, c, workspaceName(0), fmt.Sprintf("flood-%07d", i)) // it may be refused: that is the point
			return ctx.Err()
		})
	}()
	beside, err := creates(ctx, "beside", 4, 2000)
	stop()
	<-flooded
	if err != nil {
		return err
	}
	b.run.QuietP99, b.run.FloodedP99 = quiet.ms(99), beside.ms(99)
	b.run.MetricLinesAfter, err = b.metricLines(ctx)
	return err
}

func (b *workspaceBench) metricLines(ctx context.Context) (int, error) {
	metrics, err := getPath(ctx, b.server, "/metrics")
	return strings.Count(string(metrics), "\n"), err
}

// ready waits until the controller has created all workspaces.
func (b *workspaceBench) ready(ctx context.Context) error {
	return within(ctx, workspacesLimit, "all workspaces are ready", func(ctx context.Context) error {
		all, err := getPath(ctx, b.server, workspacesPath)
		if n := strings.Count(string(all), `"phase":"Ready"`); err == nil && n < b.run.Workspaces {
			err = fmt.Errorf("%d are", n)
		}
		return err
	})
}

func (b *workspaceBench) delete(ctx context.Context) error {
	began := time.Now()
	if err := b.do(ctx, 0, http.MethodDelete, workspacesPath, ""); err != nil {
		return err
	}
	if err := within(ctx, workspacesLimit, "all workspaces are deleted", func(ctx context.Context) error {
		all, err := getPath(ctx, b.server, workspacesPath+"?limit=1")
		if err == nil && strings.Contains(string(all), `"uid"`) {
			err = errors.New("some are left")
		}
		return err
	}); err != nil {
		return err
	}
	b.run.DeletedSeconds = time.Since(began).Seconds()
	return nil
}
