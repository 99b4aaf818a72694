//go:build unix

package plugin

import (
	"bytes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

// A journal records calls that are made at most once. Each call has a file that begins with the
// call's name and later holds its outcome. A keeper holds a lock on the file while it makes the
// call, so that the state of a call is known without looking at processes. Answers can contain
// secrets and are encrypted.
type journal struct {
	dir  string
	seal cipher.AEAD
}

// A callName identifies a call.
type callName struct {
	Call string `json:"call"`
	// Type is the resource type. Form is a digest of the types of the values in its answer.
	Type string `json:"type"`
	Form string `json:"form"`
}

// An outcome is the result of a call: its answer, or a code other than OK and the error message.
type outcome struct {
	code    codes.Code
	message string
	answer  []byte
}

// The states of a call in the journal.
const (
	callAbsent    = iota // not begun
	callRunning          // a keeper is making it
	callLost             // begun, outcome unknown
	callForgotten        // made, but its answer was not fetched in time and was removed
	callSealed           // made, but its answer was encrypted with another key
	callMade
)

// A record is a journal's entry for a call.
type record struct {
	state   int
	name    callName
	outcome outcome
}

const (
	// journalMagic is the beginning of each file, with the version of the format.
	journalMagic = "atoll call 2\n"
	// temporaryPrefix is the prefix of files that are not complete yet.
	temporaryPrefix = "new-"
	// maxCallName is the maximum length of a call's name in bytes.
	maxCallName = 1 << 10
)

// openJournal opens a journal and creates its directory if necessary. The key has 32 bytes.
func openJournal(dir string, key []byte) (*journal, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return nil, err
	}
	return journalAt(dir, key)
}

// journalAt returns the journal in a directory that another process has created.
func journalAt(dir string, key []byte) (*journal, error) {
	seal, err := newSeal(key)
	return &journal{dir, seal}, err
}

func (j *journal) path(call string) string {
	sum := sha256.Sum256([]byte(call))
	return filepath.Join(j.dir, hex.EncodeToString(sum[:]))
}

// A callFile is the file of a call that is being made.
type callFile struct {
	journal *journal
	path    string
	file    *os.File
	head    []byte // the beginning of the file
}

// begin records that a call is about to be made. When it returns, the record is visible to every
// process and survives a loss of power. It returns fs.ErrExist if the call was begun before.
func (j *journal) begin(name callName) (_ *callFile, err error) {
	text, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	// The file is locked and its head written before it gets its name. An unlocked file with that
	// name therefore belongs to a call whose keeper is gone.
	f, err := os.CreateTemp(j.dir, temporaryPrefix)
	if err != nil {
		return nil, err
	}
	p := &callFile{j, j.path(name.Call), f, appendFrame([]byte(journalMagic), text)}
	defer func() {
		if err != nil {
			unlock(f)
		}
	}()
	defer os.Remove(f.Name())
	if _, err := tryLock(f); err != nil {
		return nil, err
	}
	if _, err := f.Write(p.head); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), p.path); err != nil {
		return nil, err
	}
	if err := errors.Join(f.Sync(), syncDirectory(j.dir)); err != nil {
		return nil, errors.Join(err, os.Remove(p.path))
	}
	return p, nil
}

// finish records the outcome of the call and releases the lock.
func (p *callFile) finish(of outcome) error {
	payload := of.answer
	if of.code != codes.OK {
		payload = []byte(of.message)
	}
	code := binary.LittleEndian.AppendUint32(nil, uint32(of.code))
	body := p.journal.seal.Seal(code, nil, payload, slices.Concat(p.head, code))
	_, err := p.file.Write(appendFrame(nil, body))
	return errors.Join(err, p.file.Sync(), unlock(p.file))
}

// withdraw removes the record of a call that is not made after all.
func (p *callFile) withdraw() error { return errors.Join(os.Remove(p.path), unlock(p.file)) }

// look returns the record of a call.
func (j *journal) look(call string) (record, error) {
	f, err := os.Open(j.path(call))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	defer unlock(f)
	// Lock before reading, so that everything is seen that a keeper wrote before it released the
	// lock.
	free, err := trySharedLock(f)
	if err != nil {
		return record{}, err
	}
	if !free {
		return record{state: callRunning}, nil
	}
	r, err := j.read(f)
	if err == nil && r.name.Call != call {
		err = errors.New("it belongs to another call")
	}
	if err != nil {
		return record{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return r, nil
}

// errTorn reports a file whose head was not written completely.
var errTorn = errors.New("the file is damaged; check whether the call was made, and remove the file")

// read parses a whole file.
func (j *journal) read(f io.Reader) (record, error) {
	all, err := io.ReadAll(f)
	if err != nil {
		return record{}, err
	}
	rest, ok := bytes.CutPrefix(all, []byte(journalMagic))
	if !ok {
		return record{}, errTorn
	}
	text, rest, ok := cutFrame(rest)
	if !ok {
		return record{}, errTorn
	}
	r := record{state: callLost}
	if err := json.Unmarshal(text, &r.name); err != nil {
		return record{}, errTorn
	}
	head := all[:len(all)-len(rest)]
	body, _, ok := cutFrame(rest)
	switch {
	case !ok: // a partly written outcome counts as none
		return r, nil
	case len(body) < 4:
		r.state = callForgotten
		return r, nil
	}
	payload, err := j.seal.Open(nil, nil, body[4:], slices.Concat(head, body[:4]))
	if err != nil {
		r.state = callSealed
		return r, nil
	}
	r.state, r.outcome.code = callMade, codes.Code(binary.LittleEndian.Uint32(body))
	if r.outcome.code == codes.OK {
		r.outcome.answer = payload
	} else {
		r.outcome.message = string(payload)
	}
	return r, nil
}

// A frame is data preceded by its length and its checksum.
func appendFrame(to, text []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(len(text)))
	to = binary.LittleEndian.AppendUint32(to, crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
	return append(to, text...)
}

func cutFrame(from []byte) (text, rest []byte, ok bool) {
	if len(from) < 8 {
		return nil, nil, false
	}
	size, sum, rest := binary.LittleEndian.Uint32(from), binary.LittleEndian.Uint32(from[4:]), from[8:]
	if uint64(len(rest)) < uint64(size) {
		return nil, nil, false
	}
	text, rest = rest[:size], rest[size:]
	return text, rest, crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) == sum
}

// errStillRunning reports a call that cannot be forgotten yet.
var errStillRunning = errors.New("the call is still running; acknowledge it once it has an answer")

// forget removes the record of a call.
func (j *journal) forget(call string) error {
	f, err := os.Open(j.path(call))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock(f)
	free, err := trySharedLock(f)
	if err != nil {
		return err
	}
	if !free {
		return errStillRunning
	}
	if err := os.Remove(f.Name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

const (
	// answersKept is how long an unacknowledged answer is retained. It may contain secrets.
	answersKept = 24 * time.Hour
	// namesKept is how long the record that a call was made is retained.
	namesKept = 30 * 24 * time.Hour
)

// sweep removes unacknowledged answers after a day and whole records after a month. Running calls
// are not touched.
func (j *journal) sweep(now time.Time) error {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return err
	}
	var failed error
	for _, entry := range entries {
		if entry.Name() == identityFile {
			continue
		}
		info, err := entry.Info()
		if err != nil || now.Sub(info.ModTime()) < answersKept {
			continue // removed meanwhile, or recent
		}
		if err := j.sweepFile(filepath.Join(j.dir, entry.Name()), now.Sub(info.ModTime())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (j *journal) sweepFile(path string, age time.Duration) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer unlock(f)
	if free, err := tryLock(f); err != nil || !free {
		return err
	}
	if age >= namesKept || strings.HasPrefix(filepath.Base(path), temporaryPrefix) {
		return os.Remove(path)
	}
	r, err := j.read(f)
	if err != nil || r.state != callMade && r.state != callSealed {
		return err // there are no secrets to remove
	}
	text, err := json.Marshal(r.name)
	if err != nil {
		return err
	}
	// The answer is removed before its replacement is written. Between the two, the call counts as
	// lost.
	head := appendFrame([]byte(journalMagic), text)
	if err := f.Truncate(int64(len(head))); err != nil {
		return err
	}
	if _, err := f.WriteAt(appendFrame(head, nil), 0); err != nil {
		return err
	}
	return f.Sync()
}

// tryLock takes the exclusive lock of a file, if it is free. The lock ends with the process.
func tryLock(f *os.File) (bool, error) { return flock(f, syscall.LOCK_EX|syscall.LOCK_NB) }

// trySharedLock reports whether no one holds the exclusive lock.
func trySharedLock(f *os.File) (bool, error) { return flock(f, syscall.LOCK_SH|syscall.LOCK_NB) }

// unlock releases the lock of a file and closes it. Closing it would not be enough: a process that
// is being started has a copy of each descriptor until it executes its program, and a lock lasts as
// long as any copy of its descriptor. A call that has an answer would seem to be running.
func unlock(f *os.File) error {
	_, err := flock(f, syscall.LOCK_UN)
	return errors.Join(err, f.Close())
}

func flock(f *os.File, how int) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
