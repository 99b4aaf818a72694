package providercontroller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJournalSurvivesRestart checks that a restarted server has the same journal, and that other
// users cannot read it or its key.
func TestJournalSurvivesRestart(t *testing.T) {
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
		t.Errorf("without a keeper the journal is named %q", name)
	}
	first := journal("/proc/self/exe", "provider-keeper")
	if again := journal("/proc/self/exe", "provider-keeper"); first == "" || again != first {
		t.Errorf("it is named %q, and then %q", first, again)
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
		t.Errorf("with an invalid key: %v", err)
	}
}
