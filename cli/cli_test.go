package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/cli"
)

// run runs a command line and returns its exit code and output.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Main(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestErrorsNameTheNextStep(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(dir, "app.yaml")
	if err := os.WriteFile(app, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	for line, want := range map[string]string{
		"server --data-dir " + file:                      file,
		"server --secure-prt 1":                          "See 'atoll server --help'",
		"server extra":                                   `unknown command "extra"`,
		"server --data-dir " + dir + " --bind-address x": "is not an IP",
		"server --data-dir " + dir + " --secure-port 0 --datastore pg://x/y": "unknown scheme",
		"kv serve":                      "--datastore",
		"kv serve --datastore sqlite:x": "sqlite:///path",
		"kv serve --datastore sqlite:///x --auto-compaction-retention soon":                               "30m",
		"kv serve --datastore sqlite:///x --watch-progress-notify-interval 0":                             "100ms or more",
		"kv serve --datastore sqlite:///x --client-access rules.yaml":                                     "set --client-ca-file, too",
		"kv serve --datastore sqlite:///x --quota-backend-bytes -1":                                       "0 for no quota",
		"kv serve --datastore sqlite:///x --max-watches 0":                                                "--max-watches 0 permits nothing",
		"kv serve --datastore sqlite:///x --auto-compaction-mode size":                                    "periodic or revision",
		"kv serve --datastore sqlite:///x --auto-compaction-mode revision --auto-compaction-retention 5m": "number of revisions",
		"server --data-dir " + dir + " --auto-compaction-retention 1s":                                    "at least 1m0s",
		"join":      "no cluster specified",
		"join a b":  "expected one cluster, got 2 arguments",
		"join east": "--kubeconfig",
		"join east --kubeconfig " + dir + "/none": "read the cluster's kubeconfig",
		"join east --kubeconfig " + file:          "--atoll-kubeconfig",
		"leave":                                   "no cluster specified",
		"leave east":                              "--atoll-kubeconfig",
		"drain east":                              "set --kubeconfig",
		"cordon east":                             "set --kubeconfig",
		"move deployment/web --to east":           "set --kubeconfig",
		"transitions":                             "set --kubeconfig",
		"abort deployment/web":                    "set --kubeconfig",
		"clusters allow-deletions":                "no cluster specified",
		"explain":                                 "no object specified",
		"preview drain":                           "no cluster specified",
		"preview policy":                          "no policies",
		"preview -f nowhere.yaml":                 "-f requires a readable file",
		"preview drain a b":                       "expected one cluster, got 2 arguments",
		"preview drain east -o wide":              "-o must be one of table, json, yaml",
		"preview drain east":                      "set --kubeconfig",
		"preview join":                            "no cluster specified",
		"preview join east -o name":               "-o must be one of table, json, yaml",
		"preview policy -f nowhere.yaml":          "nowhere.yaml",
		"preview policy -f " + app:                "atoll preview -f",
		"preview -f " + file:                      file,
		"preview -f " + app + " -o name":          "-o must be one of table, json, yaml",
		"explain a/b c/d":                         "expected one object, got 2 arguments",
		"explain deployment/web -o wide":          "-o must be one of table, json, yaml",
		"explain deployment/web":                  "set --kubeconfig",
		"clusters allow-deletions east --for 0s":  "set --kubeconfig",
		"expose":                                  "no API group specified",
		"expose a.x":                              "no clusters: set --to",
		"expose a.x --to east -l tier=prod":       "mutually exclusive",
		"expose a.x --to east,,west":              "empty name",
		"expose a.x --to=":                        "--to: no name specified",
		"expose a.x -l tier=(":                    "--selector",
		"expose apps --to east":                   "Kubernetes' own groups",
		"expose apps/v1 --to east":                "use apps",
		"expose networking.k8s.io --to east":      "Kubernetes' own groups",
		"expose A.x --to east":                    "is not a valid API group",
		"expose a.x --to east --namespaces Maybe": "Provide or Require",
		"expose a.x --to east --authorization Me": "Atoll or Member",
		"expose a.x --to east --name A":           "is not a valid name",
		"expose a.x --to east -o wide":            "name, yaml, json",
		"expose a.x --to east":                    "set --kubeconfig",
		"unexpose":                                "no API group specified",
		"unexpose a.x --from=":                    "--from: no name specified",
		"unexpose a.x":                            "set --kubeconfig",
		"kv dump":                                 "--datastore",
		"kv dump --datastore sqlite:///none/x.db": "check the path",
		"kv dump --datastore sqlite:///x --endpoint http://x":                "mutually exclusive",
		"kv dump --datastore sqlite:///x --cacert y":                         "--endpoint",
		"kv dump --values some":                                              "base64",
		"kv status --endpoint http://127.0.0.1:1":                            "listens there",
		"kv status --endpoint ftp://x":                                       "https://",
		"kv status -o wide":                                                  "table",
		"kv compact --datastore sqlite:///x":                                 "--keep-revisions",
		"kv compact --datastore sqlite:///x --revision 1 --keep-revisions 1": "mutually exclusive",
		"kv check":                           "--datastore",
		"kv copy":                            "--from",
		"kv copy --from sqlite:///none/x.db": "--to",
		"kv copy --from sqlite:///none/x.db --to sqlite:///none/y.db":          "check the path",
		"kv copy --from sqlite:///a.db --to sqlite:///b.db --merge --mirror":   "mutually exclusive",
		"kv copy --from sqlite:///a.db --to sqlite:///b.db --follow --dry-run": "--dry-run",
		"kv copy --from sqlite:///a.db --from-key k --to sqlite:///b.db":       "require an etcd server",
		"kv backup --datastore sqlite:///x":                                    "--to",
		"kv backup --datastore sqlite:///none/x.db --to y --compress lots":     "gzip",
		"kv restore":                "--from",
		"kv restore --from " + file: "--to",
		"kv restore --from " + file + " --to sqlite://" + dir + "/x.db":     "not an Atoll backup",
		"kv restore --from " + dir + "/none --to sqlite://" + dir + "/x.db": "no such file",
		"kv swim": `unknown command "swim"`,
		"swim":    `unknown command "swim"`,
		// A flag of a command that does not exist.
		"joyn x --kubeconfig y": "did you mean join",
		"kv swim --deep":        `unknown command "swim"`,
	} {
		code, stdout, stderr := run(t, append([]string{"atoll"}, strings.Fields(line)...)...)
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "error: ") || !strings.Contains(stderr, want) {
			t.Errorf("atoll %s: exit code %d, want 1 and %q\nstdout: %s\nstderr: %s", line, code, want, stdout, stderr)
		}
		if strings.Count(strings.TrimSpace(stderr), "\n") > 1 {
			t.Errorf("atoll %s says too much:\n%s", line, stderr)
		}
	}
}

func TestHelpUsesProgramName(t *testing.T) {
	for program, want := range map[string]string{"/usr/bin/atoll": "\n  atoll join", "/usr/bin/kubectl-atoll": "\n  kubectl atoll join"} {
		code, stdout, stderr := run(t, program, "join", "--help")
		if code != 0 || !strings.Contains(stdout, want+" NAME") {
			t.Errorf("%s: exit code %d\n%s%s", program, code, stdout, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := run(t, "atoll", "version")
	if code != 0 || !strings.HasPrefix(stdout, "atoll ") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}
