package cli_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fakeAtoll is a server that plans and applies immediately, with the API's real shapes.
// The tests of infra/cliview check the requests in detail.
type fakeAtoll struct {
	t *testing.T
	// summary and changes are those of every plan.
	summary, changes string

	mu      sync.Mutex
	objects map[string]map[string]any
}

const fakeDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// newFakeAtoll returns the server and its kubeconfig, whose context has the namespace
// shop.
func newFakeAtoll(t *testing.T) (*fakeAtoll, string) {
	t.Helper()
	p := &fakeAtoll{t: t, objects: map[string]map[string]any{}, summary: `{"create":1}`,
		changes: `{"address":{"namespace":"shop","type":"demo_file","name":"a"},"action":"create","after":{"value":{"content":"hello"}}}`}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL +
		`"}}],"contexts":[{"name":"c","context":{"cluster":"c","namespace":"shop"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, file
}

func (p *fakeAtoll) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	o := p.objects[r.URL.Path]
	switch {
	case strings.HasSuffix(r.URL.Path, "/changes"):
		o = map[string]any{"kind": "PlanChangeList", "items": []json.RawMessage{json.RawMessage(p.changes)}}
	case r.Method == http.MethodPost:
		o = map[string]any{}
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			p.t.Error(err)
		}
		meta := o["metadata"].(map[string]any)
		if meta["name"] == nil {
			meta["name"] = meta["generateName"].(string) + "x"
		}
		o["status"] = json.RawMessage(`{"phase":"Planned","digest":"` + fakeDigest + `","summary":` + p.summary + `,"conditions":[{"type":"Approved","status":"False","reason":"Waiting"}]}`)
		if o["kind"] == "Apply" {
			o["status"] = json.RawMessage(`{"phase":"Succeeded","done":` + p.summary + `}`)
		}
		p.objects[r.URL.Path+"/"+meta["name"].(string)] = o
	case o == nil && (strings.HasSuffix(r.URL.Path, "/approvals") || strings.HasSuffix(r.URL.Path, "/plans")):
		o = map[string]any{"kind": "List", "apiVersion": "v1", "items": []any{}}
	case o == nil:
		w.WriteHeader(http.StatusNotFound)
		o = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found", "details": map[string]any{"name": "it"}}
	}
	if err := json.NewEncoder(w).Encode(o); err != nil {
		p.t.Error(err)
	}
}

func TestInfrastructureFromTheCommandLine(t *testing.T) {
	p, kubeconfig := newFakeAtoll(t)
	atoll := func(line string) (int, string, string) {
		return run(t, append(strings.Fields(line), "--kubeconfig", kubeconfig)...)
	}
	for _, step := range []struct {
		line, summary string
		code          int
		stdout        string
		stderr        string
	}{
		{line: "atoll plan", stdout: "Plan: 1 to add, 0 to change, 0 to destroy."},
		{line: "atoll plan --name mine -o name", stdout: "plan.infra.atoll.dev/mine\n"},
		{line: "atoll plan --detailed-exitcode --timeout 1m", code: 2, stdout: "atoll apply plan-x -n shop --kubeconfig " + kubeconfig},
		{line: "kubectl-atoll plan -n other", stdout: "kubectl atoll approve plan-x -n other --kubeconfig " + kubeconfig},
		{line: "atoll plan --detailed-exitcode", summary: `{"noOp":1}`, stdout: "No changes"},
		{line: "atoll show mine", stdout: `demo_file["a"] will be created`},
		{line: "atoll show plan/mine --action create -o wide", stdout: `create   demo_file["a"]`},
		{line: "atoll show none", code: 1, stderr: "plan none not found in namespace shop"},
		{line: "atoll approve plan.infra.atoll.dev/mine", code: 1, stderr: "use --yes, or --digest"},
		{line: "atoll approve mine --digest " + fakeDigest, stderr: "approval.infra.atoll.dev/mine-x created"},
		{line: "atoll apply", code: 1, stderr: "use --auto-approve"},
		{line: "atoll apply --auto-approve", stdout: "Apply complete! Resources: 1 added, 0 changed, 0 destroyed."},
		{line: "atoll apply mine", code: 1, stderr: "is not approved"},
		{line: "atoll apply mine --auto-approve -o name", stdout: "apply.infra.atoll.dev/apply-x\n"},
		{line: "atoll destroy --auto-approve", summary: `{"delete":1}`, stdout: "1 destroyed"},
		{line: "atoll cancel apply-x", code: 1, stderr: "has already ended: Succeeded"},
		{line: "atoll drift --detailed-exitcode", summary: `{"drift":1}`, code: 2, stdout: "updates the state of 1 resources"},
		{line: "atoll rollback apply/apply-x --name back", stdout: "Plan back, " + fakeDigest},
	} {
		if p.summary = step.summary; p.summary == "" {
			p.summary = `{"create":1}`
		}
		code, stdout, stderr := atoll(step.line)
		if code != step.code || !strings.Contains(stdout, step.stdout) || !strings.Contains(stderr, step.stderr) {
			t.Errorf("%s: exit code %d, want %d\nstdout, want %q:\n%s\nstderr, want %q:\n%s", step.line, code, step.code, step.stdout, stdout, step.stderr, stderr)
		}
	}
	for line, want := range map[string]any{
		"plan": float64(64), "plan --parallelism 5": float64(5), "drift --parallelism 6": float64(6), "rollback apply-x --parallelism 4": float64(4),
		"apply --auto-approve": nil, "apply --auto-approve --parallelism 7": float64(7), "destroy --auto-approve --parallelism 8": float64(8),
	} {
		if code, _, stderr := atoll("atoll " + line); code != 0 {
			t.Errorf("%s: %s", line, stderr)
		}
		if got := p.objects["/apis/infra.atoll.dev/v1alpha1/namespaces/shop/plans/plan-x"]["spec"].(map[string]any)["parallelism"]; got != want {
			t.Errorf("%s: parallelism of the plan: got %v, want %v", line, got, want)
		}
	}
	if got := p.objects["/apis/infra.atoll.dev/v1alpha1/namespaces/shop/plans/back"]["spec"].(map[string]any)["rollback"]; got != "apply-x" {
		t.Errorf("plan's rollback: got %v, want apply-x", got)
	}
}

func TestInfraErrorsNameTheNextStep(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"empty/readme.txt": "no manifest", "deep/below/a.yaml": "{apiVersion: v1, kind: Secret, metadata: {name: a}}", "bad.yaml": "{"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, kubeconfig := newFakeAtoll(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	for line, want := range map[string]string{
		"plan extra":                            "unknown command",
		"plan -f nowhere.yaml":                  "-f requires a readable file",
		"plan -o dot":                           "-o must be one of json, yaml, name, wide",
		"plan --destroy --refresh-only":         "mutually exclusive",
		"plan --destroy --replace file/a":       "choose one",
		"plan -l tier=(":                        "--selector",
		"plan --wait=false --detailed-exitcode": "cannot be used with --wait=false",
		"plan --timeout -1s":                    "is negative",
		"plan -f " + dir + "/empty":             "no objects in",
		"plan -f " + dir + "/deep":              "no objects in",
		"plan -R -f " + dir + "/deep":           "the files have no object of a Provider's kind",
		"plan -f " + dir + "/bad.yaml":          "bad.yaml",
		"plan --kubeconfig " + dir + "/none":    "set --kubeconfig to a server's admin.kubeconfig",
		"plan --context none":                   "--context to a context in it",
		"show":                                  "no plan or apply specified",
		"show a b":                              "expected one plan or apply, got 2 arguments",
		"show a --action make":                  "use one of create",
		"show pod/a":                            "plan/NAME or apply/NAME",
		"approve":                               "no plan or policy specified",
		"approve apply/a":                       "expected the name of one plan",
		"plan --parallelism 0":                  "between 1 and 1000",
		"drift --parallelism 1001":              "between 1 and 1000",
		"rollback a --parallelism -1":           "between 1 and 1000",
		"rollback --parallelism 5":              "requires an apply to roll back to",
		"apply -f file.yaml":                    "kubectl apply -f file.yaml",
		"apply --parallelism 0":                 "between 1 and 1000",
		"apply --parallelism x":                 "invalid value \"x\" for --parallelism: must be an integer",
		"apply a --refresh --target x/y":        "omit --target, --refresh, or omit the plan",
		"apply a b":                             "accepts at most 1 arg",
		"destroy --parallelism 1001":            "between 1 and 1000",
		"cancel":                                "no apply specified",
		"cancel plan/a":                         "expected the name of one apply",
		"rollback --target file/a":              "requires an apply to roll back to",
		"rollback approval/a":                   "expected the name of one apply",
		"graph -o svg":                          "-o must be one of text, dot",
		"import network main":                   "use KIND NAME ID",
		"import a b c -f none":                  "omit them",
		"import -f none":                        "none",
		"import -f " + dir:                      "tofu state pull",
		"import -f none -o json":                "use --dry-run -o yaml",
		"import -f none --wait=false":           "--wait applies only to the import of one resource",
		"import a b c --dry-run":                "--dry-run applies only to the import of a state file",
		"export --after none":                   "--after",
	} {
		code, stdout, stderr := run(t, append([]string{"atoll"}, strings.Fields(line)...)...)
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "error: ") || !strings.Contains(stderr, want) {
			t.Errorf("atoll %s: exit code %d, want 1 and %q\nstdout: %s\nstderr: %s", line, code, want, stdout, stderr)
		}
	}
	t.Setenv("KUBECONFIG", dir+"/gone")
	if code, _, stderr := run(t, "atoll", "plan"); code != 1 || !strings.Contains(stderr, "KUBECONFIG contains "+dir+"/gone") {
		t.Errorf("without a kubeconfig: exit code %d, stderr: %s", code, stderr)
	}
}
