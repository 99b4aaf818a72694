package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// applierEnv makes this test binary a server that makes one call after the other until it is
// killed. Its value is an applier in JSON.
const applierEnv = "ATOLL_FAKE_APPLIER"

// An applier configures such a server.
type applier struct {
	Directory, Journal string
	// Log is the provider's log of applied changes. Outcomes has a line for each answer that the
	// server received.
	Log, Outcomes string
	// Calls is the number of calls to make.
	Calls int
	// Behave, if not empty, is the fake's behaviour in each call.
	Behave string
}

func (a applier) behave(n int) string {
	if a.Behave != "" {
		return a.Behave
	}
	return fmt.Sprintf("log:%s,%dms", a.Log, 10+n*67%290)
}

func runApplier(text string) {
	must := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	var a applier
	must(json.Unmarshal([]byte(text), &a))
	path, err := os.Executable()
	must(err)
	h, err := New(Config{Directory: a.Directory, Keeper: keeperCommand(path), Journal: a.Journal, JournalKey: make([]byte, keyBytes)})
	must(err)
	i, _, err := h.Open(context.Background(), Binary{Name: "fake", Path: path}, fakeSettings("6"))
	must(err)
	fmt.Println("ready")
	done := map[string]bool{}
	outcomes, _ := os.ReadFile(a.Outcomes) // may not exist yet
	for line := range strings.Lines(string(outcomes)) {
		done[strings.Fields(line)[0]] = true
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; n < a.Calls; n = int(next.Add(1)) - 1 {
				name := strconv.Itoa(n)
				if !done[name] {
					answer, err := i.Apply(context.Background(), providerapi.ApplyRequest{
						Call: "call " + name, Type: "fake_thing", Planned: thing("name", name, "behave", a.behave(n)),
					})
					must(err)
					must(appendLine(a.Outcomes, fmt.Sprintf("%s %s %s", name, textOf(answer.State.Value.GetAttr("id")), pidIn(answer))))
				}
				must(h.Acknowledge("call " + name))
			}
		})
	}
	workers.Wait()
	h.Close()
	fmt.Println("done")
}

func newApplier(t *testing.T) applier {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the test reads /proc")
	}
	dir, err := os.MkdirTemp("", "atoll-p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	files := t.TempDir()
	return applier{
		Directory: dir, Journal: filepath.Join(files, "journal"), Log: filepath.Join(files, "log"), Outcomes: filepath.Join(files, "outcomes"),
	}
}

// A serverLife is one run of an applier's server.
type serverLife struct {
	t    *testing.T
	cmd  *exec.Cmd
	said chan string // closed at the end of its output
}

func (a applier) run(t *testing.T) *serverLife {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	l := &serverLife{t: t, cmd: exec.Command(fakeBinary(t).Path), said: make(chan string, 100)}
	l.cmd.Env = append(os.Environ(), applierEnv+"="+string(text), raceVariable+"="+raceOptions)
	l.cmd.Stderr = os.Stderr
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.said <- lines.Text()
		}
	}()
	return l
}

func (l *serverLife) kill() {
	if err := l.cmd.Process.Kill(); err != nil {
		l.t.Error(err)
	}
	l.end()
}

// end waits for the server to end and reports unexpected output.
func (l *serverLife) end() {
	for line := range l.said {
		if line != "ready" && line != "done" {
			l.t.Error(line)
		}
	}
	_ = l.cmd.Wait() // reports that it was killed
}

// awaitReady waits until the provider is open.
func (l *serverLife) awaitReady() {
	select {
	case line := <-l.said:
		if line != "ready" {
			l.t.Fatalf("unexpected output of a server: %q", line)
		}
	case <-time.After(time.Minute):
		l.t.Fatal("a server ended before it was ready")
	}
}

// TestKilledAtRandom kills servers with SIGKILL at random moments, in the middle of calls, and lets
// the next one repeat the calls. The provider must have made each call once, and the answer must be
// that of this one execution.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	a := newApplier(t)
	a.Calls = 1 << 30
	const kills = 32
	for n := range kills {
		l := a.run(t)
		if n%4 != 3 {
			l.awaitReady()
		}
		time.Sleep(rand.N(350 * time.Millisecond)) // a random moment
		l.kill()
		if t.Failed() {
			t.Fatalf("after %d kills", n+1)
		}
	}
	begun := 0
	for _, line := range applied(t, a.Log) {
		n, err := strconv.Atoi(line[0])
		if err != nil {
			t.Fatal(err)
		}
		begun = max(begun, n+1)
	}
	if begun < kills {
		t.Errorf("only %d calls were made in %d lives", begun, kills)
	}
	a.Calls = begun + 8 // includes calls that were begun and not made
	last := a.run(t)
	last.awaitReady()
	last.end()
	a.check(t)
	t.Logf("%d calls over %d kills", a.Calls, kills)
}

// check verifies that each call was made once, that each answer is correct, and that no process or
// file is left.
func (a applier) check(t *testing.T) {
	t.Helper()
	made := map[string][]string{}
	for _, line := range applied(t, a.Log) {
		if made[line[0]] != nil {
			t.Errorf("made twice: %s, by %v and %v", line[0], made[line[0]], line)
		}
		made[line[0]] = line
	}
	told := map[string]bool{}
	for _, line := range applied(t, a.Outcomes) {
		switch by := made[line[0]]; {
		case by == nil:
			t.Errorf("an answer without a call: %v", line)
		case line[1] != "id-of-"+line[0] || line[2] != by[1]:
			t.Errorf("the answer %v, and it was made by %v", line, by)
		}
		told[line[0]] = true
	}
	for n := range a.Calls {
		if name := strconv.Itoa(n); made[name] == nil || !told[name] {
			t.Errorf("call %s: made by %v, answered %v", name, made[name], told[name])
		}
	}
	for _, line := range made {
		for _, text := range line[1:] {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the end of all providers and keepers", func() bool { return !alive(pid) })
		}
	}
	for _, dir := range []string{a.Directory, a.Journal} {
		eventually(t, "an empty "+dir, func() bool {
			left, err := os.ReadDir(dir)
			left = slices.DeleteFunc(left, func(entry os.DirEntry) bool { return entry.Name() == identityFile })
			return err == nil && len(left) == 0
		})
	}
}

// TestKeeperOutlivesTheServer: a slow call continues when the server is killed, and the next server
// waits for it. Meanwhile the provider's directory is not removed.
func TestKeeperOutlivesTheServer(t *testing.T) {
	t.Parallel()
	a := newApplier(t)
	gate := filepath.Join(t.TempDir(), "gate")
	a.Calls, a.Behave = 1, "gate:"+gate
	l := a.run(t)
	l.awaitReady()
	eventually(t, "the call", func() bool { return len(applied(t, gate+".begun")) == 1 })
	l.kill()
	homes, err := filepath.Glob(filepath.Join(a.Directory, privatePrefix+"*"))
	if err != nil || len(homes) != 1 {
		t.Fatalf("directories: %v, %v", homes, err)
	}
	next := a.run(t)
	next.awaitReady()
	if _, err := os.Stat(homes[0]); err != nil {
		t.Errorf("the provider's directory: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next.end()
	// The call that was begun is the one whose answer arrived.
	a.Log = gate + ".begun"
	a.check(t)
}
