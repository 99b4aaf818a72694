package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const boats = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boats.bench.atoll.dev"},"spec":{
"group":"bench.atoll.dev","scope":"Namespaced","names":{"plural":"boats","singular":"boat","kind":"Boat"},"versions":[{"name":"v1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"masts":{"type":"integer"}}}}}}}]}}`

// growth is the heap, stack and goroutines that each of count workspaces took since an earlier state.
func (b *workspaceBench) growth(ctx context.Context, since state, count int) (kib, goroutines float64, err error) {
	now, err := b.state(ctx)
	n := float64(count)
	return (now.heap - since.heap + now.stack - since.stack) / n / 1024, (now.goroutines - since.goroutines) / n, err
}

// custom measures workspaces with own definitions.
func (b *workspaceBench) custom(ctx context.Context) error {
	// Those that fall asleep, and controllers that end, would be subtracted.
	if err := b.awaitControllers(ctx, 0); err != nil {
		return err
	}
	if err := b.sleep(ctx); err != nil {
		return err
	}
	if err := b.wake(ctx, workspacesCustom); err != nil {
		return err
	}
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	count := min(workspacesCustom, b.run.Used)
	for i := range count {
		if err := b.define(ctx, workspaceName(i)); err != nil {
			return err
		}
	}
	if err := b.awaitControllers(ctx, count); err != nil {
		return err
	}
	b.run.CustomKiB, b.run.CustomGoroutines, err = b.growth(ctx, before, count)
	return errors.Join(err, b.keepHeap(ctx, "custom"), b.sleep(ctx))
}

// awaitControllers waits until no workspace has controllers, which run for a while after a change, and keeps the first workspaces awake.
func (b *workspaceBench) awaitControllers(ctx context.Context, count int) error {
	if err := within(ctx, workspacesLimit, "no workspace has controllers", func(ctx context.Context) error {
		if err := b.wake(ctx, count); err != nil {
			return err
		}
		all, err := getPath(ctx, b.server, workspacesPath)
		if n := strings.Count(string(all), `"due":`); err == nil && n > 0 {
			err = fmt.Errorf("%d have", n)
		}
		return err
	}); err != nil {
		return err
	}
	return b.wake(ctx, count) // an idle time passes before they sleep
}

// keepHeap writes a heap profile, if they are kept.
func (b *workspaceBench) keepHeap(ctx context.Context, name string) error {
	if b.profile == "" {
		return nil
	}
	raw, err := getPath(ctx, b.server, "/debug/pprof/heap?gc=1")
	return errors.Join(err, os.MkdirAll(b.profile, 0o700), os.WriteFile(filepath.Join(b.profile, b.run.Database+"-"+name+".heap"), raw, 0o600))
}

// define defines a kind in a workspace, and creates an object of it.
func (b *workspaceBench) define(ctx context.Context, workspace string) error {
	if err := b.do(ctx, 0, http.MethodPost, "/clusters/"+workspace+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", boats); err != nil {
		return err
	}
	return eventually(ctx, "the kind is served", func(ctx context.Context) error { return b.createBoat(ctx, 0, workspace) })
}

func (b *workspaceBench) createBoat(ctx context.Context, client int, workspace string) error {
	return b.do(ctx, client, http.MethodPost, "/clusters/"+workspace+"/apis/bench.atoll.dev/v1/namespaces/default/boats",
		`{"apiVersion":"bench.atoll.dev/v1","kind":"Boat","metadata":{"name":"one"},"spec":{"masts":1}}`)
}

// wake uses the first workspaces that have no own definition.
func (b *workspaceBench) wake(ctx context.Context, count int) error {
	_, _, err := parallel(ctx, workspaceClients, min(count, b.run.Used), func(ctx context.Context, c, i int) error {
		return b.do(ctx, c, http.MethodGet, "/clusters/"+workspaceName(i)+"/api/v1/namespaces/default/configmaps", "")
	})
	return err
}

// bound measures workspaces with an API that another one exports.
func (b *workspaceBench) bound(ctx context.Context) error {
	if err := b.make(ctx, 0, "exporter"); err != nil {
		return err
	}
	if err := b.define(ctx, "exporter"); err != nil {
		return err
	}
	if err := b.do(ctx, 0, http.MethodPost, "/clusters/exporter/apis/tenancy.atoll.dev/v1alpha1/apiexports",
		`{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"APIExport","metadata":{"name":"boats"},"spec":{"resources":[{"group":"bench.atoll.dev","resource":"boats"}]}}`); err != nil {
		return err
	}
	first := workspacesCustom // after those with an own definition
	count := min(workspacesBound, b.run.Used-first-1)
	bind := func(ctx context.Context, client int, workspace string) error {
		return b.do(ctx, client, http.MethodPost, "/clusters/"+workspace+"/apis/tenancy.atoll.dev/v1alpha1/apibindings",
			`{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"APIBinding","metadata":{"name":"boats"},"spec":{"export":{"path":"exporter","name":"boats"}}}`)
	}
	if err := errors.Join(bind(ctx, 0, workspaceName(first)), b.createBoat(ctx, 0, workspaceName(first))); err != nil { // opens the server of the exporter
		return err
	}
	if err := b.wake(ctx, first+1+count); err != nil {
		return err
	}
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	creations := &samples{}
	if _, _, err := parallel(ctx, workspaceClients, count, func(ctx context.Context, c, i int) error {
		if err := bind(ctx, c, workspaceName(first+1+i)); err != nil {
			return err
		}
		began := time.Now()
		if err := b.createBoat(ctx, c, workspaceName(first+1+i)); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		creations.add(time.Since(began))
		return nil
	}); err != nil {
		return err
	}
	b.run.BoundP50, b.run.BoundP99 = creations.ms(50), creations.ms(99)
	b.run.BoundKiB, b.run.BoundGoroutines, err = b.growth(ctx, before, count)
	return err
}
