package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestProcessDies: after a process has died in a call, and again after the second one, the next
// call waits for the back-off on the fake clock and gets a new process.
func TestProcessDies(t *testing.T) { directAndSupervised(t, testProcessDies) }

func testProcessDies(t *testing.T, w way) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	i := openFake(t, w.host(t, Config{Clock: clock}), fakeSettings("6"))
	first := mustRead(t, i, "")
	for n, wait := range []time.Duration{minBackoff, 2 * minBackoff, 4 * minBackoff} {
		_, err := read(t.Context(), i, "die")
		if !errors.Is(err, providerapi.ErrUnavailable) || errors.Is(err, providerapi.ErrNotCalled) {
			t.Fatalf("death %d: %v", n, err)
		}
		for _, part := range []string{"exit status 2", "panic: I cannot go on", "(sensitive)", "ReadResource of fake_thing"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("death %d: the error lacks %q: %v", n, part, err)
			}
		}
		if strings.Contains(err.Error(), secretToken) {
			t.Errorf("death %d: the error has the token: %v", n, err)
		}
		next := make(chan int, 1)
		go func() {
			pid, err := read(context.WithoutCancel(t.Context()), i, "")
			if err != nil {
				t.Error(err)
			}
			next <- pid
		}()
		// One waiter is the idle check, the other the back-off.
		eventually(t, "the back-off", func() bool { return clock.Waiters() == w.waiters(2) })
		clock.Step(wait - time.Millisecond)
		select {
		case pid := <-next:
			t.Fatalf("after death %d, process %d answered before the back-off was over", n, pid)
		default:
		}
		if clock.Waiters() != w.waiters(2) {
			t.Fatalf("after death %d the back-off ended early", n)
		}
		clock.Step(time.Millisecond)
		if pid := <-next; pid == first || pid == 0 {
			t.Errorf("after death %d, the dead process %d answers", n, pid)
		}
	}
	// A caller that cancels during the back-off learns that its call was not made.
	if _, err := read(t.Context(), i, "die"); err == nil {
		t.Fatal("the process did not die")
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := read(ctx, i, ""); !errors.Is(err, providerapi.ErrNotCalled) || !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

// TestCallHangs: a call that hangs fails, its process receives no new calls, and the process's
// other calls finish.
func TestCallHangs(t *testing.T) { directAndSupervised(t, testCallHangs) }

func testCallHangs(t *testing.T, w way) {
	t.Parallel()
	settings := fakeSettings("6")
	settings.Limits.CallTimeout = 3 * time.Second // the other calls must be answered within it
	i := openFake(t, w.host(t, Config{}), settings)
	first := mustRead(t, i, "")
	release := filepath.Join(t.TempDir(), "release")
	other := make(chan providerapi.ApplyAnswer, 1)
	go func() {
		a, err := i.Apply(context.WithoutCancel(t.Context()), providerapi.ApplyRequest{Type: "fake_thing", Planned: thing("name", "slow", "behave", "until:"+release)})
		if err != nil {
			t.Error(err)
		}
		other <- a
	}()
	eventually(t, "the other call", func() bool { return len(i.limiter.remote) == 1 })
	_, err := read(t.Context(), i, "hang")
	if !errors.Is(err, providerapi.ErrUnavailable) || !strings.Contains(err.Error(), "did not answer in time (3s)") {
		t.Fatalf("a hung call: %v", err)
	}
	if next := mustRead(t, i, ""); next == first {
		t.Error("the process with the hung call receives calls")
	}
	if !alive(first) {
		t.Error("the process was killed during a call")
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := <-other; a.State.Value == cty.NilVal || textOf(a.State.Value.GetAttr("id")) != "id-of-slow" {
		t.Errorf("the other call: %#v", a.State.Value)
	}
	eventually(t, "the end of the process with the hung call", func() bool { return !alive(first) })
}

// TestProcessFreezes stops the whole process, which then does not react to StopProvider.
func TestProcessFreezes(t *testing.T) { directAndSupervised(t, testProcessFreezes) }

func testProcessFreezes(t *testing.T, w way) {
	t.Parallel()
	settings := fakeSettings("6")
	settings.Limits.CallTimeout = 3 * time.Second // the other calls must be answered within it
	i := openFake(t, w.host(t, Config{StopGrace: 100 * time.Millisecond}), settings)
	first := mustRead(t, i, "")
	if _, err := read(t.Context(), i, "freeze"); !errors.Is(err, providerapi.ErrUnavailable) {
		t.Fatalf("a call to a frozen process: %v", err)
	}
	if next := mustRead(t, i, ""); next == first {
		t.Error("the frozen process answers")
	}
	eventually(t, "its end", func() bool { return !alive(first) })
}

// TestRecycled: after RecycleAfter calls another process takes over without affecting a call.
func TestRecycled(t *testing.T) { directAndSupervised(t, testRecycled) }

func testRecycled(t *testing.T, w way) {
	t.Parallel()
	i := openFake(t, w.host(t, Config{RecycleAfter: 50}), fakeSettings("6"))
	first := mustRead(t, i, "")
	release := filepath.Join(t.TempDir(), "release")
	slow := make(chan int, 1)
	go func() {
		pid, err := read(context.WithoutCancel(t.Context()), i, "until:"+release)
		if err != nil {
			t.Error(err)
		}
		slow <- pid
	}()
	eventually(t, "the slow call", func() bool { return len(i.limiter.remote) == 1 })
	pids := map[int]bool{}
	var mu sync.Mutex
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for enough := false; !enough; {
				pid, err := read(t.Context(), i, "")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				pids[pid] = true
				enough = len(pids) >= 3
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	if !alive(first) {
		t.Error("the first process ended before its call")
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if pid := <-slow; pid != first {
		t.Errorf("the slow call was answered by %d, not %d", pid, first)
	}
	eventually(t, "the end of the first", func() bool { return !alive(first) })
}

// TestIdleProcessIsStopped: an idle process is stopped, and started again for the next call.
func TestIdleProcessIsStopped(t *testing.T) { directAndSupervised(t, testIdleProcessIsStopped) }

func testIdleProcessIsStopped(t *testing.T, w way) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	i := openFake(t, w.host(t, Config{Clock: clock, Idle: time.Minute}), fakeSettings("6"))
	first := mustRead(t, i, "")
	clock.Step(40 * time.Second)
	if pid := mustRead(t, i, ""); pid != first {
		t.Fatal("it was stopped too early")
	}
	clock.Step(40 * time.Second) // a minute from the start, but not from the call
	eventually(t, "the idle check", func() bool { return clock.Waiters() == w.waiters(1) })
	if pid := mustRead(t, i, ""); pid != first {
		t.Fatal("it was stopped although it was not idle")
	}
	for alive(first) {
		clock.Step(time.Minute)
		time.Sleep(time.Millisecond)
	}
	if pid := mustRead(t, i, ""); pid == first || pid == 0 {
		t.Errorf("process %d answers", pid)
	}
}

// TestApplyOutlivesItsCaller: the answer to an Apply is not lost when the caller cancels.
func TestApplyOutlivesItsCaller(t *testing.T) { directAndSupervised(t, testApplyOutlivesItsCaller) }

func testApplyOutlivesItsCaller(t *testing.T, w way) {
	t.Parallel()
	i := openFake(t, w.host(t, Config{}), fakeSettings("6"))
	release := filepath.Join(t.TempDir(), "release")
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan providerapi.ApplyAnswer, 1)
	go func() {
		a, err := i.Apply(ctx, providerapi.ApplyRequest{Type: "fake_thing", Planned: thing("name", "made", "behave", "until:"+release)})
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	i.waitInFlight(t, 1)
	cancel()
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := <-answer; a.State.Value == cty.NilVal || textOf(a.State.Value.GetAttr("id")) != "id-of-made" {
		t.Errorf("the answer: %#v", a.State.Value)
	}
	// A Read is cancelled with its caller.
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := read(ctx, i, "hang"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Read: %v", err)
	}
}

func (i *Instance) waitInFlight(t *testing.T, n int) {
	t.Helper()
	eventually(t, "calls in flight", func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.current != nil && i.current.inFlight == n
	})
}

// TestCloseLeavesNothing: when Close returns, the provider and its children are gone, whatever the
// provider does. newHost checks the directories.
func TestCloseLeavesNothing(t *testing.T) { directAndSupervised(t, testCloseLeavesNothing) }

func testCloseLeavesNothing(t *testing.T, w way) {
	t.Parallel()
	for name, row := range map[string]struct {
		mode, behave string
		answers      bool // the call in flight
	}{
		"nothing goes on":         {mode: "6"},
		"a call that can stop":    {mode: "6", behave: "until:/never", answers: true},
		"a call that hangs":       {mode: "6", behave: "hang"},
		"it does not want to end": {mode: "6,deaf", behave: "hang"},
		"it is frozen":            {mode: "6", behave: "freeze"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := w.host(t, Config{StopGrace: 4 * time.Second})
			i := openFake(t, h, fakeSettings(row.mode))
			file := filepath.Join(t.TempDir(), "pid")
			pid := mustRead(t, i, "child:"+file)
			child := readPID(t, file)
			if !alive(pid) || !alive(child) {
				t.Fatal("the provider or its child does not run")
			}
			var calls sync.WaitGroup
			if row.behave != "" {
				calls.Go(func() {
					_, err := read(context.WithoutCancel(t.Context()), i, row.behave)
					if !errors.Is(err, providerapi.ErrUnavailable) || row.answers != strings.Contains(err.Error(), "told to stop") {
						t.Errorf("the call in flight: %v", err)
					}
				})
				i.waitInFlight(t, 1)
			}
			h.Close()
			if alive(pid) {
				t.Error("the provider runs")
			}
			eventually(t, "the end of its child", func() bool { return !alive(child) })
			calls.Wait()
			if _, err := read(t.Context(), i, ""); !errors.Is(err, providerapi.ErrNotCalled) {
				t.Errorf("a call after Close: %v", err)
			}
			if _, _, err := h.Open(t.Context(), fakeBinary(t), fakeSettings("6")); !errors.Is(err, providerapi.ErrNotCalled) {
				t.Errorf("opening after Close: %v", err)
			}
		})
	}
}

func readPID(t *testing.T, file string) (pid int) {
	t.Helper()
	eventually(t, "a pid in "+file, func() bool {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

// TestDeathTakesTheChildren: a provider's children are also killed when the provider dies by
// itself.
func TestDeathTakesTheChildren(t *testing.T) { directAndSupervised(t, testDeathTakesTheChildren) }

func testDeathTakesTheChildren(t *testing.T, w way) {
	t.Parallel()
	i := openFake(t, w.host(t, Config{}), fakeSettings("6"))
	file := filepath.Join(t.TempDir(), "pid")
	mustRead(t, i, "child:"+file)
	child := readPID(t, file)
	if _, err := read(t.Context(), i, "die"); err == nil {
		t.Fatal("the provider did not die")
	}
	eventually(t, "the end of its child", func() bool { return !alive(child) })
}

// TestManyCalls runs calls, deaths, restarts and Close concurrently, for the race detector.
func TestManyCalls(t *testing.T) { directAndSupervised(t, testManyCalls) }

func testManyCalls(t *testing.T, w way) {
	t.Parallel()
	settings := fakeSettings("6")
	settings.Limits.Parallel = 8
	h := w.host(t, Config{RecycleAfter: 40, StopGrace: time.Second})
	i := openFake(t, h, settings)
	var callers sync.WaitGroup
	for n := range 8 {
		callers.Go(func() {
			for round := range 60 {
				behave := ""
				if n == 0 && round%20 == 10 {
					behave = "die"
				}
				_, err := read(context.WithoutCancel(t.Context()), i, behave)
				if err != nil && !errors.Is(err, providerapi.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	h.Close()
}

// serverEnv makes this test binary a server that opens a provider, prints its PID, and waits to be
// killed. Its value is a directory.
const serverEnv = "ATOLL_FAKE_SERVER"

func runServer(dir string) {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	h, err := New(Config{Directory: dir})
	if err != nil {
		panic(err)
	}
	i, _, err := h.Open(context.Background(), Binary{Name: "fake", Path: path}, fakeSettings("6"))
	if err != nil {
		panic(err)
	}
	pid, err := read(context.Background(), i, "")
	if err != nil {
		panic(err)
	}
	fmt.Println(pid)
	select {}
}

// TestServerIsKilled: a provider does not outlive a server that was killed, and the next server
// cleans up.
func TestServerIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems do not signal the end of a parent to its child")
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "atoll-p")
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(fakeBinary(t).Path)
	server.Env = append(os.Environ(), serverEnv+"="+dir)
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatal("the provider does not run")
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait() // reports that it was killed
	eventually(t, "the provider's end", func() bool { return !alive(pid) })
	h, err := New(Config{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	// Fails if the directory is not empty.
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
}
