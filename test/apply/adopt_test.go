package apply_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// stateOfDemo is a state file as OpenTofu writes it, of the resources that writeWorld creates: networks of a
// for_each in a module, a server with count that refers to them, a file with a non-default mode, and a
// secret. WORLD stands for the directory of the files.
const stateOfDemo = `{
  "version": 4,
  "terraform_version": "1.12.6",
  "serial": 7,
  "lineage": "6f1cf3a2-8c7a-9d0b-5c3b-0c4f3a0f9a11",
  "outputs": {"gateway": {"value": "gw-1", "type": "string"}},
  "resources": [
    {"module": "module.net", "mode": "managed", "type": "demo_network", "name": "main", "provider": "provider[\"providers.test/atoll/demo\"]",
     "instances": [
       {"index_key": "a", "schema_version": 0, "attributes": {"cidr": "10.0.0.0/16", "gateway": "gw-0000aaaa", "id": "demo_network-0000aaaa", "name": "a", "tags": {"env": "prod"}, "zone": null}, "sensitive_attributes": []},
       {"index_key": "b", "schema_version": 0, "attributes": {"cidr": "10.1.0.0/16", "gateway": "gw-0000bbbb", "id": "demo_network-0000bbbb", "name": "b", "tags": null, "zone": "east"}, "sensitive_attributes": []}]},
    {"mode": "managed", "type": "demo_file", "name": "motd", "provider": "provider[\"providers.test/atoll/demo\"]",
     "instances": [
       {"schema_version": 0, "attributes": {"content": "hello\n", "id": "demo_file-0000cccc", "mode": "0600", "name": "motd", "path": "WORLD/files/motd", "sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"}, "sensitive_attributes": []}]},
    {"mode": "managed", "type": "demo_secret", "name": "db", "provider": "provider[\"providers.test/atoll/demo\"]",
     "instances": [
       {"schema_version": 0, "attributes": {"account": [{"key": "acc0unt-key", "user": "ops"}], "fingerprint": "", "id": "demo_secret-0000dddd", "login": {"password": "l0gin-password", "user": "root"}, "name": "db",
         "password_wo": null, "password_wo_version": null, "secret": "s3cret-value", "settings": {"color": "sett1ng-value"}, "token": "t0ken-value"},
        "sensitive_attributes": [[{"type": "get_attr", "value": "secret"}], [{"type": "get_attr", "value": "token"}]]}]},
    {"mode": "managed", "type": "demo_identity", "name": "i", "provider": "provider[\"providers.test/atoll/demo\"]",
     "instances": [
       {"schema_version": 0, "attributes": {"id": "demo_identity-00001111", "name": "i", "realm": "main", "value": "1"}, "sensitive_attributes": [], "identity_schema_version": 0, "identity": {"name": "i", "realm": "main"}}]},
    {"mode": "managed", "type": "demo_server", "name": "web", "provider": "provider[\"providers.test/atoll/demo\"]",
     "instances": [
       {"index_key": 0, "schema_version": 0, "attributes": {"address": "10.0.0.9", "allow": null, "boot": null, "copies": 3, "disk": [{"id": "d-1", "kind": "ssd", "partition": [], "size": 10}], "id": "demo_server-0000eeee", "image": "debian",
         "interface": null, "name": "web", "network_id": "demo_network-0000aaaa", "peers": ["demo_network-0000bbbb"], "placement": null, "revision": 1, "rule": [], "size": "large", "spot": null, "volume": null, "zone": "east"},
        "sensitive_attributes": [], "dependencies": ["module.net.demo_network.main"]}]},
    {"mode": "managed", "type": "demo_cross", "name": "x", "provider": "provider[\"providers.test/atoll/demo\"]",
     "instances": [
       {"schema_version": 0, "attributes": {"id": "demo_cross-0000ffff", "joined": "demo_network-0000aaaa", "name": "x", "named": {"pw": "demo_network-0000bbbb"}, "others": null, "references": ["demo_network-0000aaaa"], "value": "marked-value"},
        "sensitive_attributes": [[{"type": "get_attr", "value": "value"}]], "dependencies": ["demo_server.web", "module.net.demo_network.main"]}]}
  ],
  "check_results": null
}`

// writeWorld creates the resources of the state, as the demo provider stores them.
func writeWorld(t *testing.T, w *environment, provider, state string) {
	t.Helper()
	world := w.world
	owner, _, _ := strings.Cut(w.kubectl(t, "get", "provider", provider, "-o", "jsonpath={.status.containment.user}"), ":")
	uid := os.Getuid()
	if owner != "" {
		var err error
		if uid, err = strconv.Atoi(owner); err != nil {
			t.Fatal(err)
		}
	}
	var file struct {
		Resources []struct {
			Type      string
			Instances []struct{ Attributes map[string]json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(state), &file); err != nil {
		t.Fatal(err)
	}
	write := func(path string, text []byte) {
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		// The provider changes these files.
		for made := path; err == nil && len(made) >= len(world); made = filepath.Dir(made) {
			err = os.Chown(made, uid, -1)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range file.Resources {
		for _, i := range r.Instances {
			var id string
			if err := json.Unmarshal(i.Attributes["id"], &id); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(map[string]any{"type": r.Type, "id": id, "version": 1, "attributes": i.Attributes})
			if err != nil {
				t.Fatal(err)
			}
			write(filepath.Join(world, "objects", r.Type, id+".json"), text)
		}
	}
	write(filepath.Join(world, "files", "motd"), []byte("hello\n"))
}

// TestImportState imports a state file. The import changes no resource and shows no secret, and the first plan
// with refresh has no changes.
func TestImportState(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "adopt")
	state := strings.ReplaceAll(stateOfDemo, "WORLD", w.world)
	writeWorld(t, w, "demo", state)
	file := filepath.Join(w.dir, "terraform.tfstate")
	if err := os.WriteFile(file, []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	log := func() string {
		text, _ := os.ReadFile(filepath.Join(w.world, "log.jsonl"))
		return string(text)
	}

	shown := w.mustAtoll(t, "import", "-f", file, "--dry-run")
	for _, want := range []string{`module.net.demo_network.main["a"]`, "network.demo.providers.atoll.dev/net-main-a", "7 resources would be imported"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the preview lacks %q:\n%s", want, shown)
		}
	}
	if there := w.kubectl(t, "get", "networks,secrets", "-o", "name"); strings.Contains(there, "net-main") {
		t.Errorf("the preview wrote %s", there)
	}
	manifests := w.mustAtoll(t, "import", "-f", file, "--dry-run", "-o", "yaml")
	if !strings.Contains(manifests, `network_id: ${demo_network["net-main-a"].id}`) {
		t.Errorf("no reference in the manifests:\n%s", manifests)
	}

	done := w.mustAtoll(t, "import", "-f", file)
	if !strings.Contains(done, "7 resources were imported") || !strings.Contains(done, "has no changes.") {
		t.Errorf("the import prints:\n%s", done)
	}
	if a := w.atoll(t, "plan", "--refresh", "--detailed-exitcode"); a.Code != 0 {
		t.Fatalf("the first plan with refresh exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	for _, word := range []string{"create", "update", "delete"} {
		if strings.Contains(log(), `"call":"`+word+`"`) {
			t.Errorf("the provider was called to %s:\n%s", word, log())
		}
	}

	objects := w.kubectl(t, "get", "networks,files,secrets.demo.providers.atoll.dev,servers,crosses", "-o", "yaml", "--ignore-not-found")
	for _, text := range []string{shown, manifests, done, objects} {
		for _, secret := range []string{"s3cret-value", "l0gin-password", "sett1ng-value", "t0ken-value", "acc0unt-key", "marked-value"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s is shown in:\n%s", secret, text)
			}
		}
	}
	if !strings.Contains(objects, "gateway: gw-0000aaaa") {
		t.Errorf("no status has the gateway:\n%s", objects)
	}

	// A second import finds nothing to do, except what an interrupted import would have left out.
	w.kubectl(t, "delete", "resourcestate", "networks.demo.net-main-a")
	if a := w.atoll(t, "plan", "--detailed-exitcode"); a.Code != 2 || !strings.Contains(a.Out, `demo_network["net-main-a"] will be created`) {
		t.Errorf("without a state, a plan exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	again := w.mustAtoll(t, "import", "-f", file)
	if !strings.Contains(again, "has no changes.") {
		t.Errorf("a second import prints:\n%s", again)
	}
	if a := w.atoll(t, "plan", "--refresh", "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("after the second import a plan exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}

	// The exported state equals the imported one, with the next serial.
	sameState(t, state, w.mustAtoll(t, "export", "--after", file))
	out := filepath.Join(w.dir, "back.tfstate")
	w.mustAtoll(t, "export", "-f", out)
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("other users can read the file: %v (%v)", info.Mode(), err)
	}

	// Later changes update the imported resources.
	w.kubectl(t, "patch", "file.demo.providers.atoll.dev/motd", "--type=merge", "-p", `{"spec":{"content":"changed"}}`)
	w.mustAtoll(t, "apply", "--auto-approve")
	if text, err := os.ReadFile(filepath.Join(w.world, "files", "motd")); err != nil || string(text) != "changed" {
		t.Errorf("the file contains %q (%v)", text, err)
	}
	if a := w.atoll(t, "plan", "--refresh", "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("after the change, a plan exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
}

// sameState compares an exported state with the imported one: the same resources with the same values.
func sameState(t *testing.T, was, is string) {
	t.Helper()
	type stateFile struct {
		Serial    int
		Lineage   string
		Outputs   map[string]any
		Resources []struct {
			Module, Mode, Type, Name, Provider string
			Instances                          []map[string]any
		}
	}
	read := func(text string) (stateFile, map[string]string) {
		var f stateFile
		if err := json.Unmarshal([]byte(text), &f); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all := map[string]string{}
		for _, r := range f.Resources {
			for _, i := range r.Instances {
				// An attribute that the schema marks as sensitive needs no mark, and an empty list means none.
				delete(i, "private")
				if marks, _ := i["sensitive_attributes"].([]any); len(marks) == 0 {
					delete(i, "sensitive_attributes")
				}
				text, err := json.Marshal(i)
				if err != nil {
					t.Fatal(err)
				}
				all[fmt.Sprint(r.Module, " ", r.Mode, " ", r.Type, " ", r.Name, " ", r.Provider, " ", i["index_key"])] = string(text)
			}
		}
		return f, all
	}
	before, wants := read(was)
	after, got := read(is)
	if after.Serial != before.Serial+1 || after.Lineage != before.Lineage || fmt.Sprint(after.Outputs) != fmt.Sprint(before.Outputs) {
		t.Errorf("the state has serial %d, lineage %s and outputs %v", after.Serial, after.Lineage, after.Outputs)
	}
	for address, want := range wants {
		if got[address] != want {
			t.Errorf("%s is exported as\n%s\nwant\n%s", address, got[address], want)
		}
	}
	if len(got) != len(wants) {
		t.Errorf("%d resources are exported, want %d", len(got), len(wants))
	}
}

// TestImportStateRefuses: an import that is not possible fails with the reason, before it writes anything.
func TestImportStateRefuses(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "adopt-refused")
	write := func(name, text string) string {
		file := filepath.Join(w.dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	fine := write("fine.tfstate", stateOfDemo)
	refused := func(want string, args ...string) {
		t.Helper()
		a := w.atoll(t, append([]string{"import"}, args...)...)
		if a.Code != 1 || !strings.Contains(a.Errs, want) {
			t.Errorf("atoll import %s exits with %d without %q:\n%s", strings.Join(args, " "), a.Code, want, a.Errs)
		}
	}
	refused("set a state file with -f", "network", "a")
	refused("omit them", "network", "a", "b", "-f", fine)
	refused("--prefix applies only to the import of a state file", "network", "a", "b", "--prefix", "x")
	refused("no such file", "-f", filepath.Join(w.dir, "none"))
	refused("tofu state pull", "-f", w.dir)
	refused("not a state file", "-f", write("empty.tfstate", "{}"))
	refused("map each one with --provider", "-f", write("alias.tfstate", strings.ReplaceAll(stateOfDemo, `demo\"]"`, `demo\"].west"`)))
	refused("some types are not served: demo_nothing", "-f", write("types.tfstate", strings.ReplaceAll(stateOfDemo, `"type": "demo_file"`, `"type": "demo_nothing"`)))
	refused("its state has schema version 9", "-f", write("old.tfstate", strings.Replace(stateOfDemo, `"schema_version": 0`, `"schema_version": 9`, 1)))

	w.apply(t, `{"apiVersion":"demo.providers.atoll.dev/v1","kind":"File","metadata":{"name":"motd"},"spec":{"name":"other","content":"c"}}`)
	refused("1 objects already exist and were not imported from this file: file/motd: use --prefix", "-f", fine)
	w.apply(t, `{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"SyncPolicy","metadata":{"name":"auto"},"spec":{"mode":"Auto"}}`)
	refused("SyncPolicy auto has mode Auto", "-f", fine, "--prefix", "x")
	if out := w.kubectl(t, "get", "networks.demo.providers.atoll.dev,resourcestates", "-o", "name"); out != "" {
		t.Errorf("objects were written: %s", fmt.Sprint(out))
	}
}
