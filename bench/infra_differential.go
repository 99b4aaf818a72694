package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/bench/differential"
	"github.com/atoll-dev/atoll/playground/atoll"
)

// differentialRun is the result of the differential test of OpenTofu and Atoll.
type differentialRun struct {
	differential.Counts
	Seconds  float64                `json:"seconds"`
	Findings []differential.Finding `json:"findings,omitempty"`
}

// Each configuration has differentialSteps steps, including the create and the destroy. differentialWorkers configurations run
// in parallel, each for at most differentialTimeout.
const (
	differentialSteps   = 5
	differentialWorkers = 3
	differentialTimeout = 5 * time.Minute
)

// measureDifferential runs generated configurations through OpenTofu and Atoll and compares the results.
func (r *report) measureDifferential(ctx context.Context, o options, dir string) error {
	program, err := tofuProgram(ctx, o.tofu, dir)
	if err != nil {
		return err
	}
	mirror := filepath.Join(dir, "mirror")
	built, err := buildProviders(ctx, mirror, "demo,demo5")
	if err != nil {
		return err
	}
	tofu := differential.Tofu{Program: program, Providers: map[string]string{}}
	for _, p := range built {
		tofu.Providers[p.Source] = p.Unpacked
	}
	server, err := atoll.Start(ctx, atoll.Config{Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"),
		Flags: []string{"--provider-mirror", filepath.Join(mirror, "packed")}})
	if err != nil {
		return err
	}
	defer server.Kill()
	config, err := server.REST()
	if err != nil {
		return err
	}
	config.QPS = -1
	ours, err := differential.NewAtoll(config)
	if err != nil {
		return err
	}
	for _, p := range built {
		if err := serveProvider(ctx, ours.API, p, filepath.Join(mirror, "packed")); err != nil {
			return err
		}
	}
	began := time.Now()
	run := &differentialRun{}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	seeds := make(chan uint64)
	for range differentialWorkers {
		all.Go(func() {
			for seed := range seeds {
				one, cancel := context.WithTimeout(ctx, differentialTimeout)
				counts, found, err := differential.Run(one, seed, differentialSteps, filepath.Join(dir, "alike"), tofu, ours)
				cancel()
				mu.Lock()
				run.add(counts, found)
				if err != nil {
					errs = append(errs, err)
				}
				progress(fmt.Sprintf("%d of %d configurations, %d differ, %d errors", run.Configurations, o.configurations, len(run.Findings), len(errs)))
				mu.Unlock()
			}
		})
	}
	for n := range o.configurations {
		select {
		case seeds <- o.seed + uint64(n):
		case <-ctx.Done():
		}
	}
	close(seeds)
	all.Wait()
	progress("")
	run.Seconds = time.Since(began).Seconds()
	r.Differential = run
	run.write(os.Stdout)
	if len(run.Findings) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d configurations differ", len(run.Findings), run.Configurations))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func (run *differentialRun) add(counts differential.Counts, found *differential.Finding) {
	run.Add(counts)
	if found != nil {
		run.Findings = append(run.Findings, *found)
	}
}

func (run *differentialRun) write(w io.Writer) {
	slices.SortFunc(run.Findings, func(a, b differential.Finding) int { return int(a.Seed) - int(b.Seed) })
	for _, f := range run.Findings {
		fmt.Fprintf(w, "\nseed %d, step %d: %s\n", f.Seed, f.Step, f.Description)
		for _, d := range f.Differences {
			fmt.Fprintf(w, "  %s\n", d)
		}
	}
	fmt.Fprintf(w, "\nOpenTofu and Atoll compared: %d configurations, %d steps in %.0f s\n", run.Configurations, run.Steps, run.Seconds)
	var planned []string
	for _, action := range slices.Sorted(maps.Keys(run.Actions)) {
		planned = append(planned, fmt.Sprintf("%s %d", action, run.Actions[action]))
	}
	fmt.Fprintf(w, "planned: %s\n", strings.Join(planned, ", "))
	fmt.Fprintf(w, "both refused %d steps; %d applies had failures; %d states and %d objects compared\n", run.Refused, run.Failures, run.States, run.Objects)
	for _, why := range slices.Sorted(maps.Keys(run.Intended)) {
		fmt.Fprintf(w, "intended difference, %d times: %s\n", run.Intended[why], why)
	}
	if run.Diverged > 0 {
		fmt.Fprintf(w, "%d configurations ended early, because an intended difference left the two sides in different states\n", run.Diverged)
	}
	fmt.Fprintf(w, "%d configurations have other differences\n", len(run.Findings))
}

// serveProvider installs a provider from a mirror and waits until it is served.
func serveProvider(ctx context.Context, api dynamic.Interface, built builtProvider, packed string) error {
	return serveSpec(ctx, api, path.Base(built.Source), map[string]any{"source": built.Source, "version": built.Version, "digests": []any{built.ZH, built.H1},
		"origin": map[string]any{"filesystemMirror": map[string]any{"path": packed}}})
}

// serveSpec creates a Provider and waits until it is served.
func serveSpec(ctx context.Context, api dynamic.Interface, name string, spec map[string]any) error {
	// OpenTofu's providers, which use the same directories, run as this process's user.
	spec["containment"] = string(v1alpha1.ContainmentNone)
	p := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Provider", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if _, err := api.Resource(v1alpha1.ProviderResource).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Provider %s: %w", name, err)
	}
	for {
		u, err := api.Resource(v1alpha1.ProviderResource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if conditionTrue(u, "Served") {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			status, _ := json.Marshal(u.Object["status"])
			return fmt.Errorf("Provider %s is not served: %w: %s", name, ctx.Err(), status)
		}
	}
}

func conditionTrue(u *unstructured.Unstructured, name string) bool {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		is, _ := c.(map[string]any)
		return is["type"] == name && is["status"] == "True"
	})
}
