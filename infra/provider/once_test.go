package provider

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

	"github.com/atoll-dev/atoll/infra/contract"
)

// create is a call that makes a fake_thing.
func create(call, name, behave string) contract.ApplyRequest {
	return contract.ApplyRequest{Call: call, Type: "fake_thing", Planned: thing("name", name, "behave", behave)}
}

// applied is what a provider logged: which things it made, and as which process with which parent.
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

// pidIn is the process in an answer.
func pidIn(a contract.ApplyAnswer) string {
	return a.State.Value.GetAttr("pid").AsBigFloat().String()
}

// TestOnce: a call that has a name is made once, and gives the same answer ever after, of another Host too. Once it is
// acknowledged, it is as if it had never been.
func TestOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"5", "6"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			journal, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
			config := keptIn(t, Config{}, journal)
			h := newHost(t, config)
			i := openFake(t, h, fakeSettings(mode))
			request := create("one", "a", "log:"+log+",1ms")
			request.Private = []byte("private")
			first, err := i.Apply(t.Context(), request)
			if err != nil || textOf(first.State.Value.GetAttr("id")) != "id-of-a" {
				t.Fatalf("the first time: %v, %v", show(first), err)
			}
			again, err := i.Apply(t.Context(), request)
			if err != nil || show(again) != show(first) {
				t.Errorf("the second time: %v, %v", show(again), err)
			}
			h.Close()
			h = newHost(t, config)
			i = openFake(t, h, fakeSettings(mode))
			again, err = i.Apply(t.Context(), request)
			if err != nil || show(again) != show(first) {
				t.Errorf("by another Host: %v, %v", show(again), err)
			}
			// What has no name is made as often as asked, and so is what has another.
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
				t.Errorf("after it was acknowledged: %v, %v", show(again), err)
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

// TestOnceAtOnce has many ask for the same calls at the same time, over two Hosts.
func TestOnceAtOnce(t *testing.T) {
	t.Parallel()
	config := keptIn(t, Config{}, t.TempDir())
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

// TestNotTwice: of what is known of a call and is no answer, the caller is told in words that help.
func TestNotTwice(t *testing.T) {
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
	write := func(call, of, form string, finish func(*page) error) {
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
	answered := func(text string) func(*page) error {
		return func(p *page) error { return p.finish(outcome{answer: []byte(text)}) }
	}
	write("lost", k.name, k.form, func(p *page) error { return p.file.Close() })
	write("of another type", "fake_bare", k.form, answered(""))
	write("of another form", k.name, "other", answered(""))
	write("sealed", k.name, k.form, answered(""))
	write("rubbish", k.name, k.form, answered("\xff\xff\xff\xff"))
	write("forgotten", k.name, k.form, answered(""))
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
		"lost":            "nobody knows whether it was done; look what became of the resource",
		"of another type": "of fake_bare: names are for one call each",
		"of another form": "install that version again",
		"sealed":          "sealed with is gone: look what became of the resource",
		"rubbish":         "no message of the protocol",
		"forgotten":       "no longer kept after 24h0m0s",
		"damaged":         "remove the file",
	} {
		a, err := i.Apply(t.Context(), create(call, "a", ""))
		if !errors.Is(err, contract.ErrUnavailable) || errors.Is(err, contract.ErrNotAsked) ||
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
	for call, says := range map[string]string{strings.Repeat("x", longestCall+1): "at most 1024", "\xff": "no UTF-8"} {
		if _, err := i.Apply(t.Context(), create(call, "a", "")); !errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), says) {
			t.Errorf("a name that cannot be: %v", err)
		}
	}
	// A call that the provider fails, or dies of, is not made again either.
	for behave, says := range map[string][2]string{
		"fail:no luck, says " + secretToken: {"no luck, says (sensitive)", "had no answer: no luck, says (sensitive)"},
		"die":                               {"panic: I cannot go on", "had no answer"},
	} {
		for n, part := range says {
			_, err := i.Apply(t.Context(), create(behave, "a", behave))
			if !errors.Is(err, contract.ErrUnavailable) || errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), secretToken) {
				t.Errorf("%s, time %d: %v", behave, n+1, err)
			}
		}
	}
	// Without a journal nothing is begun.
	if err := os.RemoveAll(h.journal.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Apply(t.Context(), create("new", "a", "")); !errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), "the journal of calls") {
		t.Errorf("without a journal: %v", err)
	}
}

// keeperOf is the keeper of the current process.
func (i *Instance) keeperOf() (k *kept, pid int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	k = i.current.child.(*kept)
	pid, _ = strconv.Atoi(k.runner.ID())
	return k, pid
}

// TestKeeperIsKilled: the provider dies with it, and nobody says that nothing was done.
func TestKeeperIsKilled(t *testing.T) {
	t.Parallel()
	h := way{keeper: true}.host(t, Config{})
	i := openFake(t, h, fakeSettings("6"))
	file := filepath.Join(t.TempDir(), "pid")
	provider := mustRead(t, i, "child:"+file)
	child := readPID(t, file)
	_, keeper := i.keeperOf()
	failed := make(chan error, 1)
	go func() {
		_, err := i.Apply(context.WithoutCancel(t.Context()), create("c", "a", "hang"))
		failed <- err
	}()
	eventually(t, "the call", func() bool { return h.journal.mustLook(t, "c").known == callRunning })
	if err := h.Acknowledge("c"); !errors.Is(err, errStillRunning) || !strings.Contains(err.Error(), `acknowledging call "c"`) {
		t.Errorf("acknowledging what runs: %v", err)
	}
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, contract.ErrUnavailable) || errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), "its process ended: with its keeper: signal: killed") {
		t.Errorf("the call: %v", err)
	}
	eventually(t, "the provider's end", func() bool { return !alive(provider) })
	if _, err := i.Apply(t.Context(), create("c", "a", "")); !errors.Is(err, contract.ErrUnavailable) || !strings.Contains(err.Error(), "nobody knows") {
		t.Errorf("the call, again: %v", err)
	}
	if next := mustRead(t, i, ""); next == provider {
		t.Error("a dead provider answers")
	}
	// As with a server that is killed, nobody is left who knows of the provider's children.
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestCloseLeavesWhatHasAName: a call that does not end in time when all is closed is left to its keeper, and whoever
// asks for it later gets its answer.
func TestCloseLeavesWhatHasAName(t *testing.T) {
	t.Parallel()
	config := keptIn(t, Config{StopGrace: 200 * time.Millisecond}, t.TempDir())
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
		if err := <-failed; !errors.Is(err, contract.ErrUnavailable) || errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), "is stopping") {
			t.Errorf("a call under which all was closed: %v", err)
		}
	}
	i = openFake(t, newHost(t, config), fakeSettings("6"))
	answer := make(chan contract.ApplyAnswer, 1)
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

// TestKeeperFreezes: it does not keep the server from stopping, nor from killing what the provider
// started.
func TestKeeperFreezes(t *testing.T) {
	t.Parallel()
	h := way{keeper: true}.host(t, Config{StopGrace: 200 * time.Millisecond})
	i := openFake(t, h, fakeSettings("6"))
	file := filepath.Join(t.TempDir(), "pid")
	provider := mustRead(t, i, "child:"+file)
	child := readPID(t, file)
	_, keeper := i.keeperOf()
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

// TestKeeperIsCutOff: a provider whose keeper cannot be spoken to is replaced.
func TestKeeperIsCutOff(t *testing.T) {
	t.Parallel()
	i := openFake(t, way{keeper: true}.host(t, Config{StopGrace: time.Second}), fakeSettings("6"))
	first := mustRead(t, i, "")
	k, _ := i.keeperOf()
	if err := k.access.once.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Apply(t.Context(), create("c", "a", "")); !errors.Is(err, contract.ErrUnavailable) {
		t.Errorf("a call without a connection: %v", err)
	}
	if next := mustRead(t, i, ""); next == first {
		t.Error("it still answers")
	}
	eventually(t, "its end", func() bool { return !alive(first) })
}

// TestWaitsForTheKeeper: who asks for a call that goes on waits for it, as long as it wants to, and as long as
// such a call can take.
func TestWaitsForTheKeeper(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	h := way{keeper: true}.host(t, Config{Clock: clock})
	i := openFake(t, h, fakeSettings("6"))
	p, err := h.journal.begin(callName{Call: "c", Type: "fake_thing"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.file.Close()
	others := clock.Waiters()
	ask := func(ctx context.Context) chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := i.Apply(ctx, create("c", "a", ""))
			failed <- err
		}()
		eventually(t, "somebody who waits", func() bool { return clock.Waiters() > others })
		return failed
	}
	ctx, cancel := context.WithCancel(context.Background())
	failed := ask(ctx)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) || !errors.Is(err, contract.ErrUnavailable) || errors.Is(err, contract.ErrNotAsked) {
		t.Errorf("who gives up: %v", err)
	}
	failed = ask(context.Background())
	clock.Step(3*time.Hour + time.Second)
	if err := <-failed; !errors.Is(err, errHung) || errors.Is(err, contract.ErrNotAsked) {
		t.Errorf("who waits for too long: %v", err)
	}
	others = clock.Waiters()
	failed = ask(context.Background())
	i.Close()
	if err := <-failed; !errors.Is(err, errStopping) || errors.Is(err, contract.ErrNotAsked) {
		t.Errorf("who waits when all ends: %v", err)
	}
}

// A silentStream is all of a call that a relay needs to refuse it.
type silentStream struct {
	grpc.ServerStream
	trailer metadata.MD
}

func (s *silentStream) SetTrailer(of metadata.MD) { s.trailer = of }

// TestTooLate: a call that gets to a keeper when its server is gone is not begun, even if the keeper does not know
// yet. The next server may have looked already.
func TestTooLate(t *testing.T) {
	for name, r := range map[string]*relay{
		"orphaned": {isOrphaned: func() bool { return true }},
		"closed":   {closed: true},
	} {
		r.journal = newJournal(t)
		stream := &silentStream{}
		_, err := r.once(stream, callName{Call: "c"}, "/method", nil)
		if err := keeperSays(stream.trailer, err); !errors.Is(err, errNotBegun) || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("%s: %v", name, err)
		}
		if r := r.journal.mustLook(t, "c"); r.known != callAbsent {
			t.Errorf("%s: known as %d", name, r.known)
		}
	}
}

// TestBadKeepers: what is wrong with how a keeper is set up is said.
func TestBadKeepers(t *testing.T) {
	t.Parallel()
	for _, config := range []Config{{Keeper: []string{"x"}}, {Journal: "/tmp/x"}} {
		config.Directory = t.TempDir()
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), "set both Keeper and Journal") {
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
	if _, err := New(Config{Directory: t.TempDir(), Keeper: []string{"x"}, Journal: t.TempDir(), JournalKey: []byte("short")}); err == nil || !strings.Contains(err.Error(), "give it 32") {
		t.Errorf("a key that is too short: %v", err)
	}
	for says, command := range map[string][]string{
		"no such file":              {"/nowhere/atoll"},
		"ended before it began":     {"/bin/true"},
		"last wrote: what is this?": {"/bin/sh", "-c", "echo 'what is this?' >&2; exit 3"},
	} {
		h := newHost(t, Config{Keeper: command, Journal: t.TempDir(), JournalKey: make([]byte, keyBytes)})
		_, _, err := h.Open(t.Context(), fakeBinary(t), fakeSettings("6"))
		if !errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), "its keeper") || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v", command, err)
		}
	}
	// One that hangs.
	h := newHost(t, Config{Keeper: []string{"/bin/sleep", "1000"}, Journal: t.TempDir(), JournalKey: make([]byte, keyBytes), StartTimeout: 100 * time.Millisecond})
	if _, _, err := h.Open(t.Context(), fakeBinary(t), fakeSettings("6")); !errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), "within 100ms") {
		t.Errorf("a keeper that hangs: %v", err)
	}
}
