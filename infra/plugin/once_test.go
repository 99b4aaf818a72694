package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// create is a request to create a fake_thing.
func create(call, name, behave string) providerapi.ApplyRequest {
	return providerapi.ApplyRequest{Call: call, Type: "fake_thing", Planned: thing("name", name, "behave", behave)}
}

// applied returns a provider's log: the created things, with the process and its parent.
func applied(t *testing.T, log string) (lines [][]string) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// pidIn returns the PID in an answer.
func pidIn(a providerapi.ApplyAnswer) string {
	return a.State.Value.GetAttr("pid").AsBigFloat().String()
}

// TestNamedCallIsMadeOnce: a named call is made once, and repeating it returns the same answer,
// also on another Host. After it is acknowledged, it is unknown again.
func TestNamedCallIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"5", "6"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			journal, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
			config := withKeeper(t, Config{}, journal)
			h := newHost(t, config)
			i := openFake(t, h, fakeSettings(mode))
			request := create("one", "a", "log:"+log+",1ms")
			request.Private = []byte("private")
			first, err := i.Apply(t.Context(), request)
			if err != nil || textOf(first.State.Value.GetAttr("id")) != "id-of-a" {
				t.Fatalf("first call: %v, %v", show(first), err)
			}
			again, err := i.Apply(t.Context(), request)
			if err != nil || show(again) != show(first) {
				t.Errorf("second call: %v, %v", show(again), err)
			}
			h.Close()
			h = newHost(t, config)
			i = openFake(t, h, fakeSettings(mode))
			again, err = i.Apply(t.Context(), request)
			if err != nil || show(again) != show(first) {
				t.Errorf("on another Host: %v, %v", show(again), err)
			}
			// Unnamed calls are made each time, and so is a call with another name.
			for _, call := range []string{"", "", "two"} {
				if _, err := i.Apply(t.Context(), create(call, "b"+call, "log:"+log+",1ms")); err != nil {
					t.Error(err)
				}
			}
			for _, call := range []string{"one", "one", "two", "never made"} {
				if err := h.Acknowledge(call); err != nil {
					t.Error(err)
				}
			}
			if left, err := os.ReadDir(journal); err != nil || len(left) != 1 || left[0].Name() != identityFile {
				t.Errorf("left in the journal: %v, %v", left, err)
			}
			again, err = i.Apply(t.Context(), request)
			if err != nil || pidIn(again) == pidIn(first) {
				t.Errorf("after acknowledging: %v, %v", show(again), err)
			}
			var made []string
			for _, line := range applied(t, log) {
				made = append(made, line[0])
			}
			if is := strings.Join(made, " "); is != "a b b btwo a" {
				t.Errorf("made: %s", is)
			}
		})
	}
}

// TestOnceConcurrently makes the same calls concurrently on two Hosts.
func TestOnceConcurrently(t *testing.T) {
	t.Parallel()
	config := withKeeper(t, Config{}, t.TempDir())
	log := filepath.Join(t.TempDir(), "log")
	var callers sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]map[string]bool{}
	for range 2 {
		i := openFake(t, newHost(t, config), fakeSettings("6"))
		for caller := range 4 {
			callers.Go(func() {
				for n := range 10 {
					name := strconv.Itoa((n + 5*caller) % 10)
					a, err := i.Apply(t.Context(), create("call "+name, name, "log:"+log+",20ms"))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if answers[name] == nil {
						answers[name] = map[string]bool{}
					}
					answers[name][show(a)] = true
					mu.Unlock()
				}
			})
		}
	}
	callers.Wait()
	if made := applied(t, log); len(made) != 10 {
		t.Errorf("made: %v", made)
	}
	for name, of := range answers {
		if len(of) != 1 {
			t.Errorf("answers for %s: %v", name, of)
		}
	}
}

// TestRecordedCallIsNotRepeated: if a call is recorded without a usable answer, the error says why
// and how to proceed.
func TestRecordedCallIsNotRepeated(t *testing.T) {
	t.Parallel()
	h := way{keeper: true}.host(t, Config{})
	settings := fakeSettings("6")
	i := openFake(t, h, settings)
	k, err := i.catalog.resource("fake_thing")
	if err != nil {
		t.Fatal(err)
	}
	other, err := journalAt(h.journal.dir, []byte(strings.Repeat("k", keyBytes)))
	if err != nil {
		t.Fatal(err)
	}
	write := func(call, of, form string, finish func(*callFile) error) {
		journal := h.journal
		if call == "sealed" {
			journal = other
		}
		p, err := journal.begin(callName{Call: call, Type: of, Form: form})
		if err != nil {
			t.Fatal(err)
		}
		if err := finish(p); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(text string) func(*callFile) error {
		return func(p *callFile) error { return p.finish(outcome{answer: []byte(text)}) }
	}
	write("lost", k.name, k.digest, func(p *callFile) error { return unlock(p.file) })
	write("of another type", "fake_bare", k.digest, answered(""))
	write("of another form", k.name, "other", answered(""))
	write("sealed", k.name, k.digest, answered(""))
	write("rubbish", k.name, k.digest, answered("\xff\xff\xff\xff"))
	write("forgotten", k.name, k.digest, answered(""))
	if err := os.Chtimes(h.journal.path("forgotten"), time.Time{}, time.Now().Add(-25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := h.journal.sweep(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.journal.path("damaged"), []byte("atoll"), 0o600); err != nil {
		t.Fatal(err)
	}
	for call, says := range map[string]string{
		"lost":            "whether the change was made is unknown; check the resource",
		"of another type": "for fake_bare; call names must be unique",
		"of another form": "install that version again",
		"sealed":          "encrypts its answer is gone; check the resource",
		"rubbish":         "not a valid protocol message",
		"forgotten":       "deleted after 24h0m0s",
		"damaged":         "remove the file",
	} {
		a, err := i.Apply(t.Context(), create(call, "a", ""))
		if !errors.Is(err, providerapi.ErrUnavailable) || errors.Is(err, providerapi.ErrNotCalled) ||
			!strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "provider fake: ApplyResourceChange of fake_thing") {
			t.Errorf("%s: %v, %v", call, show(a), err)
		}
		if err := h.Acknowledge(call); err != nil {
			t.Error(err)
		}
		if _, err := i.Apply(t.Context(), create(call, "a", "")); err != nil {
			t.Errorf("%s, acknowledged: %v", call, err)
		}
	}
	for call, says := range map[string]string{strings.Repeat("x", maxCallName+1): "the limit is 1024", "\xff": "not valid UTF-8"} {
		if _, err := i.Apply(t.Context(), create(call, "a", "")); !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), says) {
			t.Errorf("an invalid name: %v", err)
		}
	}
	// A call that the provider fails, or that kills it, is not repeated either.
	for behave, says := range map[string][2]string{
		"fail:no luck, says " + secretToken: {"no luck, says (sensitive)", "made earlier and failed: no luck, says (sensitive)"},
		"die":                               {"panic: I cannot go on", "made earlier and failed"},
	} {
		for n, part := range says {
			_, err := i.Apply(t.Context(), create(behave, "a", behave))
			if !errors.Is(err, providerapi.ErrUnavailable) || errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), secretToken) {
				t.Errorf("%s, time %d: %v", behave, n+1, err)
			}
		}
	}
	// Without a journal no named call begins.
	if err := os.RemoveAll(h.journal.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Apply(t.Context(), create("new", "a", "")); !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "the journal of calls") {
		t.Errorf("without a journal: %v", err)
	}
}

// currentKeeper returns the keeper of the current process.
func (i *Instance) currentKeeper() (k *supervised, pid int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	k = i.current.child.(*supervised)
	pid, _ = strconv.Atoi(k.runner.ID())
	return k, pid
}

// TestKeeperIsKilled: the provider dies with its keeper, and the error does not claim that nothing
// was done.
func TestKeeperIsKilled(t *testing.T) {
	t.Parallel()
	h := way{keeper: true}.host(t, Config{})
	i := openFake(t, h, fakeSettings("6"))
	file := filepath.Join(t.TempDir(), "pid")
	provider := mustRead(t, i, "child:"+file)
	child := readPID(t, file)
	_, keeper := i.currentKeeper()
	failed := make(chan error, 1)
	go func() {
		_, err := i.Apply(context.WithoutCancel(t.Context()), create("c", "a", "hang"))
		failed <- err
	}()
	eventually(t, "the call", func() bool { return h.journal.mustLook(t, "c").state == callRunning })
	if err := h.Acknowledge("c"); !errors.Is(err, errStillRunning) || !strings.Contains(err.Error(), `acknowledging call "c"`) {
		t.Errorf("acknowledging a running call: %v", err)
	}
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, providerapi.ErrUnavailable) || errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "its process exited: with its keeper: signal: killed") {
		t.Errorf("the call: %v", err)
	}
	eventually(t, "the provider's end", func() bool { return !alive(provider) })
	if _, err := i.Apply(t.Context(), create("c", "a", "")); !errors.Is(err, providerapi.ErrUnavailable) || !strings.Contains(err.Error(), "is unknown") {
		t.Errorf("the repeated call: %v", err)
	}
	if next := mustRead(t, i, ""); next == provider {
		t.Error("a dead provider answers")
	}
	// As with a killed server, no process is left that knows the provider's children.
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestCloseHandsOverNamedCalls: Close leaves a named call that does not finish in time to its
// keeper, and repeating the call later returns its answer.
func TestCloseHandsOverNamedCalls(t *testing.T) {
	t.Parallel()
	config := withKeeper(t, Config{StopGrace: 200 * time.Millisecond}, t.TempDir())
	h := newHost(t, config)
	gate := filepath.Join(t.TempDir(), "gate")
	request := create("c", "a", "gate:"+gate)
	i := openFake(t, h, fakeSettings("6"))
	failed := make(chan error, 2)
	go func() {
		_, err := i.Apply(context.WithoutCancel(t.Context()), request)
		failed <- err
	}()
	eventually(t, "the call", func() bool { return len(applied(t, gate+".begun")) == 1 })
	go func() {
		_, err := read(context.WithoutCancel(t.Context()), i, "hang")
		failed <- err
	}()
	i.waitInFlight(t, 2)
	h.Close()
	for range 2 {
		if err := <-failed; !errors.Is(err, providerapi.ErrUnavailable) || errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "is shutting") {
			t.Errorf("a call during Close: %v", err)
		}
	}
	i = openFake(t, newHost(t, config), fakeSettings("6"))
	answer := make(chan providerapi.ApplyAnswer, 1)
	go func() {
		a, err := i.Apply(context.WithoutCancel(t.Context()), request)
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := applied(t, gate+".begun")
	if a := <-answer; len(begun) != 1 || pidIn(a) != begun[0][1] {
		t.Errorf("the answer: %v, and it was made by %v", show(a), begun)
	}
	eventually(t, "the keeper's end", func() bool {
		left, err := os.ReadDir(h.config.Directory)
		return err == nil && len(left) == 0
	})
}

// TestKeeperFreezes: a frozen keeper does not keep the server from stopping and from killing the
// provider's children.
func TestKeeperFreezes(t *testing.T) {
	t.Parallel()
	h := way{keeper: true}.host(t, Config{StopGrace: 200 * time.Millisecond})
	i := openFake(t, h, fakeSettings("6"))
	file := filepath.Join(t.TempDir(), "pid")
	provider := mustRead(t, i, "child:"+file)
	child := readPID(t, file)
	_, keeper := i.currentKeeper()
	if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if alive(keeper) {
		t.Error("the keeper runs")
	}
	eventually(t, "the provider's end", func() bool { return !alive(provider) })
	eventually(t, "its child's end", func() bool { return !alive(child) })
}

// TestDisconnectedKeeperIsReplaced: a provider is replaced when the connection to its keeper
// breaks.
func TestDisconnectedKeeperIsReplaced(t *testing.T) {
	t.Parallel()
	i := openFake(t, way{keeper: true}.host(t, Config{StopGrace: time.Second}), fakeSettings("6"))
	first := mustRead(t, i, "")
	k, _ := i.currentKeeper()
	if err := k.access.once.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Apply(t.Context(), create("c", "a", "")); !errors.Is(err, providerapi.ErrUnavailable) {
		t.Errorf("a call without a connection: %v", err)
	}
	if next := mustRead(t, i, ""); next == first {
		t.Error("the disconnected provider still answers")
	}
	eventually(t, "its end", func() bool { return !alive(first) })
}

// TestRepeatedCallWaitsForKeeper: repeating a running call waits for its answer, until the caller
// cancels or the call's timeout is over.
func TestRepeatedCallWaitsForKeeper(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	h := way{keeper: true}.host(t, Config{Clock: clock})
	i := openFake(t, h, fakeSettings("6"))
	p, err := h.journal.begin(callName{Call: "c", Type: "fake_thing"})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock(p.file)
	others := clock.Waiters()
	ask := func(ctx context.Context) chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := i.Apply(ctx, create("c", "a", ""))
			failed <- err
		}()
		eventually(t, "a waiting caller", func() bool { return clock.Waiters() > others })
		return failed
	}
	ctx, cancel := context.WithCancel(context.Background())
	failed := ask(ctx)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) || !errors.Is(err, providerapi.ErrUnavailable) || errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("a cancelled caller: %v", err)
	}
	failed = ask(context.Background())
	clock.Step(3*time.Hour + time.Second)
	if err := <-failed; !errors.Is(err, errHung) || errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("a caller after the timeout: %v", err)
	}
	others = clock.Waiters()
	failed = ask(context.Background())
	i.Close()
	if err := <-failed; !errors.Is(err, errStopping) || errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("a caller during Close: %v", err)
	}
}

// A trailerStream is a stream with the one method that a relay needs to reject a call.
type trailerStream struct {
	grpc.ServerStream
	trailer metadata.MD
}

func (s *trailerStream) SetTrailer(of metadata.MD) { s.trailer = of }

// TestOrphanedKeeperBeginsNothing: a keeper does not begin a call after its server is gone, even if
// it has not noticed that yet. The next server may have looked at the journal already.
func TestOrphanedKeeperBeginsNothing(t *testing.T) {
	for name, r := range map[string]*relay{
		"orphaned": {isOrphaned: func() bool { return true }},
		"closed":   {closed: true},
	} {
		r.journal = newJournal(t)
		stream := &trailerStream{}
		_, err := r.once(stream, callName{Call: "c"}, "/method", nil)
		if err := keeperError(stream.trailer, err); !errors.Is(err, errNotBegun) || !strings.Contains(err.Error(), "shutting") {
			t.Errorf("%s: %v", name, err)
		}
		if r := r.journal.mustLook(t, "c"); r.state != callAbsent {
			t.Errorf("%s: state %d", name, r.state)
		}
	}
}

// TestInvalidKeeperConfig checks the errors about an invalid configuration of a keeper.
func TestInvalidKeeperConfig(t *testing.T) {
	t.Parallel()
	for _, config := range []Config{{Keeper: []string{"x"}}, {Journal: "/tmp/x"}} {
		config.Directory = t.TempDir()
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), "must be set together") {
			t.Errorf("%v: %v", config, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Directory: t.TempDir(), Keeper: []string{"x"}, Journal: file, JournalKey: make([]byte, keyBytes)}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a journal that is a file: %v", err)
	}
	if _, err := New(Config{Directory: t.TempDir(), Keeper: []string{"x"}, Journal: t.TempDir(), JournalKey: []byte("short")}); err == nil || !strings.Contains(err.Error(), "must have 32") {
		t.Errorf("a key that is too short: %v", err)
	}
	for says, command := range map[string][]string{
		"no such file":                {"/nowhere/atoll"},
		"exited before the provider":  {"/bin/true"},
		"last output: unknown option": {"/bin/sh", "-c", "echo 'unknown option' >&2; exit 3"},
	} {
		h := newHost(t, Config{Keeper: command, Journal: t.TempDir(), JournalKey: make([]byte, keyBytes)})
		_, _, err := h.Open(t.Context(), fakeBinary(t), fakeSettings("6"))
		if !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "its keeper") || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v", command, err)
		}
	}
	// A keeper that hangs.
	h := newHost(t, Config{Keeper: []string{"/bin/sleep", "1000"}, Journal: t.TempDir(), JournalKey: make([]byte, keyBytes), StartTimeout: 100 * time.Millisecond})
	if _, _, err := h.Open(t.Context(), fakeBinary(t), fakeSettings("6")); !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "within 100ms") {
		t.Errorf("a keeper that hangs: %v", err)
	}
}
