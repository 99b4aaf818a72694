package apply_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/test/programs"
)

// legacyNamespace returns a namespace in which the provider on the oldest SDK is configured. Tests that
// use it share the Provider.
func legacyNamespace(t *testing.T, name string) *environment {
	t.Helper()
	w := sharedServer(t).namespace(t, name)
	of := w.mirror.Demo5
	w.apply(t, fmt.Sprintf(`apiVersion: infra.atoll.dev/v1alpha1
kind: Provider
metadata: {name: demo5}
spec:
  source: %s
  version: %s
  digests: [%q]
  origin: {filesystemMirror: {path: %q}}
---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: demo5}
spec:
  provider: demo5
  configuration: {directory: %q}
`, of.Source, of.Version, of.ZH, w.mirror.Packed, w.world))
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
