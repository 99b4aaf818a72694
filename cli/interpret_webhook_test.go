package cli_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/test/fakewebhook"
)

// TestInterpretAsksWebhooks: the command shows what the webhook of a ResourceInterpretation answers, and names one
// that does not.
func TestInterpretAsksWebhooks(t *testing.T) {
	w := fakewebhook.New(t)
	w.On("InterpretReplica", func(fakewebhook.Request) fakewebhook.Response { return fakewebhook.Response{"replicas": 5} })
	w.On("ReviseReplica", func(r fakewebhook.Request) fakewebhook.Response {
		w.On("InterpretReplica", func(fakewebhook.Request) fakewebhook.Response { return fakewebhook.Response{"replicas": *r.Replicas} })
		return fakewebhook.Patch(fakewebhook.Set("/spec/nodes", *r.Replicas))
	})
	file := filepath.Join(t.TempDir(), "ring.yaml")
	content := `
apiVersion: example.org/v1
kind: Ring
metadata: {name: red, namespace: shop, uid: u}
spec: {nodes: 5}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceInterpretation
metadata: {name: rings}
spec:
  target: {apiVersion: example.org/v1, kind: Ring}
  mode: Divided
  webhook:
    url: ` + w.URL + `
    caBundle: ` + base64.StdEncoding.EncodeToString(w.CABundle) + `
    operations: [InterpretReplica, ReviseReplica]
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := run(t, "atoll", "interpret", "-f", file, "-o", "yaml", "--clusters", "north,south")
	if code != 0 || !strings.Contains(out, "replicas: 5") || !strings.Contains(out, "replicas: 3") || !strings.Contains(out, "replicas: 2") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	w.Down(true)
	_, out, errs = run(t, "atoll", "interpret", "-f", file)
	if all := out + errs; !strings.Contains(all, "the webhook of ResourceInterpretation rings at 127.0.0.1:") || !strings.Contains(all, "503 Service Unavailable") {
		t.Error(all)
	}
}
