// Package providers builds the providers of infra/testproviders as a mirror, once for each test
// binary, for tests of the whole system.
package providers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// Package is a provider in the mirror.
type Package struct{ Source, Version, Packed, ZH, H1 string }

// Mirror is a directory that servers install providers from.
type Mirror struct {
	Packed     string // the directory of packages
	Demo, Evil Package
	Demo5      Package // on the oldest SDK
}

var built struct {
	once   sync.Once
	err    error
	dir    string
	mirror *Mirror
}

// Build returns the mirror, which the first caller builds. Drop removes it.
func Build(t testing.TB) *Mirror {
	t.Helper()
	built.once.Do(func() { built.err = build() })
	if built.err != nil {
		t.Fatalf("build the test providers: %v", built.err)
	}
	return built.mirror
}

// Drop removes the mirror, after the last test.
func Drop() {
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
}

func build() (err error) {
	if built.dir, err = os.MkdirTemp("", "atoll-mirror-"); err != nil {
		return err
	}
	_, here, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(here), "..", "..", "infra", "testproviders")
	command := exec.Command("go", "-C", source, "run", "./mirror", "-dir", built.dir, "-only", "demo,evil,demo5")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return err
	}
	var all []Package
	if err := json.Unmarshal(out, &all); err != nil {
		return err
	}
	built.mirror = &Mirror{Packed: filepath.Join(built.dir, "packed"), Demo: all[0], Evil: all[1], Demo5: all[2]}
	return nil
}

// World creates a directory for the resources of providers, which keep them in files. The users of
// contained providers reach it, whichever user the server runs as.
func World(t testing.TB, dir string) string {
	t.Helper()
	world := filepath.Join(dir, "world")
	err := os.MkdirAll(world, 0o700)
	if err == nil {
		err = os.Chmod(world, 0o777) // whatever the umask is
	}
	for parent := dir; err == nil && parent != filepath.Clean(os.TempDir()) && parent != "/"; parent = filepath.Dir(parent) {
		var info os.FileInfo
		if info, err = os.Stat(parent); err == nil {
			err = os.Chmod(parent, info.Mode().Perm()|0o011)
		}
	}
	if err == nil {
		world, err = filepath.EvalSymlinks(world)
	}
	if err != nil {
		t.Fatal(err)
	}
	return world
}

// Grant returns the lines of a Provider's spec that let it write below a directory.
func Grant(dir string) string {
	return fmt.Sprintf("  files: [{path: %q, access: ReadWrite}]\n", dir)
}

// Manifests returns the Provider of the demo, which can write below granted, and a ProviderConfig with
// which it stores its resources as files below world.
func (m *Mirror) Manifests(namespace, granted, world string) string {
	return fmt.Sprintf(`apiVersion: infra.atoll.dev/v1alpha1
kind: Provider
metadata: {name: demo}
spec:
  source: %s
  version: %s
  digests: [%q]
  origin: {filesystemMirror: {path: %q}}
%s---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: demo, namespace: %s}
spec:
  provider: demo
  configuration: {directory: %q}
`, m.Demo.Source, m.Demo.Version, m.Demo.ZH, m.Packed, Grant(granted), namespace, world)
}
