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
	"github.com/atoll-dev/atoll/bench/alike"
	"github.com/atoll-dev/atoll/playground/atoll"
)

// alikeRun is what came of the same work in both.
type alikeRun struct {
	alike.Counts
	Seconds  float64         `json:"seconds"`
	Findings []alike.Finding `json:"findings,omitempty"`
}

// alikeSteps are the changes in the life of each configuration, the first and the last one included; alikeAtOnce is how many
// configurations are looked at at a time, alikePatience how long one may take.
const (
	alikeSteps    = 5
	alikeAtOnce   = 3
	alikePatience = 5 * time.Minute
)

// measureAlike has OpenTofu and Atoll do the same.
func (r *report) measureAlike(ctx context.Context, o options, dir string) error {
	program, err := tofuProgram(ctx, o.tofu, dir)
	if err != nil {
		return err
	}
	mirror := filepath.Join(dir, "mirror")
	built, err := buildProviders(ctx, mirror, "demo,demo5")
	if err != nil {
		return err
	}
	tofu := alike.Tofu{Program: program, Providers: map[string]string{}}
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
	ours, err := alike.NewAtoll(config)
	if err != nil {
		return err
	}
	for _, p := range built {
		if err := serveProvider(ctx, ours.API, p, filepath.Join(mirror, "packed")); err != nil {
			return err
		}
	}
	began := time.Now()
	run := &alikeRun{}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	seeds := make(chan uint64)
	for range alikeAtOnce {
		all.Go(func() {
			for seed := range seeds {
				one, cancel := context.WithTimeout(ctx, alikePatience)
				counts, found, err := alike.Run(one, seed, alikeSteps, filepath.Join(dir, "alike"), tofu, ours)
				cancel()
				mu.Lock()
				run.take(counts, found)
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
	r.Alike = run
	run.write(os.Stdout)
	if len(run.Findings) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d configurations are not alike", len(run.Findings), run.Configurations))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func (run *alikeRun) take(counts alike.Counts, found *alike.Finding) {
	run.Add(counts)
	if found != nil {
		run.Findings = append(run.Findings, *found)
	}
}

func (run *alikeRun) write(w io.Writer) {
	slices.SortFunc(run.Findings, func(a, b alike.Finding) int { return int(a.Seed) - int(b.Seed) })
	for _, f := range run.Findings {
		fmt.Fprintf(w, "\nseed %d, step %d: %s\n", f.Seed, f.Step, f.What)
		for _, d := range f.Differences {
			fmt.Fprintf(w, "  %s\n", d)
		}
	}
	fmt.Fprintf(w, "\nThe same through OpenTofu and Atoll: %d configurations, %d steps in %.0f s\n", run.Configurations, run.Steps, run.Seconds)
	var planned []string
	for _, action := range slices.Sorted(maps.Keys(run.Actions)) {
		planned = append(planned, fmt.Sprintf("%s %d", action, run.Actions[action]))
	}
	fmt.Fprintf(w, "planned: %s\n", strings.Join(planned, ", "))
	fmt.Fprintf(w, "%d steps were refused by both, in %d applies something failed; %d states and %d things in the worlds compared\n", run.Refused, run.Failures, run.States, run.Objects)
	for _, why := range slices.Sorted(maps.Keys(run.Chosen)) {
		fmt.Fprintf(w, "differs as it is meant to, %d times: %s\n", run.Chosen[why], why)
	}
	if run.Apart > 0 {
		fmt.Fprintf(w, "%d configurations were not followed to their end, because such a difference left two worlds\n", run.Apart)
	}
	fmt.Fprintf(w, "%d configurations differ otherwise\n", len(run.Findings))
}

// serveProvider installs a provider from a mirror, and waits until it is served.
func serveProvider(ctx context.Context, api dynamic.Interface, built builtProvider, packed string) error {
	return serveSpec(ctx, api, path.Base(built.Source), map[string]any{"source": built.Source, "version": built.Version, "digests": []any{built.ZH, built.H1},
		"origin": map[string]any{"filesystemMirror": map[string]any{"path": packed}}})
}

// serveSpec makes a Provider, and waits until it is served.
func serveSpec(ctx context.Context, api dynamic.Interface, name string, spec map[string]any) error {
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
