package hostile

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

// inherited is a variable of the server's environment that no provider may see.
const inherited, inheritedValue = "ATOLL_TEST_CREDENTIAL", "hunter2-of-the-server"

// providerStage is a server with two providers: a demo, and one that attacks.
type providerStage struct {
	dir, data, world string
	mirror           *providers.Mirror
	server           *atoll.Server
}

// asNobody is a command that runs the child's program, this test binary, as an unprivileged user. go test keeps the
// binary in a directory that only its own user can enter, so that a copy runs.
func asNobody(t *testing.T, dir string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	program := filepath.Join(dir, "atoll.test")
	out, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(out, in)
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv (of util-linux) is not installed")
	}
	return []string{setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", program}
}

// newProviderStage starts a server: unprivileged, and with a data directory whose parents only its owner can pass through,
// if they are set.
func newProviderStage(t *testing.T, unprivileged, private bool) *providerStage {
	t.Helper()
	t.Setenv(inherited, inheritedValue)
	dir := t.TempDir()
	s := &providerStage{dir: dir, mirror: providers.Build(t), world: providers.World(t, dir), data: filepath.Join(dir, "atoll")}
	if private {
		s.data = filepath.Join(dir, "private", "atoll")
		if err := os.Mkdir(filepath.Dir(s.data), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := atoll.Config{Dir: s.data, LogFile: filepath.Join(dir, "atoll.log"), Flags: []string{"--provider-mirror", s.mirror.Packed}}
	if err := os.Mkdir(s.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if unprivileged {
		config.Wrapper = asNobody(t, dir)
		if err := errors.Join(os.Chown(s.data, 65534, 65534), os.Chmod(filepath.Dir(s.mirror.Packed), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), settle)
	defer stop()
	var err error
	if s.server, err = atoll.Start(ctx, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.server.Kill()
		if t.Failed() {
			log, _ := os.ReadFile(config.LogFile)
			t.Logf("the server's log ends with:\n%s", log[max(0, len(log)-8000):])
		}
	})
	s.install(t)
	return s
}

func (s *providerStage) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return programs.Run(ctx, s.dir, "kubectl", s.server.Kubeconfig, stdin, args...)
}

func (s *providerStage) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := s.kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// install installs and configures both providers, each with a directory of its own.
func (s *providerStage) install(t *testing.T) {
	t.Helper()
	evil := s.mirror.Evil
	manifest := s.mirror.Manifests("default", s.world, filepath.Join(s.world, "demo")) + fmt.Sprintf(`---
apiVersion: infra.atoll.dev/v1alpha1
kind: Provider
metadata: {name: evil}
spec:
  source: %s
  version: %s
  digests: [%q]
  origin: {filesystemMirror: {path: %q}}
%s---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: evil, namespace: default}
spec: {provider: evil, configuration: {directory: %q}}
`, evil.Source, evil.Version, evil.ZH, s.mirror.Packed, providers.Grant(s.world), filepath.Join(s.world, "evil"))
	programs.Eventually(t, time.Minute, "the providers are created", func(ctx context.Context) error {
		_, err := s.kubectl(ctx, manifest, "apply", "-f", "-")
		return err
	})
	programs.Eventually(t, settle, "the providers are served and configured", func(ctx context.Context) error {
		if _, err := s.kubectl(ctx, "", "wait", "--for=condition=Served", "--timeout=20s", "provider/demo", "provider/evil"); err != nil {
			return err
		}
		_, err := s.kubectl(ctx, "", "wait", "--for=condition=Configured", "--timeout=20s", "providerconfig/demo", "providerconfig/evil")
		return err
	})
}

// find returns the only path that matches a pattern.
func find(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// processes returns the processes whose command lines contain a text.
func processes(t *testing.T, text string) (out []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		content, err := os.ReadFile(line)
		if err == nil && strings.Contains(string(content), text) {
			pid := 0
			if _, err := fmt.Sscanf(line, "/proc/%d/cmdline", &pid); err == nil && pid != os.Getpid() {
				out = append(out, pid)
			}
		}
	}
	return out
}

// running returns the processes of a provider that this server runs, and the working directory of the first one. Other tests may run the same
// program.
func (s *providerStage) running(t *testing.T, program string) (out []int, working string) {
	t.Helper()
	for _, pid := range processes(t, program) {
		in, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err == nil && descends(pid, s.server.PID()) {
			out, working = append(out, pid), cmp.Or(working, in)
		}
	}
	return out, working
}

// descends reports whether a process, or one above it, was started by another one.
func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		// After the name, which may have any character: the state and the parent.
		_, fields, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " ")
		state := ""
		if _, err := fmt.Sscan(fields, &state, &pid); err != nil {
			return false
		}
	}
	return pid == from
}

// attackOf returns what a provider is to try. Each attempt must fail.
func (s *providerStage) attackOf(t *testing.T, report string, user bool) map[string]any {
	t.Helper()
	abstract := fmt.Sprintf("@atoll-hostile-%d-%s", os.Getpid(), filepath.Base(report))
	listener, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	// The demo's process, which runs since it was configured.
	demo := find(t, filepath.Join(s.data, "providers", "store", "packages", "*", "terraform-provider-demo*"))
	others, working := s.running(t, "terraform-provider-demo")
	if len(others) == 0 {
		t.Fatal("the other provider does not run")
	}
	keys := []string{"pki/ca.key", "pki/ca.crt", "pki/service-account.key", "admin.kubeconfig", "atoll.db", "atoll.db-wal", "pki/provider-calls.key", "providers/served/demo.json"}
	var read []string
	for _, key := range keys {
		read = append(read, find(t, filepath.Join(s.data, key)))
	}
	attack := map[string]any{
		"Report":  report,
		"Read":    append(read, demo, "/etc/shadow", "/etc/passwd", "/proc/cmdline", "/proc/1/environ"),
		"List":    []string{s.data, filepath.Dir(working), working, filepath.Dir(demo), filepath.Dir(s.data), "/", "/root", "/home", "/proc", "/tmp", "/etc", "/run"},
		"Write":   []string{filepath.Join(s.data, "atoll.db"), filepath.Join(s.data, "new"), filepath.Join(s.data, "pki/ca.crt"), demo, filepath.Join(working, "new"), "/tmp/atoll-hostile-new", "/etc/hosts"},
		"Run":     []string{"/bin/sh", demo},
		"Sockets": []string{abstract}, "Processes": append(others, s.server.PID()),
	}
	if user { // the user of the server can change its own files' modes, which Landlock does not restrict
		attack["Change"] = read
	}
	return attack
}

// TestProviderIsContained: a provider that attacks the server while it plans and applies gets an error for each attempt,
// and its plans and applies work. So does the other provider.
func TestProviderIsContained(t *testing.T) {
	for _, one := range []struct {
		name                  string
		unprivileged, private bool
	}{{"server of root", false, false}, {"server of root in a private directory", false, true}, {"server of another user", true, false}} {
		t.Run(one.name, func(t *testing.T) {
			if os.Geteuid() != 0 && !one.unprivileged {
				t.Skip("only root can start a server as root")
			}
			s := newProviderStage(t, one.unprivileged && os.Geteuid() == 0, one.private)
			s.attack(t, "plan", !one.unprivileged)
			s.attack(t, "create", !one.unprivileged)
			s.apply(t, `{apiVersion: demo.providers.atoll.dev/v1, kind: File, metadata: {name: honest}, spec: {name: honest, content: works}}`)
			s.atoll(t, "apply", "--auto-approve", "--target", "file/honest")
			if text, err := os.ReadFile(filepath.Join(s.world, "demo", "files", "honest")); err != nil || string(text) != "works" {
				t.Errorf("the other provider wrote %q: %v", text, err)
			}
			if _, err := s.kubectl(t.Context(), "", "get", "--raw", "/readyz"); err != nil {
				t.Error(err)
			}
			s.uncontained(t)
		})
	}
}

func (s *providerStage) atoll(t *testing.T, args ...string) {
	t.Helper()
	answer, err := programs.Ask(t.Context(), s.dir, "atoll", s.server.Kubeconfig, args...)
	if err != nil || answer.Code != 0 {
		t.Fatalf("atoll %s: exit code %d, %v\n%s%s", strings.Join(args, " "), answer.Code, err, answer.Out, answer.Errs)
	}
}

// attack has the provider attack during a call, and checks the outcomes.
func (s *providerStage) attack(t *testing.T, call string, user bool) {
	t.Helper()
	report := filepath.Join(s.world, "evil", "report-"+call+".json")
	targets, err := json.Marshal(s.attackOf(t, report, user))
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, fmt.Sprintf("{apiVersion: evil.providers.atoll.dev/v1, kind: Thing, metadata: {name: %s}, spec: {name: %s, value: wanted, behaviour: attack, call: %s, size: %q}}",
		"attacks-"+call, "attacks-"+call, call, targets))
	s.atoll(t, "apply", "--auto-approve", "--target", "thing/attacks-"+call)
	text, err := os.ReadFile(report)
	outcomes := map[string]string{}
	if err = errors.Join(err, json.Unmarshal(text, &outcomes)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s", call, text)
	if strings.Contains(outcomes["environment"], inheritedValue) || strings.Contains(outcomes["environment"], "ATOLL") {
		t.Errorf("%s: its environment is %s", call, outcomes["environment"])
	}
	if user && !strings.HasPrefix(outcomes["user"], "60") || !user && strings.HasPrefix(outcomes["user"], "0:") {
		t.Errorf("%s: it runs as %s", call, outcomes["user"])
	}
	delete(outcomes, "environment")
	delete(outcomes, "user")
	if len(outcomes) < 50 {
		t.Errorf("%s: only %d attempts were made", call, len(outcomes))
	}
	for attempt, outcome := range outcomes {
		if !isDenied(attempt, outcome) {
			t.Errorf("%s: %s: %q, want EACCES or EPERM", call, attempt, outcome)
		}
	}
	for _, key := range []string{"pki/ca.crt", "pki/ca.key", "atoll.db"} {
		if info, err := os.Stat(filepath.Join(s.data, key)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %s is damaged: %v", call, key, err)
		}
	}
}

// uncontained shows that containment is what stops the attack: a provider whose Provider has none reads the keys.
func (s *providerStage) uncontained(t *testing.T) {
	t.Helper()
	if _, err := s.kubectl(t.Context(), "", "patch", "provider", "evil", "--type=merge", "--patch", `{"spec":{"containment":"None","files":null}}`); err != nil {
		t.Fatal(err)
	}
	programs.Eventually(t, time.Minute, "the provider is not contained", func(ctx context.Context) error {
		out, err := s.kubectl(ctx, "", "get", "provider", "evil", "-o", `jsonpath={.status.containment}{.status.conditions[?(@.type=="Served")].status}{.status.observedGeneration}`)
		if err == nil && out != "True2" {
			err = errors.New(out)
		}
		return err
	})
	key, report := filepath.Join(s.data, "pki", "ca.key"), filepath.Join(s.world, "evil", "report-uncontained.json")
	targets, err := json.Marshal(map[string]any{"Report": report, "Read": []string{key}})
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, fmt.Sprintf("{apiVersion: evil.providers.atoll.dev/v1, kind: Thing, metadata: {name: free}, spec: {name: free, value: wanted, behaviour: attack, call: plan, size: %q}}", targets))
	s.atoll(t, "plan", "--target", "thing/free")
	text, err := os.ReadFile(report)
	if err != nil || !strings.Contains(string(text), fmt.Sprintf("%q:\"\"", "read "+key)) {
		t.Errorf("a provider without containment got %s, %v", text, err)
	}
}

// isDenied reports whether an attempt failed because it was denied.
func isDenied(attempt, outcome string) bool {
	what, _, _ := strings.Cut(attempt, " ")
	switch outcome {
	case "EACCES", "EPERM":
		return true
	case "ENOSYS":
		return what == "io_uring_setup"
	case "EXDEV": // Landlock's answer to a link into another directory
		return what == "link"
	case "ENOENT": // the file was not created before
		return strings.HasSuffix(attempt, "new") && (what == "link" || what == "truncate" || what == "remove")
	}
	return false
}

// TestGrantsOfServerFilesAreRefused: no Provider can grant what belongs to the server, and the error names the field.
func TestGrantsOfServerFilesAreRefused(t *testing.T) {
	s := attacked(t)
	manifest := func(spec string) string {
		return "{apiVersion: infra.atoll.dev/v1alpha1, kind: Provider, metadata: {name: greedy}, spec: {source: a/b, version: 1.0.0, digests: ['zh:" + strings.Repeat("0", 64) +
			"'], origin: {registry: {}}, " + spec + "}}"
	}
	apply := func(ctx context.Context, spec string) (string, error) {
		return programs.Run(ctx, s.dir, "kubectl", s.server.Kubeconfig, manifest(spec), "apply", "--dry-run=server", "-f", "-")
	}
	programs.Eventually(t, time.Minute, "Providers can be written", func(ctx context.Context) error {
		_, err := apply(ctx, "files: [{path: /etc/aws}, {path: /srv/world, access: ReadWrite}], network: {tcpPorts: [443]}")
		return err
	})
	data := filepath.Join(s.dir, "atoll")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(data, link); err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		"files: [{path: /etc/aws}, {path: '" + data + "'}]": "spec.files[1].path",
		"files: [{path: '" + data + "/pki/ca.key'}]":        "keep the provider's files elsewhere",
		"files: [{path: '" + s.dir + "'}]":                  "name only the files and directories that the provider needs",
		"files: [{path: '" + link + "/pki'}]":               "spec.files[0].path",
		"files: [{path: /}]":                                "spec.files[0].path",
		"files: [{path: /etc/../root}]":                     "must be a clean path",
		"files: [{path: etc}]":                              "spec.files[0].path",
		"files: [{path: /etc/aws, access: Execute}]":        "spec.files[0].access",
		"network: {tcpPorts: [70000]}":                      "spec.network.tcpPorts[0]",
		"containment: Some":                                 "spec.containment",
		"containment: None, files: [{path: /etc/aws}]":      "remove files and network",
	} {
		_, err := apply(t.Context(), spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}
