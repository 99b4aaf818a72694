package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/bare"
	"github.com/atoll-dev/atoll/infra/testproviders/host"
	"github.com/atoll-dev/atoll/infra/testproviders/value"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// TestMain lets this test binary be the process that dies.
func TestMain(m *testing.M) {
	switch os.Getenv("EVIL_TEST") {
	case "serve":
		main()
		os.Exit(0)
	case "apply":
		_, err := apply(context.Background(), New(), thing("apply", os.Getenv("EVIL_TEST_BEHAVIOUR")), os.Getenv("EVIL_TEST_DIRECTORY"))
		fmt.Println("answered", err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func thing(call, behaviour string) string {
	return fmt.Sprintf(`{"name":"n","value":"v","secret":"hunter2","behaviour":%q,"call":%q,"options":{},"part":[],"rule":[],"label":{}}`, behaviour, call)
}

func wire(config string) *tfprotov6.DynamicValue {
	schema := thingSchema()
	v := tftypes.NewValue(schema.ValueType(), nil)
	var err error
	if config != "" {
		v, err = value.Decode([]byte(config), schema.ValueType())
	}
	encoded, wrong := bare.Wire(v, schema)
	if err := errors.Join(err, wrong); err != nil {
		panic(err) // the test's own configuration
	}
	return encoded
}

func plan(ctx context.Context, e *evil, config string) (*tfprotov6.PlanResourceChangeResponse, error) {
	return e.PlanResourceChange(ctx, &tfprotov6.PlanResourceChangeRequest{TypeName: "evil_thing", PriorState: wire(""), ProposedNewState: wire(config), Config: wire(config)})
}

func apply(ctx context.Context, e *evil, config, dir string) (*tfprotov6.ApplyResourceChangeResponse, error) {
	if dir != "" {
		w, err := world.Open(dir)
		if err != nil {
			return nil, err
		}
		e.World = w
	}
	planned, err := plan(ctx, e, config)
	if err != nil {
		return nil, err
	}
	return e.ApplyResourceChange(ctx, &tfprotov6.ApplyResourceChangeRequest{TypeName: "evil_thing", PriorState: wire(""), PlannedState: planned.PlannedState, Config: wire(config), PlannedPrivate: planned.PlannedPrivate})
}

// seen returns the errors of an answer.
func seen(v *tfprotov6.DynamicValue, diagnostics []*tfprotov6.Diagnostic) string {
	for _, d := range diagnostics {
		return fmt.Sprint(d.Severity, " ", d.Summary, " ", d.Attribute)
	}
	if v == nil {
		return "absent"
	}
	whole, err := v.Unmarshal(thingSchema().ValueType())
	switch {
	case err != nil:
		return "no value of the type"
	case whole.IsNull():
		return "null"
	}
	if mood := host.Get(whole, "mood"); len(mood) > 1<<20 {
		return "huge"
	} else if strings.HasPrefix(mood, `"mood`) {
		return mood
	}
	return host.Get(whole, "value")
}

// lies has the effect of each behaviour on an answer.
var lies = map[string]string{
	"":        `"v"`,
	"error":   `ERROR It complains AttributeName("nowhere").ElementKeyInt(7)`,
	"leak":    "WARNING It leaks hunter2",
	"other":   `"something else"`,
	"shifty":  `"mood 1"`,
	"type":    "no value of the type",
	"garbage": "no value of the type",
	"absent":  "absent",
	"null":    "null",
	"unknown": "?",
	"huge":    "huge",
}

func TestLiesInAPlan(t *testing.T) {
	for behaviour, want := range lies {
		answer, err := plan(t.Context(), New(), thing("plan", behaviour))
		if err != nil {
			t.Fatal(err)
		}
		if got := seen(answer.PlannedState, answer.Diagnostics); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", behaviour, got, want)
		}
	}
}

func TestLiesInAnApply(t *testing.T) {
	for behaviour, want := range lies {
		for _, call := range []string{"apply", "create", "update"} {
			answer, err := apply(t.Context(), New(), thing(call, behaviour), "")
			if err != nil {
				t.Fatal(err)
			}
			want := want
			if call == "update" { // an update is not one
				want = lies[""]
			}
			if got := seen(answer.NewState, answer.Diagnostics); !strings.HasPrefix(got, want) {
				t.Errorf("%s in %s: %s, want %s", behaviour, call, got, want)
			}
		}
	}
}

func TestLiesInARead(t *testing.T) {
	for behaviour, want := range lies {
		answer, err := New().ReadResource(t.Context(), &tfprotov6.ReadResourceRequest{TypeName: "evil_thing", CurrentState: wire(thing("read", behaviour))})
		if err != nil {
			t.Fatal(err)
		}
		if got := seen(answer.NewState, answer.Diagnostics); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", behaviour, got, want)
		}
	}
}

// TestSecondPlanDiffers: the plan at apply time differs from the approved one.
func TestSecondPlanDiffers(t *testing.T) {
	e := New()
	for i := range 2 {
		shifty, err := plan(t.Context(), e, thing("plan", "shifty"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := seen(shifty.PlannedState, nil), fmt.Sprintf(`"mood %d"`, i+1); got != want {
			t.Errorf("it plans %s, want %s", got, want)
		}
		replaces, err := plan(t.Context(), e, thing("plan", "replaces"))
		if err != nil {
			t.Fatal(err)
		}
		if len(replaces.RequiresReplace) != i {
			t.Errorf("asked %d times it wants to replace because of %v", i+1, replaces.RequiresReplace)
		}
	}
}

// TestWait stops a call that does not end by itself, and cancels another.
func TestWait(t *testing.T) {
	e := New()
	done := make(chan error)
	go func() {
		_, err := plan(context.Background(), e, thing("plan", "wait"))
		done <- err
	}()
	for tick := time.Tick(time.Millisecond); ; <-tick {
		if _, err := e.StopProvider(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if err == nil {
				t.Fatal("it answers as if nothing was")
			}
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := plan(cancelled, e, thing("plan", "wait")); err == nil {
				t.Fatal("it answers as if nothing was")
			}
			return
		default:
		}
	}
}

// TestDeath makes processes die in the middle of an apply. The world shows their changes.
func TestDeath(t *testing.T) {
	for behaviour, want := range map[string]struct {
		code, objects int
		says          string
	}{
		"":          {0, 1, "answered"},
		"die":       {3, 0, ""},
		"die-after": {3, 1, ""},
		"panic":     {2, 0, "panic: it panics"},
		"refuse":    {0, 0, "it refuses"},
		"flood":     {0, 1, "flood flood"},
	} {
		dir := t.TempDir()
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "EVIL_TEST=apply", "EVIL_TEST_BEHAVIOUR="+behaviour, "EVIL_TEST_DIRECTORY="+dir)
		out, err := child.CombinedOutput()
		if code := child.ProcessState.ExitCode(); code != want.code || !bytes.Contains(out, []byte(want.says)) {
			t.Errorf("%s: exit code %d (%v), want %d and %q:\n%.300s", behaviour, code, err, want.code, want.says, out)
		}
		if behaviour == "flood" && len(out) < 1<<19 {
			t.Errorf("it floods with %d bytes", len(out))
		}
		w, err := world.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := w.Objects("evil_thing"); err != nil || len(all) != want.objects {
			t.Errorf("%s: %d objects (%v), want %d", behaviour, len(all), err, want.objects)
		}
		w.Close()
	}
}

// TestHang makes processes hang, and kills them.
func TestHang(t *testing.T) {
	for behaviour, objects := range map[string]int{"hang": 0, "hang-after": 1} {
		dir := t.TempDir()
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "EVIL_TEST=apply", "EVIL_TEST_BEHAVIOUR="+behaviour, "EVIL_TEST_DIRECTORY="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for tick := time.Tick(time.Millisecond); objects > 0; <-tick {
			if entries, _ := world.ReadLog(dir); len(entries) == objects {
				break
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if said, _ := io.ReadAll(out); len(said) > 0 {
			t.Errorf("%s: it said %q", behaviour, said)
		}
		child.Wait() // reports that it was killed
	}
}

// TestStart compares the output that a host sees instead of a handshake.
func TestStart(t *testing.T) {
	for how, want := range map[string]string{"": "1|6|", "slow": "1|6|", "garbage": "this is no handshake", "endless": "1|6|1|6|1|6|", "die": "", "flood": "1|6|"} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "EVIL_TEST=serve", "EVIL_START="+how, "EVIL_DELAY=10ms", "PLUGIN_PROTOCOL_VERSIONS=6",
			"TF_PLUGIN_MAGIC_COOKIE=d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2")
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		start, _ := bufio.NewReader(out).Peek(max(len(want), 1)) // fewer bytes at the end of the output
		if string(start) != want {
			t.Errorf("%s: it begins with %q, want %q", how, start, want)
		}
		child.Process.Kill() // if it has not exited
		child.Wait()
	}
}

// TestLife takes a correct thing through its life, with a map of blocks and a group.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	h := host.Start(t, New(), fmt.Sprintf(`{"directory":%q}`, dir))
	const config = `{"name":"n","value":"v","label":{"a":{"text":"x"}},"options":{"first":"1"},"part":[{"size":1,"text":"t"}],"rule":[{"port":"80"}]}`
	made := h.Make(host.Thing{Type: "evil_thing"}, config)
	if got := host.Get(made.State, "label") + host.Get(made.State, "options") + host.Get(made.State, "part"); got != `{"a":{"text":"x"}}{"first":"1","second":null}[{"size":1,"text":"t"}]` {
		t.Errorf("the blocks are %s", got)
	}
	next := h.Make(made, strings.Replace(config, `"v"`, `"w"`, 1))
	if host.Get(next.State, "revision") == host.Get(made.State, "revision") {
		t.Error("the revision stays")
	}
	read, says := h.Read(next)
	if len(says) > 0 || host.Show(read.State) != host.Show(next.State) {
		t.Errorf("read %s, %q", host.Show(read.State), says)
	}
	if same := h.Plan(read, strings.Replace(config, `"v"`, `"w"`, 1)); host.Show(same.Planned) != host.Show(read.State) {
		t.Errorf("it plans %s with nothing to do", host.Show(same.Planned))
	}
	if plan := h.Plan(read, strings.Replace(config, `"v"`, `"w","zone":"z"`, 1)); len(plan.Replace) != 1 {
		t.Errorf("another zone replaces because of %q", plan.Replace)
	}
	imported, says := h.Import("evil_thing", strings.Trim(host.Get(next.State, "id"), `"`), nil)
	if len(says) > 0 || host.Show(imported.State) != host.Show(next.State) {
		t.Errorf("imported %s, %q", host.Show(imported.State), says)
	}
	upgraded, says := h.Upgrade("evil_thing", 0, `{"id":"i","name":"n","gone":1}`)
	if len(says) > 0 || host.Get(upgraded, "name") != `"n"` {
		t.Errorf("upgraded to %s, %q", host.Show(upgraded), says)
	}
	lost := next
	lost.Private = nil
	if says := h.Plan(lost, config).Says; len(says) != 1 || !strings.Contains(says[0], "private bytes were lost") {
		t.Errorf("without its private bytes it says %q", says)
	}
	if gone := h.Make(imported, ""); !gone.State.IsNull() {
		t.Errorf("deleted, it is %s", host.Show(gone.State))
	}
	if read, _ := h.Read(next); !read.State.IsNull() {
		t.Errorf("gone, it is read as %s", host.Show(read.State))
	}
}

// TestResourceOverridesProvider: a resource's arguments take precedence over the provider's configuration.
func TestResourceOverridesProvider(t *testing.T) {
	h := host.Start(t, New(), `{"behaviour":"error","call":"plan"}`)
	if says := h.Plan(host.Thing{Type: "evil_thing"}, `{"name":"n"}`).Says; len(says) != 1 {
		t.Errorf("as the provider was told it says %q", says)
	}
	if says := h.Plan(host.Thing{Type: "evil_thing"}, `{"name":"n","behaviour":"flood","call":"read"}`).Says; len(says) != 0 {
		t.Errorf("as the resource was told it says %q", says)
	}
}

// TestHostDetectsViolations tests this module's own test host, which the other tests rely on.
func TestHostDetectsViolations(t *testing.T) {
	h := host.Start(t, New(), `{}`)
	for behaviour, want := range map[string]string{"other": `broken: AttributeName("value")`, "unknown": "broken: unknown after it was applied", "null": "broken: "} {
		_, says := h.Apply(h.Plan(host.Thing{Type: "evil_thing"}, fmt.Sprintf(`{"name":"n","value":"v","behaviour":%q,"call":"apply"}`, behaviour)))
		if len(says) == 0 || !strings.HasPrefix(says[0], want) {
			t.Errorf("%s: the host says %q", behaviour, says)
		}
	}
}
