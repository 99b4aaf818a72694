package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-mux/tf5to6server"

	"github.com/atoll-dev/atoll/infra/testproviders/host"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// server5 makes the provider usable by the test host, which speaks protocol 6.
func server5(t *testing.T) tfprotov6.ProviderServer {
	t.Helper()
	server, err := tf5to6server.UpgradeServer(t.Context(), func() tfprotov5.ProviderServer { return New().GRPCProvider() })
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func start(t *testing.T) (*host.Host, string) {
	t.Helper()
	dir := t.TempDir()
	return host.Start(t, server5(t), fmt.Sprintf(`{"directory":%q}`, dir)), dir
}

const serverFirst = `{"name":"s","network_id":"n","zone":"z","disk":[{"size":1},{"size":2,"kind":"hdd"}],"rule":[{"port":1},{"port":2,"protocol":"tcp"}],"boot":[{"device":"a"}],
	"ports":[80],"tags":["a","b"],"capacity":2,"label":"UPPER","region":"East","ratio":0.5,"password":"p"}`

// lives has two configurations of each type, where the second updates the first without replacing
// it.
var lives = map[string][2]string{
	"demo5_network": {`{"name":"n","cidr":"c","tags":{"a":"b"}}`, `{"name":"n","cidr":"c","mtu":9000}`},
	"demo5_server":  {serverFirst, `{"name":"s","network_id":"m","zone":"z","disk":[{"size":1}],"rule":[{"port":2}],"ports":[80,443],"capacity":3,"enabled":false}`},
	"demo5_legacy":  {`{"name":"l","size_gb":1}`, `{"name":"l"}`},

	"demo5_config_map": {`{"metadata":[{"name":"c"}],"data":{"k":"v"}}`, `{"metadata":[{"name":"c","labels":{"a":"b"}}],"data":{"k":"w"},"replicas":"2"}`},
}

// TestLives takes each type through its life: create, read, plan without changes, update, import,
// delete.
func TestLives(t *testing.T) {
	h, dir := start(t)
	for typ := range h.Schemas().ResourceSchemas {
		t.Run(typ, func(t *testing.T) {
			made := h.Make(host.Thing{Type: typ}, lives[typ][0])
			h.WantSteady(made, lives[typ][0])
			made = h.Make(made, lives[typ][1])
			h.WantSteady(made, lives[typ][1])
			imported, says := h.Import(typ, host.Text(t, made.State, "id"), nil)
			host.WantSays(t, says)
			h.WantSteady(imported, lives[typ][1])
			gone := h.Make(imported, "")
			host.Want(t, "the state after deletion", host.Show(gone.State), "null")
			read, says := h.Read(made)
			host.WantSays(t, says)
			host.Want(t, "the state of a deleted object", host.Show(read.State), "null")
		})
	}
	var counts = map[string]int{}
	entries, err := world.ReadLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		counts[e.Call]++
	}
	host.Want(t, "the log", fmt.Sprint(counts), "map[configure:1 create:4 delete:4 import:4 read:20 update:4]")
}

func TestServer(t *testing.T) {
	h, _ := start(t)
	made := h.Make(host.Thing{Type: "demo5_server"}, serverFirst)
	host.Want(t, "label", host.Text(t, made.State, "label"), "upper")
	host.Want(t, "endpoint", host.Get(made.State, "endpoint"), `[{"port":80,"url":"https://s:80"}]`)
	changed := func(old, new string) host.Plan { return h.Plan(made, strings.Replace(serverFirst, old, new, 1)) }
	for _, tc := range []struct{ old, new, replace string }{
		{`"zone":"z"`, `"zone":"y"`, `AttributeName("zone")`},
		{`"capacity":2`, `"capacity":1`, `AttributeName("capacity")`},
		{`"device":"a"`, `"device":"a","secure":true`, `AttributeName("boot").ElementKeyInt(0).AttributeName("secure")`},
		{`"capacity":2`, `"capacity":3`, ``},
	} {
		host.Want(t, "replaced because of "+tc.new, strings.TrimSuffix(strings.Join(changed(tc.old, tc.new).Replace, " "), ` AttributeName("id")`), tc.replace) // the SDK adds id
	}
	same := changed(`"region":"East"`, `"region":"EAST"`)
	host.Want(t, "the plan for another case of letters", host.Show(same.Planned), host.Show(made.State))
	host.Want(t, "the planned address", host.Get(changed(`"network_id":"n"`, `"network_id":"m"`).Planned, "address"), "?")
	host.Want(t, "the planned endpoint", host.Get(changed(`"ports":[80]`, `"ports":[81]`).Planned, "endpoint"), "?")
	host.WantSays(t, changed(`"capacity":2`, `"capacity":-1`).Says, "error: capacity: it cannot be negative")
	host.WantSays(t, h.Validate("demo5_server", `{"name":"s","network_id":"n","zone":"z"}`), "error: Missing required argument")
	host.WantSays(t, h.Validate("demo5_server", strings.Replace(serverFirst, `"boot":[{"device":"a"}]`, `"boot":[{},{}]`, 1)), "error: Too many list items")
}

func TestFailures(t *testing.T) {
	h, dir := start(t)
	config := func(fail, more string) string {
		return fmt.Sprintf(`{"name":"f","network_id":"n","zone":"z","disk":[{"size":1}],"fail":%q%s}`, fail, more)
	}
	objects := func() int {
		all, err := filepath.Glob(filepath.Join(dir, "objects", "demo5_server", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	_, says := h.Apply(h.Plan(host.Thing{Type: "demo5_server"}, config("create", "")))
	host.WantSays(t, says, "error: The create fails: as told")
	host.Want(t, "how many there are", fmt.Sprint(objects()), "0")

	made, says := h.Apply(h.Plan(host.Thing{Type: "demo5_server"}, config("made", "")))
	host.WantSays(t, says, "error: the create fails after it was made")
	host.Want(t, "how many there are", fmt.Sprint(objects()), "1")
	host.Want(t, "name", host.Text(t, made.State, "name"), "f")

	next, says := h.Apply(h.Plan(made, config("update", `,"size":"large"`)))
	host.WantSays(t, says, "error: The update fails")
	host.Want(t, "size after a failed update", host.Text(t, next.State, "size"), "small")
	next = h.Make(made, config("delete", ""))
	// The SDK answers null although nothing was deleted: the host must keep its state.
	kept, says := h.Apply(h.Plan(next, ""))
	host.WantSays(t, says, "error: The delete fails")
	host.Want(t, "the state after a failed delete", host.Show(kept.State), "null")
	host.Want(t, "how many there are", fmt.Sprint(objects()), "1")
}

// TestTimeout stops a create that would take an hour after a millisecond.
func TestTimeout(t *testing.T) {
	h, _ := start(t)
	_, says := h.Apply(h.Plan(host.Thing{Type: "demo5_server"}, `{"name":"s","network_id":"n","zone":"z","disk":[{"size":1}],"delay":"1h","timeouts":{"create":"1ms"}}`))
	host.WantSays(t, says, "error: create was stopped: context deadline exceeded")
}

func TestUpgrade(t *testing.T) {
	h, _ := start(t)
	state, says := h.Upgrade("demo5_legacy", 0, `{"id":"i","name":"n","size":"10GB"}`)
	host.WantSays(t, says)
	host.Want(t, "the upgraded state", host.Show(state), `{"id":"i","name":"n","size_gb":10}`)
	_, says = h.Upgrade("demo5_legacy", 0, `{"id":"i","name":"n","size":"big"}`)
	host.WantSays(t, says, `error: size: "big" is not a number of GB`)
}

func TestConfigure(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct{ config, want string }{
		{fmt.Sprintf(`{"directory":%q,"token":"wrong"}`, dir), "error: the token is refused"},
		{fmt.Sprintf(`{"directory":%q,"delay":"soon"}`, dir), "error: delay: "},
		{`{"directory":"here"}`, `error: directory "here" is not absolute`},
	} {
		host.WantSays(t, host.Open(t, server5(t)).Configure(tc.config), tc.want)
	}
}

func TestLookupAndDrift(t *testing.T) {
	h, dir := start(t)
	made := h.Make(host.Thing{Type: "demo5_network"}, `{"name":"n","cidr":"c"}`)
	found, says := h.Data("demo5_lookup", `{"type":"demo5_network","name":"n"}`)
	host.WantSays(t, says)
	host.Want(t, "id", host.Get(found, "id"), host.Get(made.State, "id"))

	at := filepath.Join(dir, "objects", "demo5_network", host.Text(t, made.State, "id")+".json")
	document, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(strings.Replace(string(document), "1500", "1400", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	read, _ := h.Read(made)
	host.Want(t, "mtu", host.Get(read.State, "mtu"), "1400")
}
