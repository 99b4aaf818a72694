package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// demoMirror builds the test provider as a filesystem mirror, and returns a Provider
// that installs it from there.
func demoMirror(t *testing.T) (mirror, provider string) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "-C", "../infra/testproviders", "run", "./mirror", "-dir", dir, "-only", "demo")
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	var made []struct{ Source, Version, ZH string }
	if err := json.Unmarshal(out, &made); err != nil {
		t.Fatal(err)
	}
	mirror = filepath.Join(dir, "packed")
	return mirror, fmt.Sprintf(`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Provider","metadata":{"name":"demo"},
"spec":{"source":%q,"version":%q,"digests":[%q],"origin":{"filesystemMirror":{"path":%q}}}}`, made[0].Source, made[0].Version, made[0].ZH, mirror)
}

func networks() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "demo." + v1alpha1.ProvidersDomain, Version: v1alpha1.ProvidersVersion, Resource: "networks"}
}

// served waits until a Provider's types are served.
func (a atoll) served(t *testing.T, provider string) {
	t.Helper()
	client := a.dynamic(t).Resource(v1alpha1.ProviderResource)
	eventually(t, "the types of Provider "+provider+" are served", func(ctx context.Context) error {
		p, err := client.Get(ctx, provider, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(p.Object, "status", "conditions")
		for _, c := range conditions {
			if m := c.(map[string]any); m["type"] == v1alpha1.ProviderServed && m["status"] == "True" {
				_, err := a.dynamic(t).Resource(networks()).Namespace("default").List(ctx, metav1.ListOptions{})
				return err
			}
		}
		return fmt.Errorf("%v", conditions)
	})
}

const network = `{"apiVersion":"demo.providers.atoll.dev/v1","kind":"Network","metadata":{"name":"%s","namespace":"default"},"spec":%s}`

// TestProviderTypesAreServed installs a provider from a mirror and uses its types with
// kubectl, also after a restart.
func TestProviderTypesAreServed(t *testing.T) {
	mirror, provider := demoMirror(t)
	dir, err := os.MkdirTemp("", "atoll-infra-") // unlike t.TempDir, its parents allow traversal by other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := server.Config{DataDir: dir, WithoutWorkloadAPIs: true, ProviderMirrors: []string{filepath.Dir(mirror)},
		ProviderLauncher: []string{os.Args[0], launcherArgument}}
	if os.Geteuid() == 0 {
		config.ProviderUser = "65534:65534"
	}
	a := newServer(t, config)
	stopped := false
	defer func() {
		if !stopped {
			_ = a.stop()
		}
	}()
	eventually(t, "Providers can be written", func(context.Context) error {
		out, err := a.kubectl(t, provider, "apply", "-f", "-")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	a.served(t, "demo")
	if out := a.mustKubectl(t, "", "get", "providers"); !strings.Contains(out, "True") {
		t.Errorf("kubectl get providers: %s", out)
	}

	// Objects are validated.
	out, err := a.kubectl(t, fmt.Sprintf(network, "main", `{"name":"main","cidr":"10.0.0.0/16","tags":{"a":"b"}}`), "apply", "--server-side", "-f", "-")
	if err != nil {
		t.Fatal(err, out)
	}
	for spec, want := range map[string][]string{
		`{"name":"x","cidr":{"a":1}}`:                 {"spec.cidr"},
		`{"name":"x","gateway":"10.0.0.1"}`:           {"spec.gateway"},
		`{"cidr":"10.0.0.0/16"}`:                      {"spec.name", "requires it"},
		`{"name":"x","cidr":"${demo_network[0].id}"}`: {"spec.cidr"},
		`{"name":"x","depends_on":["${a}"]}`:          {"spec.depends_on[0]"},
		`{"name":"x","lifecycle":{"prevent":true}}`:   {"spec.lifecycle.prevent"},
	} {
		out, err := a.kubectl(t, fmt.Sprintf(network, "bad", spec), "apply", "--server-side", "-f", "-")
		if err == nil {
			t.Errorf("%s was accepted: %s", spec, out)
		}
		for _, word := range want {
			if !strings.Contains(out, word) {
				t.Errorf("%s: the error lacks %q: %s", spec, word, out)
			}
		}
	}
	// An object to be imported need not be complete.
	imported := strings.Replace(fmt.Sprintf(network, "imported", `{}`), `"name":"imported",`, `"name":"imported","annotations":{"infra.atoll.dev/import-id":"net-1"},`, 1)
	a.mustKubectl(t, imported, "apply", "-f", "-")

	// Two field managers own their own fields.
	client := a.dynamic(t).Resource(networks()).Namespace("default")
	other := []byte(`{"apiVersion":"demo.providers.atoll.dev/v1","kind":"Network","metadata":{"name":"main"},"spec":{"tags":{"c":"d"}}}`)
	merged, err := client.Patch(t.Context(), "main", types.ApplyPatchType, other, metav1.PatchOptions{FieldManager: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if tags, _, _ := unstructured.NestedStringMap(merged.Object, "spec", "tags"); len(tags) != 2 {
		t.Errorf("tags %v, want those of both", tags)
	}
	clash := []byte(`{"apiVersion":"demo.providers.atoll.dev/v1","kind":"Network","metadata":{"name":"main"},"spec":{"cidr":"10.9.0.0/16"}}`)
	if _, err := client.Patch(t.Context(), "main", types.ApplyPatchType, clash, metav1.PatchOptions{FieldManager: "other"}); !apierrors.IsConflict(err) {
		t.Errorf("another manager's field: %v, want a conflict", err)
	}

	explained := a.mustKubectl(t, "", "explain", "networks.spec")
	for _, word := range []string{"cidr", "<string>", "depends_on", "lifecycle"} {
		if !strings.Contains(explained, word) {
			t.Errorf("kubectl explain lacks %q:\n%s", word, explained)
		}
	}
	if out := a.mustKubectl(t, "", "explain", "servers.spec", "--recursive"); !strings.Contains(out, "<number>") && !strings.Contains(out, "<boolean>") {
		t.Errorf("kubectl explain lacks the types of fields that may be expressions:\n%s", out)
	}

	a.haveRoles(t)
	if config.ProviderUser != "" {
		onlyProvidersArePassable(t, dir)
	}
	restarted := func(config server.Config) {
		t.Helper()
		stopped = true
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		a = newServer(t, config)
		stopped = false
	}
	// Nothing is lost, although the mirror is no longer allowed.
	config.ProviderMirrors = nil
	restarted(config)
	eventually(t, "the object exists after a restart", func(ctx context.Context) error {
		o, err := a.dynamic(t).Resource(networks()).Namespace("default").Get(ctx, "main", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if o.GetUID() != merged.GetUID() {
			return errors.New("it is another object")
		}
		return nil
	})
	out, err = a.kubectl(t, fmt.Sprintf(network, "second", `{"name":"second","cidr":"10.1.0.0/16"}`), "apply", "-f", "-")
	if err != nil {
		t.Errorf("a type served from the stored schema: %v %s", err, out)
	}
	eventually(t, "its status says that the mirror is not allowed", func(context.Context) error {
		out := a.mustKubectl(t, "", "get", "provider", "demo", "-o", "yaml")
		if !strings.Contains(out, v1alpha1.ReasonNotAllowed) || !strings.Contains(out, "--provider-mirror") {
			return errors.New(out)
		}
		return nil
	})
}

// onlyProvidersArePassable checks that other users can access only the providers'
// directory.
func onlyProvidersArePassable(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && entry.Name() != "providers" && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %s", entry.Name(), info.Mode())
		}
	}
}

// haveRoles checks the permissions of the infrastructure roles.
func (a atoll) haveRoles(t *testing.T) {
	t.Helper()
	roles := a.client(t).RbacV1().ClusterRoles()
	for name, resources := range map[string][]string{
		"atoll:infra-viewer": {"plans", "approvals"}, "atoll:infra-editor": {"plans", "applies"},
		"atoll:infra-approver": {"approvals"}, "atoll:infra-operator": {"providers", "providerconfigs"},
		"atoll:infra-granter": {"referencegrants"},
	} {
		eventually(t, "role exists: "+name, func(ctx context.Context) error {
			role, err := roles.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			var has []string
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "resourcestates") || slices.Contains(rule.Resources, "plansecrets") {
					t.Errorf("%s reads secrets", name)
				}
				if slices.Contains(rule.Resources, "referencegrants") && slices.Contains(rule.Verbs, "create") && name != "atoll:infra-granter" {
					t.Errorf("%s grants references", name)
				}
				if slices.Contains(rule.Resources, "approvals") && slices.Contains(rule.Verbs, "create") && name != "atoll:infra-approver" {
					t.Errorf("%s approves", name)
				}
				has = append(has, rule.Resources...)
			}
			for _, r := range resources {
				if !slices.Contains(has, r) {
					return fmt.Errorf("it has %v", has)
				}
			}
			return nil
		})
	}
}

func TestBadProviderUser(t *testing.T) {
	for _, user := range []string{"nobody", "1000", "1:x", "-1:5", ":", "0:0", "1000:0"} {
		s, err := server.New(t.Context(), server.Config{DataDir: t.TempDir(), ProviderUser: user})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "UID:GID") {
			t.Errorf("%q: %v", user, err)
		}
	}
}
