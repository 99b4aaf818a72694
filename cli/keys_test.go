package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/server"
)

func TestKeysErrors(t *testing.T) {
	t.Setenv(DatastoreVariable, "")
	empty := t.TempDir()
	for args, want := range map[string]string{
		"keys frob":         `unknown command "frob"`,
		"keys rotate":       "name what to rotate: authority, service-accounts, encryption, token",
		"keys rotate ca":    `"ca" cannot be rotated: name one or more of authority, service-accounts, encryption, token`,
		"keys rotate token": "requires --new-token-file",
		"keys rotate authority --new-token-file f":                      "only that uses it",
		"keys rotate token --new-token-file f --data-dir " + empty:      "no token",
		"keys list --data-dir " + empty:                                 "was it ever started?",
		"keys list --data-dir " + empty + " --token-file f":             "--token-file requires --datastore",
		"keys list --data-dir " + empty + " --datastore postgres://h/d": "mutually exclusive",
		"keys forget --datastore sqlite://" + empty + "/kv.db":          "use --data-dir",
	} {
		var out, errs bytes.Buffer
		code := Main(strings.Fields("atoll "+args), &out, &errs)
		if code != 1 || !strings.Contains(errs.String(), want) || strings.Count(strings.TrimSpace(errs.String()), "\n") > 1 {
			t.Errorf("%s: exit code %d, %s", args, code, errs.String())
		}
	}
}

// TestPrintKept: the reason why a key is kept, the values that need it, and the next step.
func TestPrintKept(t *testing.T) {
	needs := []server.KeyNeed{{Resource: "secrets", Values: 2, Past: 1}, {Workspace: "team-a:x", Resource: "secrets", Past: 3}, {Keyspace: "workspace-uid", Resource: "secrets", Values: 1}}
	var out strings.Builder
	printKept(&out, []server.Key{{Name: server.KeyEncryption, Fingerprint: "new"}, {Name: server.KeyEncryption, Former: true, Fingerprint: "old", Kept: "these values are encrypted with it", Needs: needs},
		{Name: server.KeyEncryption, Former: true, Fingerprint: "older", Kept: "servers may still encrypt with it until then"}})
	want := `
The key of encryption old is kept: these values are encrypted with it:
WORKSPACE                            RESOURCE   OBJECTS   PAST VERSIONS
root                                 secrets    2         1
team-a:x                             secrets    0         3
<unknown> (keyspace workspace-uid)   secrets    1         0
A running server encrypts objects with the present key, and atoll_encryption_complete is 1 when it is done. Past versions disappear when the history is compacted. Run the command again then.

The key of encryption older is kept: servers may still encrypt with it until then. Run the command again later.
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
	many := make([]server.KeyNeed, maxNeeds+2)
	out.Reset()
	printKept(&out, []server.Key{{Name: server.KeyEncryption, Former: true, Needs: many}})
	if !strings.Contains(out.String(), "\nand 2 more\n") {
		t.Error(out.String())
	}
}
