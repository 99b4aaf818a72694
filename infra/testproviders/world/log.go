package world

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Entry is one line of the log. It has no attribute values, because some are secret.
type Entry struct {
	// Serial counts the lines over all processes, from 1.
	Serial int64     `json:"serial"`
	Time   time.Time `json:"time"`
	// Process identifies a process, even if PIDs repeat.
	Process string `json:"process"`
	// Call is create, read, update, delete, import or configure.
	Call string `json:"call"`
	Type string `json:"type,omitempty"`
	ID   string `json:"id,omitempty"`
	// Changed has names of attributes.
	Changed []string `json:"changed,omitempty"`
	// Version is the object's version after the call.
	Version int `json:"version,omitempty"`
	// Error is the reason why nothing was done.
	Error string `json:"error,omitempty"`
}

// A log is appended to by many goroutines and processes. Each line is on disk before its call
// returns; the lines of concurrent calls share one sync.
//
// A line is written after the change. A process that is killed in between leaves a change without a
// line, never a line without its change; the object's Version still counts it.
type log struct {
	file    *os.File
	process string

	mu      sync.Mutex
	waiting []*pending

	writing sync.Mutex // held while writing a batch
	end     int64      // the file's size when this process last read it
	serial  int64      // of the last line before end
}

type pending struct {
	entry Entry
	done  bool
	err   error
}

func openLog(path string) (*log, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &log{file: file, process: fmt.Sprintf("%d-%s", os.Getpid(), random())}, nil
}

func (l *log) append(entry Entry) error {
	entry.Process = l.process
	p := &pending{entry: entry}
	l.mu.Lock()
	l.waiting = append(l.waiting, p)
	l.mu.Unlock()

	l.writing.Lock()
	defer l.writing.Unlock()
	if !p.done {
		l.mu.Lock()
		batch := l.waiting
		l.waiting = nil
		l.mu.Unlock()
		err := l.write(batch)
		for _, one := range batch {
			one.done, one.err = true, err
		}
	}
	return p.err
}

func (l *log) write(batch []*pending) (err error) {
	fd := int(l.file.Fd())
	if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking the log: %w", err)
	}
	defer func() { err = errors.Join(err, syscall.Flock(fd, syscall.LOCK_UN)) }()

	torn, err := l.catchUp()
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	if torn {
		lines.WriteByte('\n')
	}
	for _, one := range batch {
		l.serial++
		one.entry.Serial = l.serial
		line, err := json.Marshal(one.entry)
		if err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
	}
	n, err := l.file.Write(lines.Bytes())
	l.end += int64(n)
	if err != nil {
		return err
	}
	return l.file.Sync()
}

// catchUp reads the lines of other processes. The file may end within a line, if one of them was
// killed.
func (l *log) catchUp() (torn bool, err error) {
	info, err := l.file.Stat()
	if err != nil || info.Size() == l.end {
		return false, err
	}
	if info.Size() < l.end { // the file was truncated
		l.end, l.serial = 0, 0
	}
	news := make([]byte, info.Size()-l.end)
	if _, err := l.file.ReadAt(news, l.end); err != nil {
		return false, err
	}
	for _, entry := range parse(news) {
		l.serial = entry.Serial
	}
	l.end = info.Size()
	return len(news) > 0 && news[len(news)-1] != '\n', nil
}

// parse skips incomplete lines.
func parse(text []byte) []Entry {
	var entries []Entry
	for line := range bytes.Lines(text) {
		var entry Entry
		if json.Unmarshal(line, &entry) == nil && entry.Serial > 0 {
			entries = append(entries, entry)
		}
	}
	return entries
}

// ReadLog reads the log of a world.
func ReadLog(dir string) ([]Entry, error) {
	file, err := os.Open(filepath.Join(dir, "log.jsonl"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	return parse(text), nil
}
