package plugin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == keeperArgument {
		if err := Keep(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == launcherArgument {
		if err := Launch(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if text := os.Getenv(probeEnv); text != "" {
		runProbe(text)
		return
	}
	if mode := os.Getenv(fakeEnv); mode != "" {
		runFake(mode)
		return
	}
	if dir := os.Getenv(serverEnv); dir != "" {
		runServer(dir)
		return
	}
	if text := os.Getenv(applierEnv); text != "" {
		runApplier(text)
		return
	}
	os.Exit(m.Run())
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", path, diff)
	}
}

// keeperArgument makes this test binary a keeper.
const keeperArgument = "provider-keeper"

// keeperCommand starts a test binary as a keeper. A Host gives its keepers no environment.
func keeperCommand(binary string) []string {
	return []string{"/usr/bin/env", raceVariable + "=" + raceOptions, binary, keeperArgument}
}

// A way is how providers run: as direct children or with keepers.
type way struct{ keeper bool }

// directAndSupervised runs a test without and with keepers.
func directAndSupervised(t *testing.T, test func(t *testing.T, w way)) {
	t.Run("direct", func(t *testing.T) { test(t, way{false}) })
	t.Run("supervised", func(t *testing.T) { test(t, way{true}) })
}

// withKeeper adds a keeper and a journal to a Config.
func withKeeper(t testing.TB, config Config, journal string) Config {
	config.Keeper, config.Journal, config.JournalKey = keeperCommand(fakeBinary(t).Path), journal, make([]byte, keyBytes)
	return config
}

func (w way) host(t testing.TB, config Config) *Host {
	t.Helper()
	if w.keeper {
		config = withKeeper(t, config, t.TempDir())
	}
	return newHost(t, config)
}

// waiters converts a number of waiters on a Host's clock, counted without keepers.
func (w way) waiters(n int) int {
	if w.keeper {
		n++ // the journal's next sweep
	}
	return n
}

// newHost creates a Host in a directory with a short path.
func newHost(t testing.TB, config Config) *Host {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-p")
	if err != nil {
		t.Fatal(err)
	}
	if config.Directory == "" {
		config.Directory = dir
	}
	h, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		left, err := filepath.Glob(filepath.Join(config.Directory, "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

func fakeBinary(t testing.TB) Binary {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Binary{Name: "fake", Path: path}
}

const secretToken = "hunter2-is-secret"

func fakeSettings(mode string) Settings {
	return Settings{
		Config: cty.ObjectVal(map[string]cty.Value{"token": cty.StringVal(secretToken), "fail": cty.NullVal(cty.String)}),
		Env:    fakeVariables(mode),
	}
}

func openFake(t testing.TB, h *Host, settings Settings) *Instance {
	t.Helper()
	i, diagnostics, err := h.Open(t.Context(), fakeBinary(t), settings)
	if err != nil || diagnostics.Failed() {
		t.Fatalf("opening: %v, %v", diagnostics, err)
	}
	return i
}

// thing is a fake_thing with the given attributes, name and value in turn.
func thing(pairs ...string) cty.Value {
	v := fakeNothing()
	for n := 0; n < len(pairs); n += 2 {
		v = with(v, pairs[n], cty.StringVal(pairs[n+1]))
	}
	return v
}

// read makes the fake behave as given, and returns its PID.
func read(ctx context.Context, i *Instance, behave string) (pid int, err error) {
	a, err := i.Read(ctx, providerapi.ReadRequest{Type: "fake_thing", State: providerapi.State{Value: thing("behave", behave)}})
	if err != nil {
		return 0, err
	}
	n, _ := a.State.Value.GetAttr("pid").AsBigFloat().Int64()
	return int(n), nil
}

func mustRead(t *testing.T, i *Instance, behave string) (pid int) {
	t.Helper()
	pid, err := read(t.Context(), i, behave)
	if err != nil {
		t.Fatalf("%s: %v", behave, err)
	}
	return pid
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout waiting for %s", what)
		}
	}
}

// alive reports whether a process runs. A zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// TestCalls makes each call in both protocol versions, over the life of a resource. The golden
// files have every answer.
func TestCalls(t *testing.T) {
	for _, mode := range []string{"5", "6", "6,plandestroy", "6,supervised"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			mode, keeper := strings.CutSuffix(mode, ",supervised")
			i := openFake(t, way{keeper}.host(t, Config{}), fakeSettings(mode))
			var out strings.Builder
			tell := func(what string, answer any, err error) {
				// The protobuf library varies the spaces in its errors on purpose, so that no one
				// compares them.
				out.WriteString(strings.ReplaceAll(fmt.Sprintf("%s: %s, error %v\n", what, show(answer), err), "\u00a0", " "))
			}
			life(t.Context(), i, tell)
			golden(t, "calls-"+strings.ReplaceAll(mode, ",", "-")+".txt", out.String())
		})
	}
}

func written(config cty.Value) *providerapi.Configuration {
	return &providerapi.Configuration{Value: config}
}

func life(ctx context.Context, i *Instance, tell func(string, any, error)) {
	config := with(thing("name", "a", "once", "only once"), "any", cty.UnknownVal(cty.DynamicPseudoType))
	diagnostics, err := i.ValidateResource(ctx, "fake_thing", written(config))
	tell("valid", diagnostics, err)
	diagnostics, err = i.ValidateResource(ctx, "fake_thing", written(fakeNothing()))
	tell("invalid", diagnostics, err)
	diagnostics, err = i.ValidateData(ctx, "fake_process", cty.NullVal(fakeProcess()))
	tell("data valid", diagnostics, err)

	create := providerapi.PlanRequest{Type: "fake_thing", Prior: cty.NullVal(fakeThing()), Proposed: config, Config: written(config)}
	planned, err := i.Plan(ctx, create)
	tell("plan to create", planned, err)
	made, err := i.Apply(ctx, providerapi.ApplyRequest{
		Type: "fake_thing", Prior: create.Prior, Planned: planned.Planned, Config: config, Private: planned.Private, Identity: planned.Identity,
	})
	made.State.Value = with(made.State.Value, "pid", cty.NullVal(cty.Number))
	tell("create", made, err)
	seen, err := i.Read(ctx, providerapi.ReadRequest{Type: "fake_thing", State: made.State})
	seen.State.Value = with(seen.State.Value, "pid", cty.NullVal(cty.Number))
	tell("read", seen, err)
	renamed := with(seen.State.Value, "name", cty.StringVal("b"))
	planned, err = i.Plan(ctx, providerapi.PlanRequest{
		Type: "fake_thing", Prior: seen.State.Value, Proposed: renamed, Config: written(renamed), Private: seen.State.Private, Identity: seen.State.Identity,
	})
	tell("plan to rename", planned, err)
	planned, err = i.Plan(ctx, providerapi.PlanRequest{Type: "fake_thing", Prior: seen.State.Value, Private: seen.State.Private, Identity: seen.State.Identity})
	tell("plan to delete", planned, err)
	deleted, err := i.Apply(ctx, providerapi.ApplyRequest{Type: "fake_thing", Prior: seen.State.Value, Private: planned.Private})
	tell("delete", deleted, err)
	gone, err := i.Read(ctx, providerapi.ReadRequest{Type: "fake_thing", State: providerapi.State{Value: thing("name", "gone")}})
	tell("read deleted", gone, err)

	upgraded, err := i.Upgrade(ctx, "fake_thing", providerapi.StoredState{Version: 1, JSON: []byte(`{"old":true}`)})
	tell("upgrade", upgraded, err)
	upgraded, err = i.Upgrade(ctx, "fake_thing", providerapi.StoredState{Flat: map[string]string{"name": "flat"}})
	tell("upgrade flat state", upgraded, err)
	found, err := i.Import(ctx, "fake_thing", "id-7")
	tell("import", found, err)

	_, err = i.Read(ctx, providerapi.ReadRequest{Type: "fake_none"})
	tell("an unknown type", errors.Is(err, providerapi.ErrUnknownType), err)
	_, err = i.ReadData(ctx, "fake_thing", cty.NilVal)
	tell("an unknown data source", errors.Is(err, providerapi.ErrUnknownType), err)
	_, err = i.ValidateResource(ctx, "fake_thing", written(cty.ObjectVal(map[string]cty.Value{"name": cty.True})))
	tell("a value of another type", nil, err)
	leaked, err := i.Read(ctx, providerapi.ReadRequest{Type: "fake_thing", State: providerapi.State{Value: thing("behave", "leak")}})
	tell("a returned write-only value", [2]any{leaked.State.Value.GetAttr("once"), leaked.Diagnostics}, err)
	for _, behave := range []string{"defer:read", "fail:no luck, says " + secretToken, "rubbish", "huge"} {
		_, err = read(ctx, i, behave)
		tell(behave, errors.Is(err, providerapi.ErrUnavailable), err)
	}
	_, err = i.Plan(ctx, providerapi.PlanRequest{Type: "fake_thing", Proposed: thing("behave", "defer:plan"), Config: written(fakeNothing())})
	tell("a deferred plan", nil, err)
}

// show formats an answer readably.
func show(answer any) string {
	switch a := answer.(type) {
	case providerapi.Diagnostics:
		lines := make([]string, 0, len(a))
		for _, d := range a {
			lines = append(lines, fmt.Sprintf("(warning %v: %s %s at %q)", d.Warning, d.Summary, d.Detail, formatPath(d.Attribute)))
		}
		return "[" + strings.Join(lines, " ") + "]"
	case providerapi.PlanAnswer:
		replace := make([]string, 0, len(a.Replace))
		for _, path := range a.Replace {
			replace = append(replace, formatPath(path))
		}
		return fmt.Sprintf("%s private %q replace %v lenient %v %s", showState(providerapi.State{Value: a.Planned, Identity: a.Identity}),
			a.Private, replace, a.Lenient, show(a.Diagnostics))
	case providerapi.ApplyAnswer:
		return fmt.Sprintf("%s lenient %v %s", showState(a.State), a.Lenient, show(a.Diagnostics))
	case providerapi.ReadAnswer:
		return showState(a.State) + " " + show(a.Diagnostics)
	case providerapi.UpgradeAnswer:
		return showState(providerapi.State{Value: a.Value}) + " " + show(a.Diagnostics)
	case providerapi.ImportAnswer:
		all := ""
		for _, f := range a.Found {
			all += f.Type + " " + showState(f.State) + " "
		}
		return all + show(a.Diagnostics)
	case [2]any:
		return fmt.Sprintf("%#v %s", a[0], show(a[1]))
	}
	return fmt.Sprint(answer)
}

func showState(s providerapi.State) string {
	return fmt.Sprintf("%s private %q identity %s", compact(s.Value), s.Private, compact(s.Identity))
}

// compact formats a value without null attributes.
func compact(v cty.Value) string {
	switch {
	case v == cty.NilVal:
		return "none"
	case v.IsNull():
		return "null"
	case !v.Type().IsObjectType() || !v.IsKnown():
		return fmt.Sprintf("%#v", v)
	}
	var parts []string
	for name, attribute := range v.AsValueMap() {
		if !attribute.IsNull() {
			parts = append(parts, name+" = "+compact(attribute))
		}
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ", ") + "}"
}
