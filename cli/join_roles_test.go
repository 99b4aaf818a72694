package cli_test

import (
	"strings"
	"testing"
)

// TestRolesOnly: the roles are printed without a connection to Atoll, and only for a cluster in mode Pull.
func TestRolesOnly(t *testing.T) {
	code, out, errs := run(t, "atoll", "join", "north", "--mode", "pull", "--roles-only", "--allow", "gadgets.kinds.example.com", "--atoll-kubeconfig", "none")
	if code != 0 || !strings.Contains(out, "name: atoll-syncer-allow-gadgets.kinds.example.com\n") || strings.Contains(out, "kind: Deployment") || strings.Contains(out, "kind: Secret\n") {
		t.Errorf("%d: %s\n%s", code, errs, out)
	}
	for _, args := range [][]string{{"--roles-only"}, {"--allow", "x"}, {"--allow-rbac"}, {"--bootstrap"}, {"--token-ttl", "1h"}} {
		if code, _, errs := run(t, append([]string{"atoll", "join", "north", "--kubeconfig", "none"}, args...)...); code == 0 || !strings.Contains(errs, args[0]+" cannot be used with --mode push") {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
}
