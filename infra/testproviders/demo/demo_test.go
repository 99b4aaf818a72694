package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/atoll-dev/atoll/infra/testproviders/host"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// start returns a configured provider and its world. More is appended to the provider's
// configuration.
func start(t *testing.T, more string) (*host.Host, *world.World) {
	t.Helper()
	dir := t.TempDir()
	w, err := world.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return host.Start(t, providerserver.NewProtocol6(New())(), fmt.Sprintf(`{"directory": %q%s}`, dir, more)), w
}

// calls returns the lines of the log without configure: "CALL TYPE CHANGED".
func calls(t *testing.T, w *world.World) []string {
	t.Helper()
	entries, err := world.ReadLog(w.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if e.Call == "update" {
			all = append(all, fmt.Sprintf("update %s %s", e.Type, strings.Join(e.Changed, ",")))
		} else if e.Call != "configure" {
			all = append(all, e.Call+" "+e.Type)
		}
	}
	return all
}

// lives has two configurations of each type, where the second updates the first without replacing
// it.
var lives = map[string][2]string{
	"demo_file":    {`{"name":"a","content":"1"}`, `{"name":"b","content":"2","mode":"0600"}`},
	"demo_network": {`{"name":"n","cidr":"10.0.0.0/8","tags":{"a":"b"}}`, `{"name":"n","cidr":"10.0.0.0/8","zone":"east"}`},
	"demo_server": {`{"name":"s","zone":"z","network_id":"NETWORK","disk":[{"size":1,"partition":[{"mount":"/"}]},{"size":2,"kind":"hdd"}],"rule":[{"port":1},{"port":2}],"boot":{"secure":true},
		"placement":{"rack":"r"},"interface":[{"name":"eth0"}],"allow":[{"from":"a","port":1}],"volume":{"data":{"size":1,"labels":{"a":"b"}}}}`,
		`{"name":"s","zone":"z","network_id":"NETWORK","size":"large","peers":["NETWORK"],"disk":[{"size":1}],"interface":[{"name":"eth0","mtu":9000},{"name":"eth1"}],"volume":{}}`},
	"demo_secret": {`{"name":"s","secret":"in","password_wo":"once","password_wo_version":1,"login":{"user":"u","password":"p"},"account":[{"user":"u","key":"k"}]}`,
		`{"name":"s","settings":{"a":"b"}}`},
	"demo_collection": {`{"name":"c","text":"","truth":false,"int32":-1,"int64":9007199254740993,"float32":0.5,"float64":1e-7,"number":123456789012345678901234567890.125,
		"dynamic":{"type":["list","number"],"value":[1,2]},"list":[],"set":["b","a"],"map":{"k":null},"numbers":[1,1.5,1e30],"truths":{"t":true},
		"object":{"x":1,"y":null,"label":"l"},"objects":[],"object_set":[{"x":1},{"x":2}],"object_map":{"m":{"y":2.5}},"lists":[[],["a"]],"sets_by_name":{"s":["x"]},"chosen":["mine"]}`,
		`{"name":"c","list":["a",""],"set":[],"map":{},"dynamic":{"type":"string","value":"text"}}`},
	"demo_legacy":   {`{"name":"l","size":{"gb":1}}`, `{"name":"l","size":{"gb":2,"unit":"GB"}}`},
	"demo_slow":     {`{"name":"s","create":"1ms"}`, `{"name":"s","value":"v"}`},
	"demo_flaky":    {`{"name":"f","value":"1"}`, `{"name":"f","value":"2"}`},
	"demo_private":  {`{"name":"p","value":"1"}`, `{"name":"p","value":"2"}`},
	"demo_identity": {`{"name":"i","value":"1"}`, `{"name":"i","value":"2"}`},
	"demo_unknown":  {`{"name":"u","seed":"1"}`, `{"name":"u","seed":"2"}`},
	"demo_cross":    {`{"name":"x","references":["NETWORK"]}`, `{"name":"x","others":["NETWORK"],"named":{"n":"NETWORK"}}`},
}

// TestLives takes each type through its life: create, read, plan without changes, update, import,
// delete.
func TestLives(t *testing.T) {
	h, w := start(t, "")
	network := host.Text(t, h.Make(host.Thing{Type: "demo_network"}, `{"name":"first","cidr":"10.0.0.0/8"}`).State, "id")
	for typ := range h.Schemas().ResourceSchemas {
		t.Run(typ, func(t *testing.T) {
			first, found := lives[typ]
			if !found {
				t.Fatal("the type has no example")
			}
			live(t, h, w, typ, strings.ReplaceAll(first[0], "NETWORK", network), strings.ReplaceAll(first[1], "NETWORK", network))
		})
	}
}

func live(t *testing.T, h *host.Host, w *world.World, typ, first, second string) {
	before := len(calls(t, w))
	made := h.Make(host.Thing{Type: typ}, first)
	read := h.WantSteady(made, first)
	host.Want(t, "the read state", host.Show(read.State), host.Show(made.State))
	made = h.Make(made, second)
	read = h.WantSteady(made, second)
	host.Want(t, "the state read after the update", host.Show(read.State), host.Show(made.State))

	imported, says := h.Import(typ, host.Text(t, made.State, "id"), nil)
	host.WantSays(t, says)
	h.WantSteady(imported, second)
	host.Want(t, "the imported state", host.Show(imported.State), host.Show(made.State))

	gone := h.Make(imported, "")
	host.Want(t, "the state after deletion", host.Show(gone.State), "null")
	read, says = h.Read(made)
	host.WantSays(t, says)
	host.Want(t, "the state of a deleted object", host.Show(read.State), "null")

	var shape []string
	for _, call := range calls(t, w)[before:] {
		shape = append(shape, strings.Fields(call)[0])
	}
	host.Want(t, "the log", strings.Join(shape, " "), "create read update read import read read delete read")
}

func TestConfigure(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct{ config, want string }{
		{fmt.Sprintf(`{"directory":%q,"fail_configure":"so be it"}`, dir), `error: The configuration fails: so be it (AttributeName("fail_configure"))`},
		{fmt.Sprintf(`{"directory":%q,"token":"wrong"}`, dir), "error: The token is refused"},
		{fmt.Sprintf(`{"directory":%q,"delay":"soon"}`, dir), "error: The value is not a duration"},
		{`{"directory":"here"}`, "error: The directory cannot be opened"},
		{`{}`, "error: Missing Configuration for Required Attribute"},
	} {
		host.WantSays(t, host.Open(t, providerserver.NewProtocol6(New())()).Configure(tc.config), tc.want)
	}
}

func TestWithoutAConfigurationThereArePlansOnly(t *testing.T) {
	h := host.Open(t, providerserver.NewProtocol6(New())())
	plan := h.Plan(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c"}`)
	host.WantSays(t, plan.Says)
	_, says := h.Apply(plan)
	host.WantSays(t, says, "error: The provider is not configured")
}

func TestFileIsOnDisk(t *testing.T) {
	h, w := start(t, "")
	made := h.Make(host.Thing{Type: "demo_file"}, `{"name":"a.txt","content":"hello","mode":"0600"}`)
	at := filepath.Join(w.Dir(), "files", "a.txt")
	host.Want(t, "path", host.Text(t, made.State, "path"), at)
	info, err := os.Stat(at)
	if err != nil {
		t.Fatal(err)
	}
	host.Want(t, "mode", info.Mode().String(), "-rw-------")

	// The path stays known; attributes derived from the content become unknown.
	plan := h.Plan(made, `{"name":"a.txt","content":"other","mode":"0600"}`)
	host.Want(t, "the planned digest", host.Get(plan.Planned, "sha256"), "?")
	host.Want(t, "the planned path", host.Get(plan.Planned, "path"), host.Get(made.State, "path"))

	// Drift by hand.
	if err := os.WriteFile(at, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	read, _ := h.Read(made)
	host.Want(t, "content", host.Text(t, read.State, "content"), "changed")
	data, says := h.Data("demo_file", `{"name":"a.txt"}`)
	host.WantSays(t, says)
	host.Want(t, "the data source's content", host.Text(t, data, "content"), "changed")

	// Another name moves the file.
	h.Make(read, `{"name":"b.txt","content":"hello"}`)
	if _, err := os.Stat(at); !os.IsNotExist(err) {
		t.Errorf("the file is still there under its old name: %v", err)
	}
	if err := os.Remove(filepath.Join(w.Dir(), "files", "b.txt")); err != nil {
		t.Fatal(err)
	}
	read, _ = h.Read(made)
	host.Want(t, "the state of a file that was removed", host.Show(read.State), "null")
}

func TestDriftByHand(t *testing.T) {
	h, w := start(t, "")
	made := h.Make(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c","zone":"east"}`)
	at := filepath.Join(w.Dir(), "objects", "demo_network", host.Text(t, made.State, "id")+".json")
	document, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(strings.Replace(string(document), "east", "west", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	read, _ := h.Read(made)
	host.Want(t, "zone", host.Text(t, read.State, "zone"), "west")
}

func TestServer(t *testing.T) {
	h, w := start(t, "")
	network := host.Text(t, h.Make(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c"}`).State, "id")
	config := func(network, zone, more string) string {
		return fmt.Sprintf(`{"name":"s","network_id":%q,"zone":%q%s}`, network, zone, more)
	}
	made := h.Make(host.Thing{Type: "demo_server"}, config(network, "z", `,"image":"i","disk":[{"size":1}]`))
	host.Want(t, "size", host.Text(t, made.State, "size"), "small")
	for _, tc := range []struct{ config, replace string }{
		{config(network, "other", `,"image":"i","disk":[{"size":1}]`), `[AttributeName("zone")]`},
		{config(network, "z", `,"image":"other","disk":[{"size":1}]`), `[AttributeName("image")]`},
		{config(network, "z", `,"disk":[{"size":1}]`), `[]`}, // no longer configured, so the value is kept
		{config(network, "z", `,"image":"i","spot":true`), `[AttributeName("spot")]`},
	} {
		host.Want(t, "what replaces with "+tc.config, fmt.Sprint(h.Plan(made, tc.config).Replace), tc.replace)
	}
	plan := h.Plan(made, config(network, "z", `,"image":"i","size":"large","disk":[{"size":1}]`))
	host.Want(t, "the planned revision", host.Get(plan.Planned, "revision"), "?")
	host.Want(t, "the planned address", host.Get(plan.Planned, "address"), host.Get(made.State, "address"))

	// References to objects that do not exist are rejected.
	_, says := h.Apply(h.Plan(host.Thing{Type: "demo_server"}, config("demo_network-0", "z", "")))
	host.WantSays(t, says, "error: The referenced object does not exist")
	if all, _ := w.Objects("demo_server"); len(all) != 1 {
		t.Errorf("there are %d servers, want 1", len(all))
	}
}

func TestInUse(t *testing.T) {
	h, _ := start(t, `,"refuse_in_use":true`)
	network := h.Make(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c"}`)
	other := h.Make(host.Thing{Type: "demo_network"}, `{"name":"o","cidr":"c"}`)
	config := `{"name":"s","zone":"z","network_id":%q}`
	server := h.Make(host.Thing{Type: "demo_server"}, fmt.Sprintf(config, host.Text(t, network.State, "id")))

	kept, says := h.Apply(h.Plan(network, ""))
	host.WantSays(t, says, "error: The object cannot be deleted")
	host.Want(t, "what could not be deleted", host.Show(kept.State), host.Show(network.State))

	server = h.Make(server, fmt.Sprintf(config, host.Text(t, other.State, "id")))
	h.Make(network, "")
	h.Make(server, "")
	h.Make(other, "")
}

func TestSecret(t *testing.T) {
	h, w := start(t, "")
	made := h.Make(host.Thing{Type: "demo_secret"}, `{"name":"s","password_wo":"hunter2","password_wo_version":1}`)
	host.Want(t, "the write-only password", host.Get(made.State, "password_wo"), "null")
	host.Want(t, "its fingerprint", host.Text(t, made.State, "fingerprint"), digest("hunter2")[:12])
	next := h.Make(made, `{"name":"s","password_wo":"other","password_wo_version":1}`)
	host.Want(t, "the fingerprint of a password whose version is the same", host.Text(t, next.State, "fingerprint"), digest("hunter2")[:12])
	next = h.Make(next, `{"name":"s","password_wo":"other","password_wo_version":2}`)
	host.Want(t, "the fingerprint of the next version", host.Text(t, next.State, "fingerprint"), digest("other")[:12])
	_, says := h.Apply(h.Plan(next, `{"name":"s","password_wo_version":3}`))
	host.WantSays(t, says, "error: The password did not arrive")

	object, err := os.ReadFile(filepath.Join(w.Dir(), "objects", "demo_secret", host.Text(t, made.State, "id")+".json"))
	if err != nil || strings.Contains(string(object), "hunter2") {
		t.Errorf("the password is stored, or the object is gone (%v): %s", err, object)
	}
}

func TestUnknownOfEveryType(t *testing.T) {
	h, _ := start(t, "")
	plan := h.Plan(host.Thing{Type: "demo_unknown"}, `{"name":"u"}`)
	made, says := h.Apply(plan)
	host.WantSays(t, says)
	for _, a := range h.Schemas().ResourceSchemas["demo_unknown"].Block.Attributes {
		if a.Computed && a.Name != "id" {
			host.Want(t, "the planned "+a.Name, host.Get(plan.Planned, a.Name), "?")
			host.Want(t, a.Name+" planned after a change", host.Get(h.Plan(made, `{"name":"u","seed":"new"}`).Planned, a.Name), "?")
			if got := host.Get(made.State, a.Name); got == "null" || got == "" {
				t.Errorf("%s got no value", a.Name)
			}
		}
	}
}

func TestUpgrades(t *testing.T) {
	h, _ := start(t, "")
	for _, tc := range []struct {
		version      int64
		stored, want string
	}{
		{0, `{"id":"i","name":"n","size":"10GB"}`, `{"id":"i","name":"n","size":{"gb":10,"unit":"GB"}}`},
		{0, `{"id":"i","name":"n","size":null}`, `{"id":"i","name":"n","size":null}`},
		{1, `{"id":"i","name":"n","size_gb":7}`, `{"id":"i","name":"n","size":{"gb":7,"unit":"GB"}}`},
		{2, `{"id":"i","name":"n","size":{"gb":3}}`, `{"id":"i","name":"n","size":{"gb":3,"unit":null}}`},
	} {
		got, says := h.Upgrade("demo_legacy", tc.version, tc.stored)
		host.WantSays(t, says)
		host.Want(t, tc.stored, host.Show(got), tc.want)
	}
	_, says := h.Upgrade("demo_legacy", 0, `{"id":"i","name":"n","size":"big"}`)
	host.WantSays(t, says, "error: The old size cannot be read")
}

func TestPrivateBytesHaveToBeKept(t *testing.T) {
	h, _ := start(t, "")
	made := h.Make(host.Thing{Type: "demo_private"}, `{"name":"p"}`)
	mixed := made
	mixed.Private = h.Make(host.Thing{Type: "demo_private"}, `{"name":"q"}`).Private
	_, says := h.Read(mixed)
	host.WantSays(t, says, "error: Private bytes were lost")
	made.Private = nil
	_, says = h.Read(made)
	host.WantSays(t, says, "error: Private bytes were lost")
	host.WantSays(t, h.Plan(made, `{"name":"p","value":"v"}`).Says, "error: Private bytes were lost")
}

func TestIdentity(t *testing.T) {
	h, _ := start(t, "")
	made := h.Make(host.Thing{Type: "demo_identity"}, `{"name":"i","realm":"r"}`)
	if made.Identity == nil {
		t.Fatal("it has no identity")
	}
	found, says := h.Import("demo_identity", "", made.Identity)
	host.WantSays(t, says)
	host.Want(t, "the state imported by identity", host.Show(found.State), host.Show(made.State))
}

func TestMove(t *testing.T) {
	server := providerserver.NewProtocol6(New())()
	h := host.Start(t, server, fmt.Sprintf(`{"directory":%q}`, t.TempDir()))
	network := h.Make(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c"}`)
	id := host.Text(t, network.State, "id")
	source := fmt.Sprintf(`{"id":%q,"name":"n","cidr":"c","zone":null,"tags":null,"gateway":"g"}`, id)
	answer, err := server.MoveResourceState(t.Context(), &tfprotov6.MoveResourceStateRequest{SourceProviderAddress: "providers.test/atoll/demo", SourceTypeName: "demo_network",
		SourceState: &tfprotov6.RawState{JSON: []byte(source)}, TargetTypeName: "demo_identity"})
	if err != nil || len(answer.Diagnostics) > 0 {
		t.Fatal(err, answer.Diagnostics)
	}
	state, err := answer.TargetState.Unmarshal(h.Schemas().ResourceSchemas["demo_identity"].ValueType())
	if err != nil {
		t.Fatal(err)
	}
	h.WantSteady(host.Thing{Type: "demo_identity", State: state, Identity: answer.TargetIdentity}, `{"name":"n"}`)
}

func TestLookup(t *testing.T) {
	h, _ := start(t, "")
	made := h.Make(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c"}`)
	found, says := h.Data("demo_lookup", `{"type":"demo_network","name":"n","after":{"type":"number","value":1}}`)
	host.WantSays(t, says)
	host.Want(t, "id", host.Get(found, "id"), host.Get(made.State, "id"))
	_, says = h.Data("demo_lookup", `{"type":"demo_network","name":"m"}`)
	host.WantSays(t, says, "error: The object was not found")
	_, says = h.Data("demo_lookup", `{"type":"../objects/demo_network","name":"n"}`)
	host.WantSays(t, says, "error: The object was not found")
}

func TestFaults(t *testing.T) {
	h, w := start(t, "")
	config := func(value, call, when string) string {
		return fmt.Sprintf(`{"name":"%s-%s","value":%q,"second":%[3]q,"warn":"careful","faults":[{"call":%[1]q,"when":%[2]q}]}`, call, when, value)
	}
	fails := func(call string) string { return "error: The " + call + " fails: as told" }
	const warning = "warning: A warning, as told: careful"
	for _, tc := range []struct {
		when, state string
		objects     int
	}{
		{before, "null", 0}, {after, `"1"`, 1}, {half, "null", 1}, {lost, "", 1},
	} {
		t.Run("create "+tc.when, func(t *testing.T) {
			had, _ := w.Objects("demo_flaky")
			made, says := h.Apply(h.Plan(host.Thing{Type: "demo_flaky"}, config("1", "create", tc.when)))
			host.WantSays(t, says, warning, fails("create"))
			if made.State.IsNull() != (tc.when == before || tc.when == lost) {
				t.Errorf("the state is %s", host.Show(made.State))
			} else if !made.State.IsNull() {
				host.Want(t, "second", host.Get(made.State, "second"), tc.state)
			}
			if have, _ := w.Objects("demo_flaky"); len(have)-len(had) != tc.objects {
				t.Errorf("%d objects were made, want %d", len(have)-len(had), tc.objects)
			}
			_, says = h.Apply(h.Plan(host.Thing{Type: "demo_flaky"}, config("1", "create", tc.when)))
			host.WantSays(t, says, warning) // the second attempt succeeds
		})
		t.Run("update "+tc.when, func(t *testing.T) {
			made, _ := h.Apply(h.Plan(host.Thing{Type: "demo_flaky"}, config("1", "update", tc.when)))
			next, says := h.Apply(h.Plan(made, config("2", "update", tc.when)))
			host.WantSays(t, says, warning, fails("update"))
			wantValues := map[string]string{before: `"1""1"`, after: `"2""2"`, half: `"2""1"`, lost: `"1""1"`}[tc.when]
			host.Want(t, "value and second", host.Get(next.State, "value")+host.Get(next.State, "second"), wantValues)
			read, _ := h.Read(next)
			if tc.when == lost {
				wantValues = `"2""2"`
			}
			host.Want(t, "value and second, read", host.Get(read.State, "value")+host.Get(read.State, "second"), wantValues)
		})
	}
	for _, call := range []string{"read", "delete", "plan"} {
		t.Run(call, func(t *testing.T) {
			config := fmt.Sprintf(`{"name":%q,"faults":[{"call":%[1]q,"first":2,"times":2,"message":"no"}]}`, call)
			made := h.Make(host.Thing{Type: "demo_flaky"}, config)
			if call != "plan" { // the first attempt of a plan created it
				wantFault(t, h, made, call, config, false)
			}
			wantFault(t, h, made, call, config, true)
			wantFault(t, h, made, call, config, true)
			wantFault(t, h, made, call, config, false)
		})
	}
}

func wantFault(t *testing.T, h *host.Host, made host.Thing, call, config string, fails bool) {
	t.Helper()
	var says []string
	switch call {
	case "read":
		_, says = h.Read(made)
	case "plan":
		says = h.Plan(made, config).Says
	case "delete":
		_, says = h.Apply(h.Plan(made, ""))
	}
	if !fails {
		host.WantSays(t, says)
		return
	}
	host.WantSays(t, says, "error: The "+call+" fails: no (AttributeName(\"faults\").ElementKeyInt(0).AttributeName(\"call\"))")
}

func TestValidation(t *testing.T) {
	h, _ := start(t, "")
	for _, tc := range []struct{ typ, config, want string }{
		{"demo_file", `{"name":"../x","content":""}`, "error: The value is not valid"},
		{"demo_file", `{"name":"x","content":"","mode":"777"}`, "error: The value is not valid"},
		{"demo_slow", `{"name":"x","create":"long"}`, "error: The value is not a duration"},
		{"demo_server", `{"name":"x","network_id":"n","zone":"z","copies":2}`, "warning: Attribute Deprecated"},
	} {
		host.WantSays(t, h.Validate(tc.typ, tc.config), tc.want)
	}
}

// TestSlow stops calls that would take an hour.
func TestSlow(t *testing.T) {
	h, _ := start(t, "")
	plan := h.Plan(host.Thing{Type: "demo_slow"}, `{"name":"s","create":"1h"}`)
	wantStopped(t, h, func() []string {
		_, says := h.Apply(plan)
		return says
	})
	delayed, _ := start(t, `,"delay":"1h"`)
	wantStopped(t, delayed, func() []string { return delayed.Plan(host.Thing{Type: "demo_network"}, `{"name":"n","cidr":"c"}`).Says })
	wantStopped(t, delayed, func() []string {
		_, says := delayed.Read(host.Thing{Type: "demo_slow", State: plan.Planned})
		return says
	})
}

// wantStopped calls Stop until the call ends. Once is not enough: Stop only ends calls that have
// begun.
func wantStopped(t *testing.T, h *host.Host, call func() []string) {
	t.Helper()
	done := make(chan []string)
	go func() { done <- call() }()
	for tick := time.Tick(time.Millisecond); ; <-tick {
		h.Stop()
		select {
		case says := <-done:
			host.WantSays(t, says, "error: The call was stopped")
			return
		default:
		}
	}
}
