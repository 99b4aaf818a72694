package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	atolletcd "github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// A large keyspace: it is filled with many objects, opened by a new process, listed, and
// then every object is updated once, alternately with and without compaction.

const (
	scaleRole    = "scale"
	scaleClients = 256
	scalePrefix  = "/registry/scale/"
	// compactEvery is much shorter than an API server's interval of 5 minutes.
	compactEvery = time.Second
)

// scaleConfig is the configuration of a child process: one step on a store.
type scaleConfig struct {
	storeConfig
	Step    string // fill, open or update
	Objects int
}

// scaleStep is the result that a child process reports.
type scaleStep struct {
	Store string `json:"store"`
	Step  string `json:"step"`
	// Rate is operations per second, for open listed keys per second. CompactingRate is the
	// rate while compaction runs all the time.
	Rate           float64 `json:"rate"`
	CompactingRate float64 `json:"compacting_rate,omitempty"`
	// OpenSeconds is the time from opening the store to the first answer.
	OpenSeconds float64 `json:"open_s"`
	MemoryMiB   float64 `json:"memory_mib"`
	// DiskMiB is the store's size on disk after the step, InUseMiB the part that holds data.
	DiskMiB  float64 `json:"disk_mib"`
	InUseMiB float64 `json:"in_use_mib"`
}

func runScale(ctx context.Context, link *child.Link) error {
	var cfg scaleConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	out, err := cfg.run(ctx)
	if err != nil {
		return err
	}
	if err := link.Ready(out); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (cfg *scaleConfig) run(ctx context.Context) (out scaleStep, err error) {
	out.Step = cfg.Step
	began := time.Now()
	keyspace, closeAll, err := openKeyspace(ctx, cfg.storeConfig)
	if err != nil {
		return out, err
	}
	defer closeAll()
	client, err := atolletcd.InProcess(keyspace, keyspaceName)
	if err != nil {
		return out, err
	}
	defer client.Close()
	if _, err := client.KV.Get(ctx, scalePrefix); err != nil {
		return out, err
	}
	out.OpenSeconds = time.Since(began).Seconds()

	l := &load{conns: []*kubernetes.Client{client}, prefix: scalePrefix}
	switch cfg.Step {
	case "fill":
		out.Rate, err = l.fill(ctx, cfg.Objects)
	case "open":
		began := time.Now()
		err = l.listOnce(ctx, cfg.Objects)
		out.Rate = float64(cfg.Objects) / time.Since(began).Seconds()
	case "update":
		out.Rate, out.CompactingRate, err = l.updateAll(ctx, client, cfg.Objects)
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w", cfg.Step, err)
	}
	if out.MemoryMiB, err = residentMiB(os.Getpid()); err != nil {
		return out, err
	}
	status, err := keyspace.Status(ctx)
	if err != nil {
		return out, err
	}
	out.DiskMiB, out.InUseMiB = float64(status.Size)/(1<<20), float64(status.SizeInUse)/(1<<20)
	return out, nil
}

// scalePart is the number of operations in one phase, which has a time limit.
const scalePart = 50_000

// fill creates objects in the order of their keys.
func (l *load) fill(ctx context.Context, count int) (float64, error) {
	vals := values(256)
	took := time.Duration(0)
	for from := 0; from < count; from += scalePart {
		n := min(scalePart, count-from)
		rate, _, err := parallel(ctx, scaleClients, n, func(ctx context.Context, c, i int) error {
			at := from + i
			r, err := l.conn(c).Kubernetes.OptimisticPut(ctx, l.key(at), vals[at%len(vals)], 0, kubernetes.PutOptions{})
			if err == nil && !r.Succeeded {
				err = fmt.Errorf("%s exists already", l.key(at))
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		took += time.Duration(float64(n) / rate * float64(time.Second))
	}
	return float64(count) / took.Seconds(), nil
}

// updateAll updates every object once, spread over the keyspace. Compaction runs during
// every other part, so that other influences affect both rates equally.
func (l *load) updateAll(ctx context.Context, client *kubernetes.Client, count int) (plain, compacting float64, err error) {
	vals := values(256)
	var took [2]time.Duration
	var done [2]int
	for from, turn := 0, 0; from < count; from, turn = from+scalePart, 1-turn {
		n := min(scalePart, count-from)
		stop := func() error { return nil }
		if turn == 1 {
			stop = compactAlways(ctx, client)
		}
		rate, _, err := parallel(ctx, scaleClients, n, func(ctx context.Context, c, i int) error {
			at := int(uint64(from+i) * 7919 % uint64(count))
			_, err := l.conn(c).Put(ctx, l.key(at), string(vals[(at+1)%len(vals)]))
			return err
		})
		if err := errors.Join(err, stop()); err != nil {
			return 0, 0, err
		}
		took[turn] += time.Duration(float64(n) / rate * float64(time.Second))
		done[turn] += n
	}
	return float64(done[0]) / took[0].Seconds(), float64(done[1]) / max(took[1].Seconds(), 1e-9), nil
}

// compactAlways compacts every second, up to the revision of a second before. The returned
// function stops that, compacts once more and waits until the space is freed.
func compactAlways(ctx context.Context, client *kubernetes.Client) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for {
			r, err := client.KV.Get(ctx, scalePrefix)
			if err != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-time.After(compactEvery):
			}
			if _, err := client.Compact(ctx, r.Header.Revision); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
		}
	}()
	return func() error {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		r, err := client.KV.Get(context.WithoutCancel(ctx), scalePrefix)
		if err != nil {
			return err
		}
		_, err = client.Compact(context.WithoutCancel(ctx), r.Header.Revision, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil // the last compaction was at the same revision
		}
		return err
	}
}

// measureScale runs all steps on each store, each step in a process of its own.
func (r *report) measureScale(ctx context.Context, o options, dir string) (err error) {
	where := postgres.Config{}
	if o.dir != "" {
		where.Dir = filepath.Join(dir, "postgres-scale")
	}
	db, err := postgres.Start(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	objects := max(1000, int(1_000_000*o.scale))
	stores := []struct {
		name   string
		config storeConfig
	}{
		{"SQLite", storeConfig{Dir: filepath.Join(dir, "scale-sqlite")}},
		{"PostgreSQL", storeConfig{Dir: filepath.Join(dir, "scale-postgres"), Datastore: db.URL()}},
	}
	for _, s := range stores {
		for _, step := range []string{"fill", "open", "update", "update"} {
			progress(fmt.Sprintf("%s: %s, %d objects", s.name, step, objects))
			settleDisk()
			out, err := scaleOne(ctx, scaleConfig{storeConfig: s.config, Step: step, Objects: objects})
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			out.Store = s.name
			r.Scale = append(r.Scale, out)
		}
	}
	progress("")
	fmt.Printf("\nA keyspace of %d objects of %d bytes, in process, %d clients; compacting every %s\n\n",
		objects, valueSize, scaleClients, compactEvery)
	writeScale(os.Stdout, r.Scale)
	return nil
}

func scaleOne(ctx context.Context, cfg scaleConfig) (out scaleStep, err error) {
	process, err := child.Start(child.Spec{Role: scaleRole, Name: "scale " + cfg.Step, Config: cfg, LogFile: cfg.Dir + ".log"})
	if err != nil {
		return out, err
	}
	defer func() { _ = process.Stop() }()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	return out, process.WaitReady(ctx, &out)
}

func writeScale(w io.Writer, all []scaleStep) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "store\tstep\trate /s\twhile compacting /s\tratio\topen s\tmemory MiB\tdisk MiB\tin use MiB\t")
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t\n", s.Store, s.Step, s.Rate,
			s.CompactingRate, s.CompactingRate/s.Rate, s.OpenSeconds, s.MemoryMiB, s.DiskMiB, s.InUseMiB)
	}
	t.Flush()
}
