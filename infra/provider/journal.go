//go:build unix

package provider

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

// A journal is what is known of calls that are made once only: a file for each, which begins with its
// name, and has what came of it once that is known. A keeper holds a lock on the file while it
// makes the call, so that nobody has to ask which processes live. Answers have secrets in them, and
// are sealed.
type journal struct {
	dir  string
	seal cipher.AEAD
}

// A callName is how a call is known.
type callName struct {
	Call string `json:"call"`
	// Type is what it is about. Form is of the values in its answer.
	Type string `json:"type"`
	Form string `json:"form"`
}

// An outcome is what came of a call: an answer, or, with another code than OK, the reason why there
// is none.
type outcome struct {
	code    codes.Code
	message string
	answer  []byte
}

// What a journal can know of a call.
const (
	callAbsent    = iota // nothing: it was not begun
	callRunning          // a keeper is at it
	callLost             // it was begun, and nobody knows more
	callForgotten        // it was made, and its answer was not asked for in time
	callSealed           // it was made, and its answer was sealed with another key
	callMade
)

// A record is what a journal knows of a call.
type record struct {
	known   int
	name    callName
	outcome outcome
}

const (
	// journalMagic begins each file, with the version of its form.
	journalMagic = "atoll call 2\n"
	// temporaryPrefix begins names of files that are not there yet.
	temporaryPrefix = "new-"
	// longestCall is what a name may take.
	longestCall = 1 << 10
)

// openJournal makes the directory if there is none. Its key has 32 bytes.
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

// journalAt is a journal that is open already, elsewhere.
func journalAt(dir string, key []byte) (*journal, error) {
	seal, err := newSeal(key)
	return &journal{dir, seal}, err
}

func (j *journal) path(call string) string {
	sum := sha256.Sum256([]byte(call))
	return filepath.Join(j.dir, hex.EncodeToString(sum[:]))
}

// A page is the file of a call that is being made.
type page struct {
	journal *journal
	path    string
	file    *os.File
	head    []byte // what the file begins with
}

// begin writes that a call is about to be made. Once it returns, everybody knows, after a
// loss of power too. fs.ErrExist if it was begun before.
func (j *journal) begin(name callName) (_ *page, err error) {
	text, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	// The file gets its name with the lock held and its beginning written: who finds it without a
	// lock finds a call whose keeper is gone.
	f, err := os.CreateTemp(j.dir, temporaryPrefix)
	if err != nil {
		return nil, err
	}
	p := &page{j, j.path(name.Call), f, appendFrame([]byte(journalMagic), text)}
	defer func() {
		if err != nil {
			f.Close()
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

// finish writes what came of the call, and lets go of it.
func (p *page) finish(of outcome) error {
	said := of.answer
	if of.code != codes.OK {
		said = []byte(of.message)
	}
	code := binary.LittleEndian.AppendUint32(nil, uint32(of.code))
	body := p.journal.seal.Seal(code, nil, said, slices.Concat(p.head, code))
	_, err := p.file.Write(appendFrame(nil, body))
	return errors.Join(err, p.file.Sync(), p.file.Close())
}

// withdraw is of a call that is not made after all.
func (p *page) withdraw() error { return errors.Join(os.Remove(p.path), p.file.Close()) }

// look tells what is known of a call.
func (j *journal) look(call string) (record, error) {
	f, err := os.Open(j.path(call))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	// First the lock, then the text: what a keeper wrote before it let go is seen.
	free, err := trySharedLock(f)
	if err != nil {
		return record{}, err
	}
	if !free {
		return record{known: callRunning}, nil
	}
	r, err := j.read(f)
	if err == nil && r.name.Call != call {
		err = errors.New("it is of another call")
	}
	if err != nil {
		return record{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return r, nil
}

// errTorn is of a file whose beginning was not written to its end.
var errTorn = errors.New("it is damaged: see whether the call was made, and remove the file")

// read reads all that is in a file.
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
	r := record{known: callLost}
	if err := json.Unmarshal(text, &r.name); err != nil {
		return record{}, errTorn
	}
	head := all[:len(all)-len(rest)]
	body, _, ok := cutFrame(rest)
	switch {
	case !ok: // which is as if it had no end, if the end was not written whole
		return r, nil
	case len(body) < 4:
		r.known = callForgotten
		return r, nil
	}
	said, err := j.seal.Open(nil, nil, body[4:], slices.Concat(head, body[:4]))
	if err != nil {
		r.known = callSealed
		return r, nil
	}
	r.known, r.outcome.code = callMade, codes.Code(binary.LittleEndian.Uint32(body))
	if r.outcome.code == codes.OK {
		r.outcome.answer = said
	} else {
		r.outcome.message = string(said)
	}
	return r, nil
}

// A frame is a text with its length and its checksum before it.
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

// errStillRunning is of a call that cannot be forgotten yet.
var errStillRunning = errors.New("it is still being made: acknowledge it once it has an answer")

// forget removes what is known of a call.
func (j *journal) forget(call string) error {
	f, err := os.Open(j.path(call))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
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
	// answersKept is how long an answer is kept that nobody acknowledges: it may have secrets in it.
	answersKept = 24 * time.Hour
	// namesKept is how long it is known of a call that it was made.
	namesKept = 30 * 24 * time.Hour
)

// sweep takes out what nobody asked for: answers after a day, and the rest after a month. What is being
// made stays.
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
			continue // it is gone, or young
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
	defer f.Close()
	if free, err := tryLock(f); err != nil || !free {
		return err
	}
	if age >= namesKept || strings.HasPrefix(filepath.Base(path), temporaryPrefix) {
		return os.Remove(path)
	}
	r, err := j.read(f)
	if err != nil || r.known != callMade && r.known != callSealed {
		return err // it has no secrets
	}
	text, err := json.Marshal(r.name)
	if err != nil {
		return err
	}
	// The answer goes before what stands in its place comes: between the two the call counts as lost.
	head := appendFrame([]byte(journalMagic), text)
	if err := f.Truncate(int64(len(head))); err != nil {
		return err
	}
	if _, err := f.WriteAt(appendFrame(head, nil), 0); err != nil {
		return err
	}
	return f.Sync()
}

// tryLock takes the lock of a file for oneself. It goes with the process, however that ends.
func tryLock(f *os.File) (bool, error) { return flock(f, syscall.LOCK_EX|syscall.LOCK_NB) }

// trySharedLock tells whether nobody has the lock for themselves.
func trySharedLock(f *os.File) (bool, error) { return flock(f, syscall.LOCK_SH|syscall.LOCK_NB) }

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
