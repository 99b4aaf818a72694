package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestImpersonation: the flags are kubectl's, and reach the requests and the commands that are suggested.
func TestImpersonation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	parse := func(args ...string) *target {
		t.Helper()
		var to target
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		to.addPlainFlags(flags)
		if err := flags.Parse(append(args, "--kubeconfig", file)); err != nil {
			t.Fatal(err)
		}
		return &to
	}
	to := parse("--as", "jane", "--as-group", "dev", "--as-group", "ops team", "--as-uid", "7")
	config, err := to.config()
	if err != nil {
		t.Fatal(err)
	}
	if as := config.Impersonate; as.UserName != "jane" || as.UID != "7" || !slices.Equal(as.Groups, []string{"dev", "ops team"}) {
		t.Errorf("requests are made as %+v", as)
	}
	if got, want := to.text(), " --kubeconfig "+file+" --as jane --as-group dev --as-group 'ops team' --as-uid 7"; got != want {
		t.Errorf("suggested flags%s, want%s", got, want)
	}
	if _, err := parse("--as-group", "dev").config(); err == nil || !strings.Contains(err.Error(), "set --as") {
		t.Errorf("groups without a user: %v", err)
	}
}
