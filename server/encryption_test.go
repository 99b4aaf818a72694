package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleetapi "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// canaries are words that only encrypted objects contain.
var canaries = []string{"canary-of-a-secret", "canary-of-a-kubeconfig", "canary-of-a-credential"}

// findCanaries returns the files of a directory that contain a canary, except for keys.
func findCanaries(t *testing.T, dir string) (found []string) {
	t.Helper()
	scanned := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir() && path == filepath.Join(dir, "pki"):
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		scanned++
		for _, c := range canaries {
			// Bytes are base64 in JSON, in one of three alignments.
			for _, form := range append(base64Forms(c), []byte(c)) {
				if bytes.Contains(content, form) {
					found = append(found, fmt.Sprintf("%s: %s", path, c))
				}
			}
		}
		return err
	})
	if err != nil || scanned == 0 {
		t.Fatal(scanned, err)
	}
	return found
}

// base64Forms returns what a word is in base64, wherever it begins.
func base64Forms(word string) (forms [][]byte) {
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + word))
		begin, end := (shift*8+5)/6, (shift+len(word))*8/6
		forms = append(forms, []byte(encoded[begin:end]))
	}
	return forms
}

// TestNothingSecretIsStoredInClear scans all files of a server and of its database after Secrets were
// created, a cluster has joined, and infrastructure was planned and applied.
func TestNothingSecretIsStoredInClear(t *testing.T) {
	control := t.TempDir()
	if err := os.WriteFile(filepath.Join(control, "a"), []byte("x"+base64.StdEncoding.EncodeToString([]byte("1234 "+canaries[0]+" 5"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(findCanaries(t, control)) != 1 {
		t.Fatal("a canary in base64 is not found")
	}
	mirror, provider := demoMirror(t)
	for _, database := range []string{"SQLite", "PostgreSQL"} {
		t.Run(database, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "atoll-clear-") // unlike t.TempDir, its parents allow traversal by other users
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
			config := server.Config{DataDir: filepath.Join(dir, "data"), WithoutWorkloadAPIs: true, ProviderMirrors: []string{filepath.Dir(mirror)},
				ProviderLauncher: []string{os.Args[0], launcherArgument}}
			scan := []string{config.DataDir}
			if database == "PostgreSQL" {
				files := filepath.Join(dir, "database")
				db, err := postgres.Start(t.Context(), postgres.Config{Dir: files})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { db.Stop() })
				config.Datastore = db.URL()
				scan = append(scan, files)
			}
			a := newServer(t, config)
			stopped := false
			defer func() {
				if !stopped {
					_ = a.stop()
				}
			}()
			world := filepath.Join(dir, "world") // the provider runs as another user
			if err := errors.Join(os.Mkdir(world, 0o700), os.Chmod(world, 0o777)); err != nil {
				t.Fatal(err)
			}
			useSecrets(t, a, strings.Replace(provider, `"spec":{`, fmt.Sprintf(`"spec":{"files":[{"path":%q,"access":"ReadWrite"}],`, world), 1), world)
			// While it runs, the write-ahead log has what the database does not have yet.
			for _, dir := range scan {
				if found := findCanaries(t, dir); len(found) > 0 {
					t.Errorf("in clear: %s", strings.Join(found, ", "))
				}
			}
			err = a.stop()
			stopped = true
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range scan {
				if found := findCanaries(t, dir); len(found) > 0 {
					t.Errorf("in clear after the end: %s", strings.Join(found, ", "))
				}
			}
			a = newServer(t, config)
			stopped = false
			if out := a.mustKubectl(t, "", "get", "secret", "credentials", "-o", "jsonpath={.data.password}"); out == "" {
				t.Error("the Secret is empty after a restart")
			}
		})
	}
}

// useSecrets brings each canary into the server.
func useSecrets(t *testing.T, a atoll, provider, world string) {
	t.Helper()
	kubeconfig := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],` +
		`"users":[{"name":"u","user":{"token":"canary-of-a-kubeconfig"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`
	a.mustKubectl(t, "", "create", "secret", "generic", "plain", "--from-literal=k=canary-of-a-secret")
	a.mustKubectl(t, "", "create", "secret", "generic", "credentials", "--from-literal=password=canary-of-a-credential")
	eventually(t, "a cluster and a provider can be written", func(context.Context) error {
		_, _ = a.kubectl(t, "", "create", "namespace", "atoll-system")
		_, _ = a.kubectl(t, "", "create", "secret", "generic", "cluster-east", "-n", "atoll-system", "--from-literal=kubeconfig="+kubeconfig)
		for _, object := range []string{provider, `{"apiVersion":"fleet.atoll.dev/v1alpha1","kind":"Cluster","metadata":{"name":"east"},` +
			`"spec":{"kubeconfigSecretRef":{"namespace":"atoll-system","name":"cluster-east"}}}`} {
			if out, err := a.kubectl(t, object, "apply", "-f", "-"); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		return nil
	})
	a.served(t, "demo")
	for _, object := range []string{
		fmt.Sprintf(`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"ProviderConfig","metadata":{"name":"demo"},"spec":{"provider":"demo","configuration":{"directory":%q}}}`, world),
		`{"apiVersion":"demo.providers.atoll.dev/v1","kind":"Secret","metadata":{"name":"key"},"spec":{"name":"key","secret":{"secretKeyRef":{"name":"credentials","key":"password"}}}}`,
		`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Plan","metadata":{"name":"one"}}`,
	} {
		a.mustKubectl(t, object, "apply", "--server-side", "-n", "default", "-f", "-")
	}
	phase := func(resource, name, want string) string {
		t.Helper()
		digest := ""
		eventually(t, resource+" is "+want, func(context.Context) error {
			out, err := a.kubectl(t, "", "get", resource, name, "-o", "jsonpath={.status.phase} {.status.digest}{.status.message}{.status.errors}")
			if fields := strings.Fields(out); err != nil || len(fields) == 0 || fields[0] != want {
				return fmt.Errorf("%s, %w", out, err)
			} else if len(fields) > 1 {
				digest = fields[1]
			}
			return nil
		})
		return digest
	}
	digest := phase("plans.infra.atoll.dev", "one", "Planned")
	for _, kind := range []string{"Approval", "Apply"} {
		a.mustKubectl(t, fmt.Sprintf(`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":%q,"metadata":{"name":"one"},"spec":{"plan":"one","digest":%q}}`, kind, digest), "create", "-f", "-")
	}
	phase("applies.infra.atoll.dev", "one", "Succeeded")
	states, err := a.dynamic(t).Resource(v1alpha1.ResourceStateResource).Namespace("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(states.Items) != 1 {
		t.Fatal("the state of the resource is missing", err)
	}
	eventually(t, "the cluster was tried", func(ctx context.Context) error {
		c, err := a.dynamic(t).Resource(fleetapi.ClusterResource).Get(ctx, "east", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if conditions, _, _ := unstructured.NestedSlice(c.Object, "status", "conditions"); len(conditions) == 0 {
			return errors.New("no conditions")
		}
		return nil
	})
}
