package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMayBecome: a server in a container may be root and still be unable to run providers as other users.
func TestMayBecome(t *testing.T) {
	const whole, rootless, few = "         0          0 4294967295\n", "         0       1000          1\n         1     100000      65536\n", "0 0 1000\n"
	for table, want := range map[string]bool{whole: true, rootless: true, few: false, "": false, "0 0\n": false, "60700 0 1000\n": false} {
		if isMapped(table, firstProviderUser, firstProviderUser+providerUsers-1) != want {
			t.Errorf("%q: want %t", table, want)
		}
	}
	for status, want := range map[string]bool{"Name:\tatoll\nCapEff:\t000001ffffffffff\nX:\n": true, "CapEff:\t0000000000000000\n": false, "CapEff:\t00000000000000c0\n": false, "": false} {
		if capabilities(status)&neededCapabilities == neededCapabilities != want {
			t.Errorf("%q: want %t", status, want)
		}
	}
}

// TestReachProtected: spec.files may not reach the server's files, also through links.
func TestReachProtected(t *testing.T) {
	dir := t.TempDir()
	data, link := filepath.Join(dir, "data"), filepath.Join(dir, "link")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(data, link); err != nil {
		t.Fatal(err)
	}
	c := Config{DataDir: link, TokenFile: filepath.Join(dir, "token"), Datastore: "sqlite:///srv/atoll.db"}
	protected, err := c.protectedPaths("/run/atoll")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		data: true, link: true, link + "/pki": true, data + "/pki/ca.key": true, dir: true, dir + "/token": true, "/srv": true, "/srv/atoll.db-wal": true,
		"/run/atoll/p-1": true, dir + "/other": false, "/srv/other": false, "/etc/aws": false, dir + "/token2": false,
	} {
		problems := reachProtected([]any{map[string]any{"path": path}}, protected)
		if len(problems) > 0 != want {
			t.Errorf("%s: %v", path, problems)
		}
		if want && !strings.HasPrefix(problems[0].Field, "spec.files[0].path") {
			t.Errorf("%s: the field is %s", path, problems[0].Field)
		}
	}
	if problems := reachProtected([]any{"nonsense", map[string]any{}, map[string]any{"path": 1}}, protected); len(problems) > 0 {
		t.Error(problems)
	}
}
