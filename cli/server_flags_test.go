package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServerFlags: a value that the server cannot use is an error that names the flag and the remedy, before anything is created.
func TestServerFlags(t *testing.T) {
	dir := t.TempDir()
	data, missing := filepath.Join(dir, "data"), filepath.Join(dir, "missing.yaml")
	for flag, wanted := range map[string][]string{
		"--service-account-max-token-expiration=1s": {"1s is too short", "1h0m0s or more", "0 for no limit"},
		"--authentication-config=" + missing:        {"--authentication-config", missing, "create the file"},
		"--audit-policy-file=" + missing:            {"--audit-policy-file", missing, "create the file"},
	} {
		code, _, stderr := run(t, "atoll", "server", "--data-dir", data, flag)
		if code != 1 {
			t.Errorf("%s: exit code %d", flag, code)
		}
		for _, want := range wanted {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: the error lacks %q: %s", flag, want, stderr)
			}
		}
		if _, err := os.Stat(data); err == nil {
			t.Fatalf("%s: the data directory was created", flag)
		}
	}
}
