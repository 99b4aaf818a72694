package apply_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

// legacyNamespace returns a namespace in which the provider on the oldest SDK is configured. It has a
// server of its own: the provider's kinds have the names of the demo provider's, so that short names would
// be ambiguous for the tests of the shared server.
func legacyNamespace(t *testing.T, name string) *environment {
	t.Helper()
	w := newEnvironment(t)
	w.start(t)
	w.install(t)
	w = w.namespace(t, name)
	of := w.mirror.Demo5
	w.world = filepath.Join(w.granted, name+"-demo5") // each provider has a user of its own
	w.apply(t, fmt.Sprintf(`apiVersion: infra.atoll.dev/v1alpha1
kind: Provider
metadata: {name: demo5}
spec:
  source: %s
  version: %s
  digests: [%q]
  origin: {filesystemMirror: {path: %q}}
%s---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: demo5}
spec:
  provider: demo5
  configuration: {directory: %q}
`, of.Source, of.Version, of.ZH, w.mirror.Packed, providers.Grant(w.granted), w.world))
	programs.Eventually(t, 2*time.Minute, "the provider is served", func(ctx context.Context) error {
		_, err := w.tryKubectl(ctx, "", "wait", "--for=condition=Served", "--timeout=20s", "provider/demo5")
		return err
	})
	return w
}

// TestLegacyProviderHasNoDrift applies resources with few arguments. The provider reads "", [], {}, 0 and
// false for the others, which is no drift; a change that somebody makes is.
func TestLegacyProviderHasNoDrift(t *testing.T) {
	t.Parallel()
	w := legacyNamespace(t, "legacy-drift")
	w.apply(t, `apiVersion: demo5.providers.atoll.dev/v1
kind: Network
metadata: {name: net}
spec: {name: net, cidr: 10.0.0.0/16}
---
apiVersion: demo5.providers.atoll.dev/v1
kind: Server
metadata: {name: srv}
spec: {name: srv, network_id: '${demo5_network.net.id}', zone: east, disk: [{size: 1}], boot: [{device: a}], rule: [{port: 1}]}
---
apiVersion: demo5.providers.atoll.dev/v1
kind: ConfigMap
metadata: {name: cm}
spec: {metadata: {name: cm}}
`)
	w.mustAtoll(t, "apply", "--auto-approve")
	if a := w.atoll(t, "drift", "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("drift exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	conditions := w.kubectl(t, "get", "networks.demo5.providers.atoll.dev,servers.demo5.providers.atoll.dev,configmaps.demo5.providers.atoll.dev",
		"-o", `jsonpath={range .items[*].status.conditions[?(@.type=="Drifted")]}{.status}{"\n"}{end}`)
	if strings.Contains(conditions, "True") {
		t.Errorf("the condition Drifted of the objects is\n%s", conditions)
	}
	if a := w.atoll(t, "plan", "--refresh", "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("the plan with refresh exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	w.changeObject(t, "demo5_network", `"mtu": 1500`, `"mtu": 1400`)
	if a := w.atoll(t, "drift", "--detailed-exitcode"); a.Code != 2 || !strings.Contains(a.Out, "1500 -> 1400") || strings.Contains(a.Out, "+ tags") {
		t.Errorf("after a change, drift exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}

	// Nothing is configured for the gateway, so that nothing reverts it. The apply records it.
	w.mustAtoll(t, "apply", "--refresh", "--auto-approve")
	w.changeObject(t, "demo5_network", `"gateway": "`, `"gateway": "other-`)
	if a := w.atoll(t, "drift", "--detailed-exitcode"); a.Code != 2 || !strings.Contains(a.Out, "other-") {
		t.Errorf("after a change of the gateway, drift exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	w.mustAtoll(t, "apply", "--refresh", "--auto-approve")
	if a := w.atoll(t, "drift", "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("after it was recorded, drift exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
}

// stateOfLegacy has two resources: people wrote the name of one, and a prefix for the name of the other.
// The provider, on the oldest SDK, stores "", 0 and false for what they did not write.
const stateOfLegacy = `{
  "version": 4, "terraform_version": "1.12.6", "serial": 3, "lineage": "00000000-1111-2222-3333-555555555555", "outputs": {},
  "resources": [
    {"mode": "managed", "type": "demo5_config_map", "name": "named", "provider": "provider[\"providers.test/atoll/demo5\"]",
     "instances": [{"schema_version": 0, "attributes": {"id": "demo5_config_map-0000aaaa", "data": {"k": "v"}, "immutable": false, "replicas": "3", "tier": "tier-1",
       "metadata": [{"annotations": {}, "labels": {}, "name": "field-legacy", "generate_name": "", "generation": 0, "uid": "u-1"}]}, "sensitive_attributes": []}]},
    {"mode": "managed", "type": "demo5_config_map", "name": "generated", "provider": "provider[\"providers.test/atoll/demo5\"]",
     "instances": [{"schema_version": 0, "attributes": {"id": "demo5_config_map-0000bbbb", "data": {}, "immutable": false, "replicas": "1", "tier": "tier-2",
       "metadata": [{"annotations": {}, "labels": {}, "name": "web-1", "generate_name": "web-", "generation": 0, "uid": "u-2"}]}, "sensitive_attributes": []}]}
  ], "check_results": null}`

// TestImportWritesWhatPeopleWrote: a resource that was imported and then deleted outside can be created
// again, and a name that the provider derived from a prefix does not exclude the prefix.
func TestImportWritesWhatPeopleWrote(t *testing.T) {
	t.Parallel()
	w := legacyNamespace(t, "legacy-import")
	writeWorld(t, w, "demo5", stateOfLegacy)
	file := filepath.Join(w.dir, "terraform.tfstate")
	if err := os.WriteFile(file, []byte(stateOfLegacy), 0o600); err != nil {
		t.Fatal(err)
	}
	if shown := w.mustAtoll(t, "import", "-f", file, "--dry-run", "-o", "yaml"); !strings.Contains(shown, "name: field-legacy") || strings.Contains(shown, `generate_name: ""`) {
		t.Errorf("the preview is\n%s", shown)
	}
	if done := w.mustAtoll(t, "import", "-f", file); !strings.Contains(done, "2 resources were imported") || !strings.Contains(done, "has no changes.") {
		t.Errorf("the import prints:\n%s", done)
	}
	spec := func(name string) string {
		return w.kubectl(t, "get", "configmaps.demo5.providers.atoll.dev", name, "-o", "jsonpath={.spec}")
	}
	if got := spec("named"); got != `{"data":{"k":"v"},"metadata":{"name":"field-legacy"},"replicas":"3","tier":"tier-1"}` {
		t.Errorf("the named one is %s", got)
	}
	if got := spec("generated"); got != `{"metadata":{"generate_name":"web-"},"replicas":"1","tier":"tier-2"}` {
		t.Errorf("the generated one is %s", got)
	}
	if err := os.Remove(filepath.Join(w.world, "objects", "demo5_config_map", "demo5_config_map-0000aaaa.json")); err != nil {
		t.Fatal(err)
	}
	if a := w.atoll(t, "apply", "--refresh", "--auto-approve"); a.Code != 0 || !strings.Contains(a.Out, "1 added") {
		t.Errorf("applying again exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	if text := w.kubectl(t, "get", "configmaps.demo5.providers.atoll.dev", "named", "-o", "jsonpath={.status.attributes.metadata[0].name}"); text != "field-legacy" {
		t.Errorf("it was created with the name %q", text)
	}
}
