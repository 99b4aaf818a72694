package server

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestExplainKept: the reason why a former key is kept names the workspaces and resources that need it.
func TestExplainKept(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	keys := func() []Key {
		return []Key{{Name: KeyAuthority, Former: true}, {Name: KeyEncryption, Fingerprint: "new", Since: now.Add(-time.Hour)}, {Name: KeyEncryption, Former: true, Fingerprint: "old"}}
	}
	use := keyUse{}
	for place, n := range map[usePlace]int{{Workspace, "secrets", false}: 2, {Workspace, "secrets", true}: 3, {keyspaceOf("uid-b"), "secrets", false}: 1, {keyspaceOf("uid-x"), "widgets.example.com", true}: 1} {
		for range n {
			use.add("old", place)
		}
	}
	got := use.explainKept(keys(), map[string]string{"uid-b": "a:b"}, now)
	if want := []KeyNeed{{Resource: "secrets", Values: 2, Past: 3}, {Keyspace: "workspace-uid-x", Resource: "widgets.example.com", Past: 1}, {Workspace: "a:b", Resource: "secrets", Values: 1}}; !reflect.DeepEqual(got[2].Needs, want) {
		t.Errorf("%+v", got[2].Needs)
	}
	if got[0].Kept != "" || got[1].Kept != "" || got[2].Kept == "" {
		t.Errorf("%+v", got)
	}
	if got := keyUse(nil).explainKept(keys(), nil, now)[2].Kept; !strings.Contains(got, "is not known") {
		t.Error(got)
	}
	fresh := keys()
	fresh[1].Since = now.Add(-time.Minute)
	if got := (keyUse{}).explainKept(fresh, nil, now)[2].Kept; !strings.Contains(got, "until 2026-01-01T12:04:00Z") {
		t.Error(got)
	}
}

func TestResourceOf(t *testing.T) {
	for key, want := range map[string]string{"/registry/secrets/default/a": "secrets", "/registry/example.com/widgets/default/w": "widgets.example.com",
		"/registry/infra.atoll.dev/resourcestates/a/b": "resourcestates.infra.atoll.dev", "k": "k"} {
		if got := resourceOf(key); got != want {
			t.Errorf("%s: %s", key, got)
		}
	}
}
