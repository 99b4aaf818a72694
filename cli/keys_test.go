package cli

import (
	"bytes"
	"strings"
	"testing"
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
