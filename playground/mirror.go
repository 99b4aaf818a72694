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
	"runtime"

	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// The demo's test provider, and the file with the objects that install and configure it.
const (
	demoProvider = "demo"
	providerFile = "provider.yaml"
)

// buildMirror builds the demo provider as a filesystem mirror, and writes a manifest that installs
// it from there. It returns the flags with which a server accepts that mirror.
func buildMirror(ctx context.Context, dir string) (flags []string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	mirror, world := filepath.Join(dir, "mirror"), filepath.Join(dir, "world")
	if err := os.MkdirAll(world, 0o700); err != nil {
		return nil, err
	}
	contained, err := canContain(dir, world)
	if err != nil {
		return nil, err
	}
	// A Provider grants no path that leads through links.
	if world, err = filepath.EvalSymlinks(world); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "-C", filepath.Join("infra", "testproviders"), "run", "./mirror", "-dir", mirror, "-only", demoProvider)
	var stderr bytes.Buffer
	build.Stderr = &stderr
	out, err := build.Output()
	if err != nil {
		return nil, fmt.Errorf("build it with go, in the repository's root: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var made []struct{ Source, Version, ZH, H1 string }
	if err := json.Unmarshal(out, &made); err != nil || len(made) != 1 {
		return nil, errors.Join(fmt.Errorf("read the output of the build: %s", out), err)
	}
	packed := filepath.Join(mirror, "packed")
	objects, err := providerObjects(made[0].Source, made[0].Version, []string{made[0].ZH, made[0].H1}, packed, world, contained)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, providerFile), objects, 0o600); err != nil {
		return nil, err
	}
	return []string{"--provider-mirror", packed}, nil
}

// canContain reports whether the demo's provider can work contained: on Linux, and with a way to its
// files. The provider of a server that is root has a user of its own, and gets a way through dir.
func canContain(dir, world string) (bool, error) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return runtime.GOOS == "linux", nil
	}
	if err := errors.Join(os.Chmod(dir, 0o711), os.Chmod(world, 0o777)); err != nil {
		return false, err
	}
	for parent := filepath.Dir(dir); parent != filepath.Dir(parent); parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false, err
		}
	}
	return true, nil
}

// providerObjects returns the Provider, and a ProviderConfig for the namespace default. The provider
// manages files in the directory world as its infrastructure.
func providerObjects(source, version string, digests []string, mirror, world string, contained bool) ([]byte, error) {
	group := v1alpha1.Group + "/" + v1alpha1.Version
	provider := map[string]any{
		"apiVersion": group, "kind": "Provider", "metadata": map[string]any{"name": demoProvider},
		"spec": map[string]any{"source": source, "version": version, "digests": digests,
			"origin": map[string]any{"filesystemMirror": map[string]any{"path": mirror}},
			"files":  []any{map[string]any{"path": world, "access": v1alpha1.FileReadWrite}}},
	}
	if !contained {
		spec := provider["spec"].(map[string]any)
		delete(spec, "files")
		spec["containment"] = v1alpha1.ContainmentNone
	}
	config := map[string]any{
		"apiVersion": group, "kind": "ProviderConfig", "metadata": map[string]any{"name": demoProvider, "namespace": "default"},
		"spec": map[string]any{"provider": demoProvider, "configuration": map[string]any{"directory": world, "refuse_in_use": true}},
	}
	var out bytes.Buffer
	for _, object := range []any{provider, config} {
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}
