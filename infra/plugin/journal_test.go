package plugin

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

func newJournal(t *testing.T) *journal {
	t.Helper()
	j, err := openJournal(filepath.Join(t.TempDir(), "journal"), make([]byte, keyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func (j *journal) mustLook(t *testing.T, call string) record {
	t.Helper()
	r, err := j.look(call)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestJournal follows calls through every state of the journal.
func TestJournal(t *testing.T) {
	j := newJournal(t)
	name := callName{Call: "../apply/1 of \x00 everything", Type: "fake_thing", Form: "f"}
	if r := j.mustLook(t, name.Call); r.state != callAbsent {
		t.Errorf("an unknown call is in state %d", r.state)
	}
	p, err := j.begin(name)
	if err != nil {
		t.Fatal(err)
	}
	if r := j.mustLook(t, name.Call); r.state != callRunning {
		t.Errorf("a running call is in state %d", r.state)
	}
	if _, err := j.begin(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("beginning a second time: %v", err)
	}
	if err := j.forget(name.Call); !errors.Is(err, errStillRunning) {
		t.Errorf("forgetting a running call: %v", err)
	}
	if err := j.sweep(time.Now().Add(2 * namesKept)); err != nil {
		t.Error(err)
	}
	want := outcome{answer: []byte("with a secret")}
	if err := p.finish(want); err != nil {
		t.Fatal(err)
	}
	if r := j.mustLook(t, name.Call); r.state != callMade || r.name != name || !bytes.Equal(r.outcome.answer, want.answer) {
		t.Errorf("the record of a finished call is %+v", r)
	}
	if text, err := os.ReadFile(j.path(name.Call)); err != nil || bytes.Contains(text, []byte("secret")) {
		t.Errorf("in the file: %q, %v", text, err)
	}
	for path, mode := range map[string]fs.FileMode{j.dir: 0o700, j.path(name.Call): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if entries, err := os.ReadDir(j.dir); err != nil || len(entries) != 1 {
		t.Errorf("in the journal: %v, %v", entries, err)
	}
	for range 2 { // the second time is not an error either
		if err := j.forget(name.Call); err != nil {
			t.Error(err)
		}
	}
	if r := j.mustLook(t, name.Call); r.state != callAbsent {
		t.Errorf("a forgotten call is in state %d", r.state)
	}

	// A call that failed, one that was withdrawn, and one whose keeper is gone.
	if p, err = j.begin(name); err != nil {
		t.Fatal(err)
	}
	if err := p.finish(outcome{code: codes.Aborted, message: "no"}); err != nil {
		t.Fatal(err)
	}
	if r := j.mustLook(t, name.Call); r.state != callMade || r.outcome.code != codes.Aborted || r.outcome.message != "no" {
		t.Errorf("the record of a failed call is %+v", r)
	}
	name.Call = "another"
	if p, err = j.begin(name); err != nil {
		t.Fatal(err)
	}
	if err := p.withdraw(); err != nil {
		t.Error(err)
	}
	if r := j.mustLook(t, name.Call); r.state != callAbsent {
		t.Errorf("a withdrawn call is in state %d", r.state)
	}
	if p, err = j.begin(name); err != nil {
		t.Fatal(err)
	}
	if err := unlock(p.file); err != nil {
		t.Error(err)
	}
	if r := j.mustLook(t, name.Call); r.state != callLost {
		t.Errorf("a call without a keeper is in state %d", r.state)
	}
}

// TestProcessBeingStartedHoldsNoLock: a process that is being started has copies of all descriptors
// for a moment. Calls that have an answer do not seem to be running in it.
func TestProcessBeingStartedHoldsNoLock(t *testing.T) {
	j := newJournal(t)
	for call, end := range map[string]func(*callFile) error{
		"finished":  func(p *callFile) error { return p.finish(outcome{answer: []byte("with a secret")}) },
		"withdrawn": (*callFile).withdraw,
	} {
		p, err := j.begin(callName{Call: call})
		if err != nil {
			t.Fatal(err)
		}
		copied, err := syscall.Dup(int(p.file.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(copied)
		if r := j.mustLook(t, call); r.state != callRunning {
			t.Errorf("%s, before: state %d", call, r.state)
		}
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		if r := j.mustLook(t, call); r.state == callRunning {
			t.Errorf("%s: still running", call)
		}
	}
	if err := j.sweep(time.Now().Add(25 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r := j.mustLook(t, "finished"); r.state != callForgotten {
		t.Errorf("swept: state %d", r.state)
	}
	if err := j.forget("finished"); err != nil {
		t.Error(err)
	}
}

// TestDamagedJournal truncates a file at each length and changes each byte. An answer that is read
// must be the one that was written.
func TestDamagedJournal(t *testing.T) {
	j := newJournal(t)
	name := callName{Call: "c", Type: "fake_thing", Form: "f"}
	p, err := j.begin(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.finish(outcome{answer: []byte("the answer")}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(j.path("c"))
	if err != nil {
		t.Fatal(err)
	}
	begun := len(appendFrame([]byte(journalMagic), []byte(`{"call":"c","type":"fake_thing","form":"f"}`)))
	for n := range whole {
		if err := os.WriteFile(j.path("c"), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := j.look("c")
		if lost := err == nil && r.state == callLost; lost != (n >= begun) || err == nil && !lost {
			t.Errorf("truncated to %d bytes of %d (head: %d): %+v, %v", n, len(whole), begun, r, err)
		}
		other := bytes.Clone(whole)
		other[n] ^= 0x55
		if err := os.WriteFile(j.path("c"), other, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err = j.look("c")
		if err == nil && r.state != callLost && r.state != callSealed || err != nil && !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("with byte %d changed: %+v, %v", n, r, err)
		}
	}
	if err := j.forget("c"); err != nil {
		t.Error(err)
	}
}

// TestSweep: an answer is removed after a day, the record of its call after a month. A call without
// an answer has no secrets, and is retained for a month as well.
func TestSweep(t *testing.T) {
	j := newJournal(t)
	for _, call := range []string{"made", "lost", "young"} {
		p, err := j.begin(callName{Call: call})
		if err != nil {
			t.Fatal(err)
		}
		if call == "lost" {
			err = unlock(p.file)
		} else {
			err = p.finish(outcome{answer: []byte("with a secret")})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	age := func(call string, by time.Duration) {
		if err := os.Chtimes(j.path(call), time.Time{}, time.Now().Add(-by)); err != nil {
			t.Fatal(err)
		}
	}
	knows := func(what string, made, lost int) {
		t.Helper()
		if err := j.sweep(time.Now()); err != nil {
			t.Error(err)
		}
		if is := [3]int{j.mustLook(t, "made").state, j.mustLook(t, "lost").state, j.mustLook(t, "young").state}; is != [3]int{made, lost, callMade} {
			t.Errorf("%s: %v", what, is)
		}
	}
	if err := os.WriteFile(filepath.Join(j.dir, temporaryPrefix+"1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	knows("at once", callMade, callLost)
	age("made", answersKept+time.Minute)
	age("lost", answersKept+time.Minute)
	knows("after a day", callForgotten, callLost)
	text, err := os.ReadFile(j.path("made"))
	if err != nil || bytes.Contains(text, []byte("secret")) {
		t.Errorf("the file of a swept answer: %q, %v", text, err)
	}
	age("made", answersKept+time.Minute)
	knows("after a day more", callForgotten, callLost)
	age("made", namesKept+time.Minute)
	age("lost", namesKept+time.Minute)
	knows("after a month", callAbsent, callAbsent)
}
