package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
	"github.com/atoll-dev/atoll/playground/atoll"
)

// atollScale is a server with count resources in one namespace.
type atollScale struct {
	*infraScale
	server    *atoll.Server
	api       dynamic.Interface
	resources dynamic.ResourceInterface
	kind      string
	shape     string
	count     int
	planned   *v1alpha1.Plan
	// alone is the duration of the provider's own calls in seconds, as last measured.
	alone float64
}

const (
	scaleNamespace = "default"
	// quietShare is the CPU time per second below which a server counts as idle.
	quietShare = 100 * time.Millisecond
	// profileLong is the duration of a CPU profile.
	profileLong = 20 * time.Second
)

// runAtoll runs all steps on an atoll server of its own.
func (s *infraScale) runAtoll(ctx context.Context, dir, shape string, count int) (out []infraRun, err error) {
	a := &atollScale{infraScale: s, shape: shape, count: count}
	if a.server, err = atoll.Start(ctx, atoll.Config{Dir: dir, LogFile: dir + ".log", Flags: []string{"--allow-development-providers"}}); err != nil {
		return nil, err
	}
	defer func() {
		a.server.Kill()
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	steps := []atollStep{
		{stepWrite, a.write},
		{stepPlan, func(ctx context.Context) error { return a.plan(ctx, false, int64(count)) }},
		{stepApply, a.apply},
		{stepNothing, func(ctx context.Context) error { return a.plan(ctx, false, 0) }},
		{stepRefresh, func(ctx context.Context) error { return a.plan(ctx, true, 0) }},
		{stepOne, func(ctx context.Context) error { return a.plan(ctx, false, 1) }},
	}
	if s.firstPlans > 0 {
		steps = append(steps[:1:1], slices.Repeat(steps[1:2], s.firstPlans)...)
	}
	for _, step := range steps {
		run, err := a.measure(ctx, step)
		if out = append(out, run); err != nil {
			return out, err
		}
	}
	return out, nil
}

// atollStep is a step and its implementation with Atoll.
type atollStep struct {
	name string
	do   func(context.Context) error
}

// measure measures a step. For the first plan it also measures the provider's own calls, before and after it.
func (a *atollScale) measure(ctx context.Context, step atollStep) (infraRun, error) {
	run := infraRun{System: "atoll", Shape: a.shape, Count: a.count, Step: step.name}
	if step.name == stepOne {
		patch := []byte(`{"spec":{"name":"changed"}}`)
		if _, err := a.resources.Patch(ctx, resourceName(a.count-1), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return run, err
		}
	}
	if err := a.settle(ctx); err != nil {
		return run, err
	}
	progress(fmt.Sprintf("Atoll, %s, %d: %s", a.shape, a.count, step.name))
	if step.name == stepPlan {
		if a.alone == 0 {
			if err := a.provider(ctx); err != nil {
				return run, err
			}
		}
		run.Provider = append(run.Provider, a.alone)
	}
	finish := profileTo(ctx, a.server, a.profile, fmt.Sprintf("%s-%d-%s", a.shape, a.count, step.name), profileLong)
	run, err := measureProcess(ctx, run, a.server.PID, step.do)
	if err = errors.Join(err, finish()); err == nil && step.name == stepPlan {
		err = a.provider(ctx)
		run.Provider = append(run.Provider, a.alone)
	}
	return run, err
}

// provider measures the provider's own calls while the server is idle. The speed of a machine varies from minute to minute, so
// they are measured before a plan and after it.
func (a *atollScale) provider(ctx context.Context) (err error) {
	if err := a.settle(ctx); err != nil {
		return err
	}
	a.alone, err = a.providerAlone(ctx, a.count)
	return err
}

// settle waits until the server has finished the work of the previous step, for at most a minute.
func (a *atollScale) settle(ctx context.Context) error {
	for range 60 {
		before, err := treeTime(a.server.PID())
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := treeTime(a.server.PID())
		if err != nil {
			return err
		}
		if after-before < quietShare {
			return nil
		}
	}
	return nil
}

// open creates the Provider and waits until it is served.
func (a *atollScale) open(ctx context.Context) error {
	config, err := a.server.REST()
	if err != nil {
		return err
	}
	if a.api, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	name := infraschema.Names([]string{a.typ}, nil)[0]
	a.kind = name.Kind
	a.resources = a.api.Resource(schema.GroupVersionResource{Group: a.group(), Version: v1alpha1.ProvidersVersion, Resource: name.Plural}).Namespace(scaleNamespace)
	p := map[string]any{"source": "providers.test/atoll/" + wideProvider, "version": "1.0.0", "origin": map[string]any{"development": map[string]any{"path": a.development}}}
	return serveSpec(ctx, a.api, wideProvider, p)
}

// write creates all objects with fleetClients clients.
func (a *atollScale) write(ctx context.Context) error {
	return each(ctx, a.count, func(ctx context.Context, n int) error {
		body := a.body(a.shape, a.count, n, func(name string) string { return fmt.Sprintf("${%s[%q].id}", a.typ, name) })
		_, err := a.resources.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": a.group() + "/" + v1alpha1.ProvidersVersion, "kind": a.kind, "metadata": map[string]any{"name": resourceName(n)}, "spec": body,
		}}, metav1.CreateOptions{})
		return err
	})
}

// plan creates a plan and checks its number of changes.
func (a *atollScale) plan(ctx context.Context, refresh bool, changes int64) error {
	a.planned = &v1alpha1.Plan{}
	if err := a.create(ctx, v1alpha1.PlanResource, "Plan", map[string]any{"refresh": refresh}, a.planned); err != nil {
		return err
	}
	if err := a.await(ctx, v1alpha1.PlanResource, a.planned.Name, a.planned, func() bool {
		return a.planned.Status.Phase == v1alpha1.PlanPlanned || a.planned.Status.Phase == v1alpha1.PlanFailed
	}); err != nil {
		return err
	}
	status := a.planned.Status
	if status.Phase == v1alpha1.PlanFailed || len(status.Problems) > 0 || status.Summary.Changes() != changes {
		return fmt.Errorf("the plan has %+v, want %d changes: %v", status.Summary, changes, status.Problems)
	}
	return nil
}

func (a *atollScale) apply(ctx context.Context) error {
	named := map[string]any{"plan": a.planned.Name, "digest": a.planned.Status.Digest}
	if err := a.create(ctx, v1alpha1.ApprovalResource, "Approval", named, &v1alpha1.Approval{}); err != nil {
		return err
	}
	apply := &v1alpha1.Apply{}
	if err := a.create(ctx, v1alpha1.ApplyResource, "Apply", named, apply); err != nil {
		return err
	}
	if err := a.await(ctx, v1alpha1.ApplyResource, apply.Name, apply, func() bool {
		return apply.Status.Phase == v1alpha1.ApplySucceeded || apply.Status.Phase == v1alpha1.ApplyFailed
	}); err != nil {
		return err
	}
	if apply.Status.Phase == v1alpha1.ApplyFailed {
		return fmt.Errorf("the apply failed: %v", apply.Status.Problems)
	}
	return nil
}

func (a *atollScale) create(ctx context.Context, resource schema.GroupVersionResource, kind string, spec map[string]any, into any) error {
	made, err := a.api.Resource(resource).Namespace(scaleNamespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"generateName": "scale-"}, "spec": spec,
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, into)
}

func (a *atollScale) await(ctx context.Context, resource schema.GroupVersionResource, name string, into any, done func() bool) error {
	for began := time.Now(); ; {
		u, err := a.api.Resource(resource).Namespace(scaleNamespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
		}
		if err != nil || done() {
			return err
		}
		select {
		case <-time.After(pollInterval(time.Since(began))):
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w: %v", resource.Resource, name, ctx.Err(), u.Object["status"])
		}
	}
}
