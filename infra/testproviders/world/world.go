// Package world is the infrastructure that the test providers manage: a directory in which every
// object is one file, and a log of all changes. A test reads both to verify what happened, and
// edits files to cause drift.
//
//	objects/TYPE/ID.json   one object
//	files/NAME             what demo_file writes
//	uses/ID/USER           empty: USER refers to ID
//	attempts/KEY           the number of attempts
//	log.jsonl              the changes, in order
//
// Any number of processes can have the same world open, for example when a host runs two processes
// of one provider.
package world

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrGone reports an object that does not exist.
var ErrGone = errors.New("no such object")

// ErrInUse reports an object that others refer to.
var ErrInUse = errors.New("the object is in use")

// World is one directory. It is safe for concurrent use.
type World struct {
	dir string
	log *log
}

// Object is an object that a provider created.
type Object struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	// Version counts the changes, from 1, so that an update that was applied twice is visible.
	Version    int                        `json:"version"`
	Attributes map[string]json.RawMessage `json:"attributes"`
}

// Open opens a world, and creates the directory if necessary.
func Open(dir string) (*World, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("directory %q is not absolute, but a host may start a provider in any directory", dir)
	}
	for _, sub := range []string{"objects", "files", "uses", "attempts"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	log, err := openLog(filepath.Join(dir, "log.jsonl"))
	if err != nil {
		return nil, err
	}
	return &World{dir: dir, log: log}, nil
}

// Close closes the log.
func (w *World) Close() error { return w.log.file.Close() }

// Dir returns the directory of the world.
func (w *World) Dir() string { return w.dir }

// NewID returns an ID that no process has used before.
func NewID(typ string) string { return typ + "-" + random() }

func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// typeOf returns the type in an ID.
func typeOf(id string) (string, error) {
	typ, hexa, found := strings.Cut(id, "-")
	if !found || typ == "" || hexa == "" || strings.ContainsAny(id, "/\\.\x00") {
		return "", fmt.Errorf("%q is not an object ID: %w", id, ErrGone)
	}
	return typ, nil
}

func (w *World) path(id string) (string, error) {
	typ, err := typeOf(id)
	if err != nil {
		return "", err
	}
	return filepath.Join(w.dir, "objects", typ, id+".json"), nil
}

// Create stores a new object, whose ID comes from NewID.
func (w *World) Create(id string, attributes map[string]json.RawMessage) error {
	path, err := w.path(id)
	if err != nil {
		return err
	}
	typ, _ := typeOf(id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := store(path, Object{Type: typ, ID: id, Version: 1, Attributes: attributes}, os.Link); err != nil {
		return err
	}
	return w.Note(Entry{Call: "create", Type: typ, ID: id, Changed: slices.Sorted(maps.Keys(attributes)), Version: 1})
}

// Update replaces an object's attributes.
func (w *World) Update(id string, attributes map[string]json.RawMessage) error {
	object, err := w.Get(id)
	if err != nil {
		return err
	}
	changed := differing(object.Attributes, attributes)
	object.Version++
	object.Attributes = attributes
	path, err := w.path(id)
	if err != nil {
		return err
	}
	if err := store(path, *object, os.Rename); err != nil {
		return err
	}
	return w.Note(Entry{Call: "update", Type: object.Type, ID: id, Changed: changed, Version: object.Version})
}

// Get reads an object, or returns ErrGone.
func (w *World) Get(id string) (*Object, error) {
	path, err := w.path(id)
	if err != nil {
		return nil, err
	}
	return load(path)
}

// Read reads an object like Get, and logs it.
func (w *World) Read(id string) (*Object, error) {
	object, err := w.Get(id)
	switch {
	case errors.Is(err, ErrGone):
		typ, _, _ := strings.Cut(id, "-")
		return nil, errors.Join(err, w.Note(Entry{Call: "read", Type: typ, ID: id, Error: ErrGone.Error()}))
	case err != nil:
		return nil, err
	}
	return object, w.Note(Entry{Call: "read", Type: object.Type, ID: id, Version: object.Version})
}

// Delete removes an object, or returns ErrGone. With refuseInUse, it returns ErrInUse if another
// object refers to it.
//
// The object is hidden before references are checked, so that none can be added after the check.
func (w *World) Delete(id string, refuseInUse bool) error {
	object, err := w.Get(id)
	if err != nil {
		return err
	}
	path, err := w.path(id)
	if err != nil {
		return err
	}
	aside := path + ".deleting"
	if err := os.Rename(path, aside); err != nil {
		return gone(err)
	}
	if users := w.users(id); refuseInUse && len(users) > 0 {
		return errors.Join(fmt.Errorf("%s, by %s: %w", id, strings.Join(users, ", "), ErrInUse), os.Rename(aside, path))
	}
	if err := os.Remove(aside); err != nil {
		return err
	}
	return w.Note(Entry{Call: "delete", Type: object.Type, ID: id, Version: object.Version})
}

// Objects returns all objects of one type, sorted by ID.
func (w *World) Objects(typ string) ([]Object, error) {
	if _, err := typeOf(typ + "-all"); err != nil || strings.ContainsAny(typ, "*?[") {
		return nil, fmt.Errorf("%q is not a type", typ)
	}
	paths, err := filepath.Glob(filepath.Join(w.dir, "objects", typ, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, path := range paths {
		object, err := load(path)
		if errors.Is(err, ErrGone) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, *object)
	}
	slices.SortFunc(all, func(a, b Object) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// Find returns the only object of a type that has the name.
func (w *World) Find(typ, name string) (*Object, error) {
	all, err := w.Objects(typ)
	if err != nil {
		return nil, err
	}
	var found []Object
	for _, object := range all {
		if object.Text("name") == name {
			found = append(found, object)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%s with name %q: %w", typ, name, ErrGone)
	case 1:
		return &found[0], w.Note(Entry{Call: "read", Type: typ, ID: found[0].ID, Version: found[0].Version})
	}
	return nil, fmt.Errorf("there are %d objects of %s with name %q: give them different names", len(found), typ, name)
}

// Text returns an attribute that is a string, or "".
func (o *Object) Text(name string) string {
	var text string
	if json.Unmarshal(o.Attributes[name], &text) != nil {
		return ""
	}
	return text
}

// Attempt counts the attempts for a key over all processes, from 1.
func (w *World) Attempt(key string) (int, error) {
	if key == "" || strings.ContainsAny(key, "/\\\x00") {
		return 0, fmt.Errorf("invalid key %q; use a name without slashes", key)
	}
	dir := filepath.Join(w.dir, "attempts", key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	for n := 1; ; n++ {
		file, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(n)), os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return n, file.Close()
	}
}

// Note writes a log entry, and sets its serial, time and process.
func (w *World) Note(entry Entry) error {
	entry.Time = time.Now().UTC()
	return w.log.append(entry)
}

// store writes a file atomically, also if the process is killed. It does not sync: these tests do
// not cover power losses, and each sync costs milliseconds.
func store(path string, object Object, into func(from, to string) error) error {
	data, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return err
	}
	draft := filepath.Join(filepath.Dir(path), ".draft-"+random())
	if err := os.WriteFile(draft, append(data, '\n'), 0o600); err != nil {
		return err
	}
	err = into(draft, path)
	// Removed by a rename, not by a link.
	if gone := os.Remove(draft); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		return errors.Join(err, gone)
	}
	return err
}

func load(path string) (*Object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, gone(err)
	}
	var object Object
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &object, nil
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// differing returns the names of the attributes that differ.
func differing(before, after map[string]json.RawMessage) []string {
	names := map[string]bool{}
	for name := range before {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool { return same(before[name], after[name]) })
	return slices.Sorted(maps.Keys(names))
}

// same compares without white space, which hand-edited files may have.
func same(a, b json.RawMessage) bool {
	return string(compact(a)) == string(compact(b))
}
