package world

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Use records that user refers to an object. It returns ErrGone if the object does not exist, which
// reveals a wrong order of creation.
//
// The reference is recorded before the object is checked, while a deletion hides the object before
// it checks for references: of two concurrent calls, at least one sees the other.
func (w *World) Use(id, user string) error {
	path, err := w.path(id)
	if err != nil {
		return err
	}
	if _, err := typeOf(user); err != nil {
		return err
	}
	mark := filepath.Join(w.dir, "uses", id, user)
	if err := os.MkdirAll(filepath.Dir(mark), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", id, gone(err)), os.Remove(mark))
	}
	return nil
}

// Release reverts Use.
func (w *World) Release(id, user string) error {
	err := os.Remove(filepath.Join(w.dir, "uses", filepath.Base(id), filepath.Base(user)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// users returns the objects that refer to an object, sorted.
func (w *World) users(id string) []string {
	marks, err := os.ReadDir(filepath.Join(w.dir, "uses", id))
	if err != nil {
		return nil // there are no references
	}
	var users []string
	for _, mark := range marks {
		users = append(users, mark.Name())
	}
	slices.Sort(users)
	return users
}

func compact(text json.RawMessage) []byte {
	var out bytes.Buffer
	if json.Compact(&out, text) != nil {
		return text
	}
	return out.Bytes()
}
