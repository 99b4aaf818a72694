package apply_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestMovesKeepResources: an object gets another name, another type and another namespace. The resource
// stays, and nothing is created or destroyed.
func TestMovesKeepResources(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	w, other := server.namespace(t, "moves"), server.namespace(t, "moves-to")
	here := w.kubectl(t, "config", "view", "--minify", "-o", "jsonpath={..namespace}")
	there := other.kubectl(t, "config", "view", "--minify", "-o", "jsonpath={..namespace}")
	w.apply(t, network("main", "10.1.0.0/16"))
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 added")
	id := w.kubectl(t, "get", "networks", "main", "-o", "jsonpath={.status.attributes.id}")

	w.atoll(t, "move-state", "network/main", "backbone", "--dry-run").expect(t, 0, "created with the spec of", "(dry run)")
	w.kubectl(t, "get", "networks", "main")
	w.atoll(t, "move-state", "network/main", "main").expect(t, 1, "same object")
	w.atoll(t, "move-state", "network/main", "identity/main").expect(t, 1, "use addresses")
	w.atoll(t, "move-state", "network/missing", "backbone").expect(t, 1, "spec.movedFrom: missing")
	moved := w.atoll(t, "move-state", "network/main", "backbone")
	if moved.expect(t, 0, `demo_network["backbone"]`, `moved from demo_network["main"]`, "Plan: 1 to move, 0 to add, 0 to change, 0 to destroy."); strings.Contains(moved.Out, "stale") {
		t.Errorf("the plan of a move is stale: %s", moved.Out)
	}
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 moved, 0 added, 0 changed, 0 destroyed")
	w.kubectl(t, "wait", "--for=delete", "networks/main", "--timeout=60s")
	if got := w.kubectl(t, "get", "networks", "backbone", "-o", "jsonpath={.status.attributes.id}"); got != id {
		t.Errorf("after a rename the ID is %q, was %q", got, id)
	}
	w.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")

	// Into another type. The provider converts the state.
	w.apply(t, identity("backbone", "{name: main}"))
	w.atoll(t, "move-state", `demo_network["backbone"]`, `demo_identity["backbone"]`).expect(t, 0, "1 to move", "0 to destroy")
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 moved", "0 destroyed")
	if got := w.kubectl(t, "get", "identities", "backbone", "-o", "jsonpath={.status.attributes.id}"); got != id {
		t.Errorf("under another type the ID is %q, was %q", got, id)
	}
	w.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")
	w.apply(t, identity("wrong", "{name: wrong, movedFrom: 'demo_secret[\"x\"]'}"))
	w.atoll(t, "plan").expect(t, 0, "1 to add") // nothing to move: a new resource
	w.kubectl(t, "delete", "identities", "wrong")

	// Into another namespace. Both apply.
	w.atoll(t, "move-state", "identity/backbone", "backbone", "--to-namespace", there).expect(t, 0, "atoll apply -n "+here, "atoll apply -n "+there)
	other.atoll(t, "plan").expect(t, 1, "has not released it")
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 forgotten")
	w.atoll(t, "destroy", "--auto-approve").expect(t, 0, "No resources found")
	other.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 moved", "0 destroyed")
	w.kubectl(t, "wait", "--for=delete", "identities/backbone", "--timeout=60s")
	if got := other.kubectl(t, "get", "identities", "backbone", "-o", "jsonpath={.status.attributes.id}"); got != id {
		t.Errorf("in another namespace the ID is %q, was %q", got, id)
	}
	if states := strings.Fields(w.kubectl(t, "get", "resourcestates", "-o", "name")); len(states) != 0 {
		t.Errorf("%s still has %v", here, states)
	}
	other.atoll(t, "destroy", "--auto-approve").expect(t, 0, "1 destroyed")
}

func identity(name, spec string) string {
	return fmt.Sprintf("{apiVersion: demo.providers.atoll.dev/v1, kind: Identity, metadata: {name: %s}, spec: %s}\n---\n", name, spec)
}

// TestFunctionsAndIdentities: an expression calls a function of the provider, and a resource is imported by
// its identity.
func TestFunctionsAndIdentities(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "functions")
	w.apply(t, identity("main", "{name: '${provider.demo.label(\"Shop\", \"a\")}', realm: there}"))
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, `"shop-a"`, "1 added")
	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 0, "No changes")
	id := w.kubectl(t, "get", "identities", "main", "-o", "jsonpath={.status.attributes.id}")
	w.apply(t, identity("wrong", "{name: '${provider.demo.lable(\"x\")}'}"))
	w.atoll(t, "plan").expect(t, 1, "spec.name", `has no function "lable": use one of label`)
	w.kubectl(t, "delete", "identities", "wrong")

	w.kubectl(t, "annotate", "identities", "main", "infra.atoll.dev/deletion-policy=Forget")
	w.kubectl(t, "delete", "identities", "main", "--wait=false")
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 forgotten")
	w.apply(t, identity("again", "{name: shop-a, realm: there}"))
	w.atoll(t, "import", "identity", "again", `{"realm":"there"}`).expect(t, 1, `needs the attribute "name"`)
	w.atoll(t, "import", "identity", "again", `{"name":"shop-a","relam":"there"}`).expect(t, 1, `has no attribute "relam"; it has name, realm`)
	w.atoll(t, "import", "identity", "again", `{"name":"shop-a","realm":"there"}`).expect(t, 0, "1 to import")
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 imported")
	if got := w.kubectl(t, "get", "identities", "again", "-o", "jsonpath={.status.attributes.id}"); got != id {
		t.Errorf("the imported ID is %q, want %q", got, id)
	}
	w.atoll(t, "destroy", "--auto-approve").expect(t, 0, "1 destroyed")
}
