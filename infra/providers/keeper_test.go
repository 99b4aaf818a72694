package providers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJournalStays: a server that is started again has the journal of before, and nobody else gets to it or its key.
func TestJournalStays(t *testing.T) {
	t.Parallel()
	dir, run := t.TempDir(), t.TempDir()
	journal := func(keeper ...string) string {
		t.Helper()
		r, err := New(Config{Directory: dir, RunDirectory: run, Keeper: keeper})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Acknowledge("never made"); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		return r.Journal()
	}
	if name := journal(); name != "" {
		t.Errorf("without a keeper the journal is called %q", name)
	}
	first := journal("/proc/self/exe", "provider-keeper")
	if again := journal("/proc/self/exe", "provider-keeper"); first == "" || again != first {
		t.Errorf("it is called %q, and then %q", first, again)
	}
	for name, want := range map[string]os.FileMode{"calls": 0o700 | os.ModeDir, "calls.key": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "calls.key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Directory: dir, RunDirectory: run, Keeper: []string{"x"}}); err == nil || !strings.Contains(err.Error(), "calls.key has 0 bytes instead of 32; remove it") {
		t.Errorf("with a key that is none: %v", err)
	}
}
