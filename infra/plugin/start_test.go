package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestStartFails: the error of a failed start has the reason, and no secrets.
func TestStartFails(t *testing.T) { directAndSupervised(t, testStartFails) }

func testStartFails(t *testing.T, w way) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		mode, path string
		timeout    time.Duration
		says       []string
	}{
		"exits with an error":       {mode: "refuse", says: []string{"exit status 7", "the licence has expired, and the token is (sensitive)"}},
		"prints nothing":            {mode: "silent", timeout: 200 * time.Millisecond, says: []string{"within 200ms"}},
		"reports a foreign address": {mode: "elsewhere", says: []string{"192.0.2.1:443", "instead of a socket in its own directory"}},
		"speaks a newer protocol":   {mode: "future", says: []string{"incompatible API version", "Plugin version: 7"}},
		"prints garbage":            {mode: "babble", timeout: 5 * time.Second, says: []string{"could not be started"}},
		"does not exist":            {path: "/nowhere/provider", says: []string{"/nowhere/provider", "no such file"}},
		"is not executable":         {path: text, says: []string{"exec format error"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := fakeSettings(row.mode)
			settings.Env["FAKE_TOKEN"] = "another-secret"
			binary := fakeBinary(t)
			if row.path != "" {
				binary.Path = row.path
			}
			i, _, err := w.host(t, Config{StartTimeout: row.timeout}).Open(t.Context(), binary, settings)
			if i != nil || !errors.Is(err, providerapi.ErrNotCalled) || !errors.Is(err, providerapi.ErrUnavailable) {
				t.Fatalf("opened: %v, %v", i, err)
			}
			for _, part := range append(row.says, "provider fake") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q: %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "another-secret") || len(err.Error()) > 3*shownOutput {
				t.Errorf("the error has too much in it: %v", err)
			}
		})
	}
}

// TestRejectedConfiguration: if the provider rejects its configuration, Open returns its
// diagnostics. If it accepts it first and rejects it after a restart, each call fails.
func TestRejectedConfiguration(t *testing.T) { directAndSupervised(t, testRejectedConfiguration) }

func testRejectedConfiguration(t *testing.T, w way) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	h := w.host(t, Config{Clock: clock, Idle: time.Minute})
	settings := fakeSettings("6")
	settings.Config = with(settings.Config, "fail", cty.StringVal("expired"))
	i, diagnostics, err := h.Open(t.Context(), fakeBinary(t), settings)
	if i != nil || err != nil || show(diagnostics) != `[(warning true: This is a fake  at "") (warning false: Not with (sensitive) expired at "fail")]` {
		t.Errorf("refused: %v, %s, %v", i, show(diagnostics), err)
	}

	file := filepath.Join(t.TempDir(), "expired")
	settings.Config = with(settings.Config, "fail", cty.StringVal("if:"+file))
	i, diagnostics, err = h.Open(t.Context(), fakeBinary(t), settings)
	if err != nil || show(diagnostics) != `[(warning true: This is a fake  at "")]` {
		t.Fatalf("accepted: %s, %v", show(diagnostics), err)
	}
	first := mustRead(t, i, "")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for alive(first) {
		clock.Step(time.Minute)
		time.Sleep(time.Millisecond)
	}
	if _, err := read(t.Context(), i, ""); !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "Not with (sensitive)") {
		t.Errorf("a call once the configuration is refused: %v", err)
	}
	settings.Config = cty.ObjectVal(map[string]cty.Value{"token": cty.True})
	if _, _, err := h.Open(t.Context(), fakeBinary(t), settings); err == nil || !strings.Contains(err.Error(), "configuration of provider fake") {
		t.Errorf("a configuration of the wrong type: %v", err)
	}
}

// fakeIs returns the fake's description of its process.
func fakeIs(t *testing.T, i *Instance) map[string]cty.Value {
	t.Helper()
	a, err := i.ReadData(t.Context(), "fake_process", cty.NullVal(fakeProcess()))
	if err != nil {
		t.Fatal(err)
	}
	return a.Value.AsValueMap()
}

// TestCleanEnvironment: of the server's environment, only named variables reach the provider.
func TestCleanEnvironment(t *testing.T) { directAndSupervised(t, testCleanEnvironment) }

func testCleanEnvironment(t *testing.T, w way) {
	t.Setenv("ATOLL_TEST_SECRET", "of the server")
	t.Setenv("ATOLL_TEST_PROXY", "http://proxy")
	t.Setenv("TF_LOG", "trace")
	h := w.host(t, Config{Inherit: []string{"ATOLL_TEST_PROXY", "ATOLL_TEST_ABSENT"}})
	settings := fakeSettings("6")
	settings.Env["GOGC"] = "200"
	settings.Env["PLUGIN_UNIX_SOCKET_DIR"] = "/elsewhere"
	is := fakeIs(t, openFake(t, h, settings))
	directory := textOf(is["directory"])
	if parent := filepath.Dir(directory); parent != h.config.Directory {
		t.Errorf("it works in %s", directory)
	}
	var lines []string
	for _, v := range is["environment"].AsValueSlice() {
		line := strings.ReplaceAll(v.AsString(), directory, "PRIVATE")
		if certificate, _, ok := strings.Cut(line, "-----BEGIN"); ok {
			line = certificate + "…"
		}
		if strings.HasPrefix(line, "PLUGIN_PROTOCOL_VERSIONS=") {
			line = "PLUGIN_PROTOCOL_VERSIONS=…" // in any order
		}
		lines = append(lines, line)
	}
	golden(t, "environment.txt", strings.Join(lines, "\n")+"\n")
	if !is["group"].RawEquals(is["pid"]) {
		t.Errorf("it is in group %#v and has pid %#v", is["group"], is["pid"])
	}
	if runtime.GOOS == "linux" && !strings.Contains(textOf(is["status"]), "NoNewPrivs:\t1") {
		t.Error("it can get new privileges")
	}
	if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v, %v", info.Mode(), err)
	}
}

// TestUnprivileged: a server that runs as root can run providers as another user.
func TestUnprivileged(t *testing.T) { directAndSupervised(t, testUnprivileged) }

func testUnprivileged(t *testing.T, w way) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a process as another user")
	}
	t.Parallel()
	// Other users cannot access the directory where go test puts the test binary.
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	binary := Binary{Name: "fake", Path: filepath.Join(dir, "fake")}
	copyFile(t, fakeBinary(t).Path, binary.Path)
	h := w.host(t, Config{User: &User{UID: 65534, GID: 65533}})
	settings := fakeSettings("6")
	i, _, err := h.Open(t.Context(), binary, settings)
	if err != nil {
		t.Fatal(err)
	}
	is := fakeIs(t, i)
	for _, line := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65533\t65533\t65533\t65533", "CapEff:\t0000000000000000"} {
		if runtime.GOOS == "linux" && !strings.Contains(textOf(is["status"]), line) {
			t.Errorf("its status lacks %q:\n%s", line, textOf(is["status"]))
		}
	}
	if !is["uid"].RawEquals(cty.NumberIntVal(65534)) {
		t.Errorf("it runs as %#v", is["uid"])
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLimits: Limits bound concurrency and rate.
func TestLimits(t *testing.T) { directAndSupervised(t, testLimits) }

func testLimits(t *testing.T, w way) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	settings := fakeSettings("6")
	settings.Limits = Limits{Parallel: 3, PerSecond: 10, Burst: 20}
	i := openFake(t, w.host(t, Config{Clock: clock}), settings)
	var callers sync.WaitGroup
	release := filepath.Join(t.TempDir(), "release")
	for range 3 {
		callers.Go(func() { mustRead(t, i, "until:"+release) })
	}
	i.waitInFlight(t, 3)
	full, gaveUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer gaveUp()
	if _, err := read(full, i, ""); !errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("a fourth call: %v", err)
	}
	// Local calls do not wait for remote ones.
	if _, err := i.ValidateResource(t.Context(), "fake_thing", written(thing("name", "a"))); err != nil {
		t.Errorf("during three remote calls: %v", err)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 16 {
		callers.Go(func() { mustRead(t, i, "") })
	}
	callers.Wait()
	const atOnce = 3 + 1 // a validation
	if most := fakeIs(t, i)["most"]; most.GreaterThan(cty.NumberIntVal(atOnce)).True() {
		t.Errorf("%#v concurrent calls", most)
	}
	// The burst is used up, which does not affect local calls.
	if _, err := i.ValidateResource(t.Context(), "fake_thing", written(thing("name", "a"))); err != nil {
		t.Error(err)
	}
	done := make(chan int, 1)
	go func() {
		pid, _ := read(context.WithoutCancel(t.Context()), i, "")
		done <- pid
	}()
	eventually(t, "a call that waits", func() bool { return clock.Waiters() == w.waiters(2) })
	clock.Step(99 * time.Millisecond)
	select {
	case <-done:
		t.Fatal("it did not wait")
	default:
	}
	clock.Step(time.Millisecond)
	if pid := <-done; pid == 0 {
		t.Error("no answer")
	}
	// A cancelled caller learns that its call was not made.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := read(ctx, i, ""); !errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

// TestOutputFlood: 64 MiB on standard error do no harm, with and without a keeper.
func TestOutputFlood(t *testing.T) { directAndSupervised(t, testOutputFlood) }

func testOutputFlood(t *testing.T, w way) {
	t.Parallel()
	var seen counter
	settings := fakeSettings("6")
	settings.Output = &seen
	i := openFake(t, w.host(t, Config{}), settings)
	mustRead(t, i, "flood")
	mustRead(t, i, "")
	i.mu.Lock()
	kept := len(i.current.output.String())
	i.mu.Unlock()
	if kept > tailSize {
		t.Errorf("%d bytes are retained", kept)
	}
	eventually(t, "the provider's output", func() bool { return seen.count() >= 64<<20 })
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(b)
	return len(b), nil
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// TestTail compares the tail with everything written, for sizes around that of the ring.
func TestTail(t *testing.T) {
	for _, size := range []int{1, 7, 1000, tailSize - 1, tailSize, tailSize + 1, 3 * tailSize} {
		var all bytes.Buffer
		var kept tail
		for n := 0; all.Len() < 4*tailSize; n++ {
			chunk := bytes.Repeat([]byte(fmt.Sprint(n)), size)[:size]
			all.Write(chunk)
			kept.Write(chunk)
		}
		if want := string(all.Bytes()[all.Len()-tailSize:]); kept.String() != want {
			t.Errorf("chunks of %d bytes: the tail is not the end", size)
		}
	}
	var kept tail
	kept.Write([]byte(strings.Repeat("noise\n", 100) + "panic: this is it\n" + strings.Repeat("frame\n", 2000)))
	if last := kept.last(); !strings.HasPrefix(last, "panic: this is it") || len(last) > shownOutput {
		t.Errorf("an error would show %q", last)
	}
}

// TestDirectory: the leftovers of a previous Host are removed, other files are not touched.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"p-123", "keep"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "deep"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h, err := New(Config{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	h.Close()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "keep" {
		t.Errorf("left: %v, %v", entries, err)
	}
	for _, bad := range []string{"", "/tmp/" + strings.Repeat("x", maxDirectoryLength)} {
		if _, err := New(Config{Directory: bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
