package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// runTofu runs all steps with OpenTofu, with local state and its default parallelism.
func (s *infraScale) runTofu(ctx context.Context, dir, shape string, count int) ([]infraRun, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	rc := fmt.Sprintf("disable_checkpoint = true\nprovider_installation {\n  dev_overrides {\n    \"providers.test/atoll/wide\" = %q\n  }\n  direct {}\n}\n", filepath.Dir(s.development))
	if err := os.WriteFile(filepath.Join(dir, "tofu.rc"), []byte(rc), 0o600); err != nil {
		return nil, err
	}
	t := &tofuScale{infraScale: s, dir: dir, shape: shape, count: count}
	var out []infraRun
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{stepWrite, func(context.Context) error { return t.write("") }},
		{stepPlan, func(ctx context.Context) error { return t.run(ctx, "plan", "-refresh=false", "-out=plan") }},
		{stepApply, func(ctx context.Context) error { return t.run(ctx, "apply", "plan") }},
		{stepNothing, func(ctx context.Context) error { return t.run(ctx, "plan", "-refresh=false", "-out=plan") }},
		{stepRefresh, func(ctx context.Context) error { return t.run(ctx, "plan", "-out=plan") }},
		{stepOne, func(ctx context.Context) error { return t.run(ctx, "plan", "-refresh=false", "-out=plan") }},
	} {
		if step.name == stepOne {
			if err := t.write("changed"); err != nil {
				return out, err
			}
		}
		progress(fmt.Sprintf("OpenTofu, %s, %d: %s", shape, count, step.name))
		run := infraRun{System: "opentofu", Shape: shape, Count: count, Step: step.name}
		t.pid, t.used = os.Getpid(), 0
		run, err := measureProcess(ctx, run, func() int { return t.pid }, step.do)
		run.CPU = t.used.Seconds()
		out = append(out, run)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return out, nil // a timeout is a result
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

type tofuScale struct {
	*infraScale
	dir, shape string
	count      int
	// pid is the running command's, used the CPU time of the last one.
	pid  int
	used time.Duration
}

// write writes the configuration. A value changes the name of the last resource.
func (t *tofuScale) write(value string) error {
	all := make(map[string]any, t.count)
	for n := range t.count {
		body := t.body(t.shape, t.count, n, func(name string) string { return fmt.Sprintf("${%s.%s.id}", t.typ, name) })
		if n == t.count-1 && value != "" {
			body["name"] = value
		}
		all[resourceName(n)] = body
	}
	text, err := json.Marshal(map[string]any{
		"terraform": map[string]any{"required_providers": map[string]any{wideProvider: map[string]any{"source": "providers.test/atoll/wide"}}},
		"resource":  map[string]any{t.typ: all},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.dir, "main.tf.json"), text, 0o600)
}

func (t *tofuScale) run(ctx context.Context, command string, args ...string) error {
	cmd := exec.CommandContext(ctx, t.tofu, append([]string{command, "-input=false", "-lock=false", "-no-color"}, args...)...)
	cmd.Dir = t.dir
	// Providers built with the usual libraries send all logs to their host by default: see docs/benchmarks.md.
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(t.dir, "tofu.rc"), "TF_IN_AUTOMATION=1", "HOME="+t.dir, "WIDE_TYPES=1",
		"TF_LOG=off", "TF_LOG_PROVIDER=off", "TF_LOG_SDK=off", "TF_LOG_SDK_PROTO=off", "TF_LOG_SDK_FRAMEWORK=off")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		return err
	}
	t.pid = cmd.Process.Pid
	err := cmd.Wait()
	t.used, t.pid = cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), os.Getpid()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("tofu %s: %w", command, ctx.Err())
	case err != nil:
		return fmt.Errorf("tofu %s: %w: %s", command, err, errs.String())
	}
	return nil
}
