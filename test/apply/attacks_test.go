package apply_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

// providerOf returns a Provider from a mirror.
func providerOf(name, source, version, mirror, digest string) string {
	return fmt.Sprintf(`apiVersion: infra.atoll.dev/v1alpha1
kind: Provider
metadata: {name: %s}
spec:
  source: %s
  version: %s
  digests: [%q]
  origin: {filesystemMirror: {path: %q}}
`, name, source, version, digest, mirror)
}

// TestRefusedPackages: a package runs only if its digest is trusted and its archive is harmless. All others are
// refused with the reason, and leave no files.
func TestRefusedPackages(t *testing.T) {
	t.Parallel()
	mirror := t.TempDir()
	bad := filepath.Join(mirror, "providers.test", "atoll", "bad", fmt.Sprintf("terraform-provider-bad_1.0.0_%s_%s.zip", runtime.GOOS, runtime.GOARCH))
	if err := os.MkdirAll(filepath.Dir(bad), 0o700); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	for _, name := range []string{"terraform-provider-bad_v1.0.0", "../../../../outside"} {
		out, err := archive.Create(name)
		if err == nil {
			_, err = out.Write([]byte("#!/bin/sh\n"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	w := startEnvironment(t, "--provider-mirror", mirror)
	sum := fmt.Sprintf("zh:%x", sha256.Sum256(packed.Bytes()))
	zeros := "zh:" + strings.Repeat("0", 64)
	for _, one := range []struct {
		name, manifest, reason string
		says                   []string
	}{
		{"evil", providerOf("evil", w.mirror.Evil.Source, w.mirror.Evil.Version, w.mirror.Packed, zeros), "DigestMismatch", []string{w.mirror.Evil.ZH, "add it only if you trust the package"}},
		{"bad", providerOf("bad", "providers.test/atoll/bad", "1.0.0", mirror, sum), "BadPackage", []string{"../../../../outside", "not a clean relative path"}},
		{"gone", providerOf("gone", "providers.test/atoll/gone", "1.0.0", mirror, sum), "NotFound", []string{"providers.test/atoll/gone"}},
		{"outside", providerOf("outside", "providers.test/atoll/bad", "1.0.0", "/etc", sum), "NotAllowed", []string{"--provider-mirror"}},
	} {
		w.apply(t, one.manifest)
		w.waitField(t, "provider/"+one.name, `.status.conditions[?(@.type=="Installed")].reason`, one.reason)
		for _, want := range one.says {
			w.waitField(t, "provider/"+one.name, `.status.conditions[?(@.type=="Installed")].message`, want)
		}
		if served := w.kubectl(t, "get", "provider", one.name, "-o", `jsonpath={.status.conditions[?(@.type=="Served")].status}`); served == "True" {
			t.Errorf("%s is served", one.name)
		}
	}
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == "outside" {
			t.Errorf("the package wrote %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for manifest, want := range map[string]string{
		strings.ReplaceAll(providerOf("none", "a/b", "1.0.0", mirror, sum), sum, "md5:123"):                         "spec.digests[0]",
		strings.ReplaceAll(providerOf("none", "a/b", "1.0.0", mirror, sum), "digests: ["+`"`+sum+`"]`, "types: []"): "digests are required",
		providerOf("none", "a/b", "latest", mirror, sum):                                                            "spec.version",
		providerOf("None", "a/b", "1.0.0", mirror, sum):                                                             "metadata.name",
	} {
		w.refused(t, manifest, []string{"apply", "-f", "-"}, want)
	}
}

func thing(name, more string) string {
	return fmt.Sprintf("{apiVersion: evil.providers.atoll.dev/v1, kind: Thing, metadata: {name: %s}, spec: {name: %s, %s}}\n---\n", name, name, more)
}

// TestEvilProvider: a provider hangs, floods, dies and lies, in plans and in applies. Each error is reported for
// the resource concerned. Changes of other resources are made, and the server keeps running.
func TestEvilProvider(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "evil")
	evil := w.mirror.Evil
	w.apply(t, providerOf("evil", evil.Source, evil.Version, w.mirror.Packed, evil.H1)+providers.Grant(w.granted)+"  limits: {callTimeout: 10s, applyTimeout: 10s}\n"+fmt.Sprintf(`---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: evil}
spec: {provider: evil, configuration: {directory: %q}}
`, filepath.Join(w.granted, "evil-provider")))
	w.waitField(t, "provider/evil", `.status.conditions[?(@.type=="Served")].status`, "True")

	for _, one := range []struct {
		name, behaviour, call string
		says                  string
	}{
		// Errors of plans.
		{"plan-hangs", "hang", "plan", "the provider did not answer in time (10s)"},
		{"plan-dies", "die", "plan", "its process exited: exit status 3"},
		{"plan-panics", "panic", "plan", "its process exited: exit status 2"},
		{"plan-lies", "other", "plan", "value: has a planned value that differs from the configuration; this is a bug in the provider: report it to its developers"},
		{"plan-garbage", "garbage", "plan", "its answer does not conform to its schema"},
		{"plan-absent", "absent", "plan", "the provider produced an invalid result"},
		{"plan-complains", "error", "plan", "It complains: as told; change its spec"},
		// Errors of applies.
		{"apply-hangs", "hang", "create", "check whether the resource exists; if it does, import it"},
		{"apply-dies", "die-after", "create", "check whether the resource exists; if it does, import it"},
		{"apply-lies", "other", "create", "value: has a value that differs from the planned one; this is a bug in the provider: report it to its developers"},
		{"apply-replans", "shifty", "plan", "the plan is stale: mood: has a value that differs from the planned one; create a new plan"},
		{"apply-garbage", "garbage", "create", "its answer does not conform to its schema"},
		{"apply-unknown", "unknown", "create", "value: is unknown after apply; this is a bug in the provider: report it to its developers"},
	} {
		t.Run(one.name, func(t *testing.T) {
			honest := file("honest-"+one.name, one.name)
			w.apply(t, thing(one.name, fmt.Sprintf("value: wanted, behaviour: %s, call: %s", one.behaviour, one.call))+honest)
			a := w.atoll(t, "apply", "--auto-approve", "--target", "thing/"+one.name, "--target", "file/honest-"+one.name)
			if strings.HasPrefix(one.name, "plan-") {
				a.expect(t, 1, one.name, one.says, "Not planned", "not applied")
			} else {
				a.expect(t, 1, one.name, one.says, "Not applied", "completed changes remain")
				w.waitFile(t, time.Second, "honest-"+one.name, func() string { return one.name })
			}
			t.Logf("%s%s", a.Out, a.Errs)
			w.kubectl(t, "delete", "thing", one.name, "--wait=false")
		})
	}

	t.Log("a provider that floods its standard error completes the call")
	w.apply(t, thing("floods", "value: wanted, behaviour: flood, call: create, size: '25'"))
	w.atoll(t, "apply", "--auto-approve", "--target", "thing/floods").expect(t, 0, "1 added")
	if info, err := os.Stat(w.config.LogFile); err != nil || info.Size() > 20<<20 {
		t.Errorf("the flood is in the server's log: %v, %v", info, err)
	}
	w.atoll(t, "plan", "--target", "file/honest-plan-lies").expect(t, 0, "1 to add")
	programs.Eventually(t, 10*time.Second, "the server is ready", func(ctx context.Context) error {
		_, err := w.tryKubectl(ctx, "", "get", "--raw", "/readyz")
		return err
	})
}

// auditEverything logs all requests and responses, except for kinds with secrets.
const auditEverything = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  resources:
  - {group: "", resources: [secrets]}
  - {group: infra.atoll.dev, resources: [resourcestates, plansecrets]}
- level: RequestResponse
`

// encryptSecrets encrypts the kinds that docs/infrastructure.md lists.
const encryptSecrets = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, resourcestates.infra.atoll.dev, plansecrets.infra.atoll.dev]
  providers:
  - secretbox: {keys: [{name: one, secret: dGhpcyBpcyBhIGtleSBvZiB0aGlydHktdHdvIGJ5dGU=}]}
`

// TestSecretsDoNotLeak: secrets are written, stored and changed, and a provider leaks them. Then the test searches
// for them in the output of commands, the objects, the events, the server's log, the audit log, and every byte of
// the datastore.
func TestSecretsDoNotLeak(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := map[string]string{"audit.yaml": auditEverything, "encryption.yaml": encryptSecrets}
	for name, text := range config {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := startEnvironment(t, "--v=4", "--audit-policy-file", filepath.Join(dir, "audit.yaml"), "--audit-log-path", filepath.Join(dir, "audit.log"),
		"--encryption-provider-config", filepath.Join(dir, "encryption.yaml"))
	evil := w.mirror.Evil
	w.apply(t, providerOf("evil", evil.Source, evil.Version, w.mirror.Packed, evil.ZH)+providers.Grant(w.granted)+fmt.Sprintf(`---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: evil, namespace: default}
spec: {provider: evil, configuration: {directory: %q}}
`, filepath.Join(w.granted, "evil-provider")))
	w.waitField(t, "provider/evil", `.status.conditions[?(@.type=="Served")].status`, "True")

	secrets := []string{"first-hunter2-a1", "second-hunter2-b2", "password-hunter2-c3", "token-hunter2-d4"}
	const marker = "seen-by-everybody-e5"
	write := func(value string) {
		w.apply(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: keys}, stringData: {secret: %s, password: %s, token: %s}}", value, secrets[2], secrets[3]))
	}
	write(secrets[0])
	w.apply(t, fmt.Sprintf(`apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: demo, namespace: default}
spec: {provider: demo, configuration: {directory: %q, token: {secretKeyRef: {name: keys, key: token}}}}
---
apiVersion: demo.providers.atoll.dev/v1
kind: Secret
metadata: {name: main}
spec:
  name: %s
  secret: {secretKeyRef: {name: keys, key: secret}}
  login: {user: root, password: {secretKeyRef: {name: keys, key: password}}}
  connection: {secret: made}
---
apiVersion: demo.providers.atoll.dev/v1
kind: Network
metadata: {name: tagged}
spec: {name: tagged, cidr: 10.1.0.0/16, tags: {secret: '${demo_secret["main"].secret}'}}
---
`, w.world, marker)+thing("leaks", "secret: {secretKeyRef: {name: keys, key: secret}}, behaviour: leak, call: plan")+
		thing("leaks-later", "secret: {secretKeyRef: {name: keys, key: secret}}, behaviour: leak, call: create"))
	var output strings.Builder
	does := func(code int, args ...string) {
		a := w.atoll(t, args...)
		output.WriteString(a.Out + a.Errs)
		a.expect(t, code)
	}
	does(0, "plan")
	does(0, "apply", "--auto-approve")
	does(0, "plan", "-o", "json")
	write(secrets[1])
	does(2, "plan", "--detailed-exitcode")
	does(2, "plan", "-o", "json", "--detailed-exitcode")
	does(0, "apply", "--auto-approve")
	write("wrong-type")
	does(0, "drift")
	made := w.kubectl(t, "get", "secret", "made", "-o", "jsonpath={.data}")
	if !strings.Contains(made, "token") {
		t.Errorf("the connection Secret has %s", made)
	}
	if !strings.Contains(output.String(), "(sensitive") {
		t.Errorf("no plan marks a value as sensitive:\n%s", output.String())
	}
	for kind := range strings.FieldsSeq(w.kubectl(t, "api-resources", "--verbs=list", "-o", "name")) {
		if kind == "secrets" || kind == "resourcestates.infra.atoll.dev" || kind == "plansecrets.infra.atoll.dev" {
			continue
		}
		out, err := w.tryKubectl(t.Context(), "", "get", kind, "-A", "-o", "json")
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		output.WriteString(out)
	}
	w.server.Kill() // everything that it keeps is on disk now

	found := false
	search := func(where string, content []byte) {
		found = found || bytes.Contains(content, []byte(marker))
		for _, secret := range secrets {
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
				if at := bytes.Index(content, []byte(form)); at >= 0 {
					t.Errorf("%s is in %s:\n%q", secret, where, content[max(0, at-200):min(len(content), at+200)])
				}
			}
		}
	}
	search("the output", []byte(output.String()))
	if !found {
		t.Error("the marker is not in the output, so the search proves nothing")
	}
	found = false
	for _, where := range []string{w.config.Dir, w.config.LogFile, filepath.Join(dir, "audit.log")} {
		err := filepath.WalkDir(where, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			search(path, content)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if !found {
			t.Errorf("the marker is not in %s, so the search proves nothing", where)
		}
		found = where == w.config.Dir // the log may lack the marker
	}
}
