package apply_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/test/programs"
)

// TestDeletionsKeepRecords: neither the namespace of resources nor the ProviderConfig that they were
// created with goes before them, and no provider is used with its defaults instead of a configuration
// that is missing.
func TestDeletionsKeepRecords(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "deletions")
	name := w.kubectl(t, "config", "view", "--minify", "-o", "jsonpath={..namespace}")
	w.apply(t, network("main", "10.1.0.0/16"))
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 added")

	if out, err := w.tryKubectl(t.Context(), "", "delete", "namespace", name, "--wait=false"); err == nil {
		t.Fatalf("a namespace with resources is deleted: %s", out)
	} else {
		answer(programs.Answer{Code: 1, Errs: err.Error()}).expect(t, 1, "network/main", "atoll destroy -n "+name, "deletion-policy=Forget")
	}

	w.kubectl(t, "delete", "providerconfig", "demo", "--wait=false")
	programs.Eventually(t, time.Minute, "the ProviderConfig says what it is kept for", func(ctx context.Context) error {
		out, err := w.tryKubectl(ctx, "", "get", "providerconfig", "demo", "-o", `jsonpath={.status.conditions[?(@.type=="InUse")].message}`)
		if err == nil && out == "" {
			return fmt.Errorf("no condition")
		}
		return err
	})
	w.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")

	// Its finalizer is removed by force. The plan of the destroy right after it reads the ProviderConfig again, although
	// the plan before opened the provider a moment ago.
	w.kubectl(t, "patch", "providerconfig", "demo", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	w.atoll(t, "destroy", "--auto-approve").expect(t, 1, `ProviderConfig "demo" in namespace "`+name+`"`, "create it")
	w.apply(t, w.providerObjects(name))
	w.atoll(t, "destroy", "--auto-approve").expect(t, 0, "1 destroyed")
	w.kubectl(t, "delete", "namespace", name, "--timeout=60s")
}
