package recipes_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const recipes = "../../docs/recipes.md"

// TestRecipesOfSeveralServers runs the recipes from the quick start to the uninstallation, in the page's order.
func TestRecipesOfSeveralServers(t *testing.T) {
	s := newStage(t)
	s.member("east")
	for _, heading := range []string{
		"## Production quick start",
		"## Users and roles",
		"### The database's password",
		"### The token",
		"### The authority, and the key of service accounts",
		"### The keys of encryption at rest",
		"### Encryption with keys of your own, or a KMS",
		"## Metrics and alerts",
		"## Uninstall",
	} {
		s.try(t, heading, nil)
	}
	for _, path := range []string{"machine", "etc/atoll"} {
		if _, err := os.Stat(filepath.Join(s.dir, path)); err == nil {
			t.Errorf("%s remains", path)
		}
	}
}

// try runs one recipe. The next ones need it.
func (s *stage) try(t *testing.T, heading string, before []block) {
	all := append(slices.Clone(before), blocks(t, recipes, heading)...)
	ok := t.Run(heading, func(t *testing.T) {
		s.t = t
		s.run(all...)
	})
	if s.t = t; !ok {
		t.FailNow()
	}
}

// TestRecipesOfOneServer runs the recipes for a server on SQLite.
func TestRecipesOfOneServer(t *testing.T) {
	s := newStage(t)
	s.member("east")
	start := blocks(t, recipes, "## Production quick start")
	unit := "[Service]\nExecStart=/usr/local/bin/atoll server --data-dir /var/lib/atoll --bind-address 0.0.0.0 --tls-name atoll.example.com\n"
	s.run(block{text: "install -d /etc/systemd/system /etc/atoll\ncat > /etc/systemd/system/atoll.service <<'EOF'\n" + unit + "EOF\n" + `
systemctl start atoll
until curl -sfk https://127.0.0.1:6443/readyz > /dev/null; do sleep 1; done
export KUBECONFIG=/var/lib/atoll/admin.kubeconfig
atoll join east --kubeconfig east.kubeconfig
kubectl wait --for=condition=Ready cluster/east
kubectl create deployment web --image=nginx
`})
	s.try(t, "## Restore drill", nil)
	s.try(t, "## From SQLite to PostgreSQL", start[1:3]) // the first step refers to these
	s.run(block{text: "kubectl --kubeconfig /var/lib/atoll/admin.kubeconfig get deployment web\n"})
}

// TestReadmeOwnClusters pastes the README's block about one's own clusters whole.
func TestReadmeOwnClusters(t *testing.T) {
	s := newStage(t)
	s.member("east")
	work := filepath.Join(s.dir, "work")
	// make build and make kubectl have been run.
	if err := os.Symlink(filepath.Join(s.dir, "bin"), filepath.Join(work, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "Makefile"), []byte("build kubectl:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.run(append(blocks(t, "../../README.md", "### Your own clusters"), block{text: `
bin/kubectl wait --for=condition=Ready cluster/east
kill %1
wait %1
`})...)
}
