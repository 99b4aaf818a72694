package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestIdentity: a journal keeps its name, and gets another one if it is lost or copied.
func TestIdentity(t *testing.T) {
	t.Parallel()
	nameIn := func(dir string) string {
		t.Helper()
		j, err := openJournal(dir, make([]byte, keyBytes))
		if err != nil {
			t.Fatal(err)
		}
		name, err := j.identify()
		if err != nil {
			t.Fatal(err)
		}
		// The name of a journal in use is not swept, however old it is.
		if err := os.Chtimes(filepath.Join(dir, identityFile), time.Time{}, time.Now().Add(-2*namesKept)); err != nil {
			t.Fatal(err)
		}
		if err := j.sweep(time.Now()); err != nil {
			t.Fatal(err)
		}
		return name
	}
	dir := filepath.Join(t.TempDir(), "journal")
	first := nameIn(dir)
	if again := nameIn(dir); first == "" || again != first {
		t.Errorf("it is called %q, and then %q", first, again)
	}
	host, err := os.Hostname()
	if err != nil || !strings.HasPrefix(first, host+"-") {
		t.Errorf("on %s it is called %q, %v", host, first, err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if other := nameIn(copied); other == first || nameIn(copied) != other {
		t.Errorf("a copy of %s is called %q, and then %q", first, other, nameIn(copied))
	}
	if err := os.WriteFile(filepath.Join(dir, identityFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := nameIn(dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if lost := nameIn(dir); damaged == first || lost == first || lost == damaged {
		t.Errorf("%s, when its name was damaged %s, and when all was lost %s", first, damaged, lost)
	}
}

// TestReadKey: every reader gets the same key, and the error about an invalid key says what to do.
func TestReadKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	var readers sync.WaitGroup
	keys := make([][]byte, 8)
	for n := range keys {
		readers.Go(func() {
			var err error
			if keys[n], err = ReadKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
	for _, key := range keys {
		if len(key) != keyBytes || !bytes.Equal(key, keys[0]) || bytes.Equal(key, make([]byte, keyBytes)) {
			t.Errorf("keys: %x", keys)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("files next to the key: %v, %v", entries, err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path); err == nil || !strings.Contains(err.Error(), "has 5 bytes instead of 32; remove it") {
		t.Errorf("an invalid key: %v", err)
	}
}
