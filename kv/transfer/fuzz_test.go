package transfer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/transfer"
)

// FuzzArchive reads arbitrary backup files: each is valid or refused, and none causes a
// panic or uses much memory.
func FuzzArchive(f *testing.F) {
	src := open(f)
	if _, err := src.Grant(f.Context(), 7, time.Hour); err != nil {
		f.Fatal(err)
	}
	src.put(f, "a", "1", 7)
	src.put(f, "b", string(bytes.Repeat([]byte("v"), 100)), 0)
	for _, plain := range []bool{true, false} {
		var file bytes.Buffer
		if _, err := transfer.Backup(f.Context(), &file, []transfer.Part{{Name: "k", Source: src}}, transfer.BackupOptions{Plain: plain}); err != nil {
			f.Fatal(err)
		}
		f.Add(file.Bytes())
	}
	path := filepath.Join(f.TempDir(), "backup")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := transfer.OpenArchive(t.Context(), path, transfer.ProgressHooks{})
		if err != nil {
			return
		}
		defer a.Close()
		for i := range a.Sections {
			s := &a.Sections[i]
			if s.Keys > 0 && s.Bytes < s.Keys {
				t.Errorf("%d keys in %d bytes", s.Keys, s.Bytes)
			}
			if _, err := a.Section(s.Name); err != nil {
				t.Error(err)
			}
		}
	})
}

var _ transfer.BackupReader = kv.Keyspace(nil)
