package cli_test

import "strings"

// volumePolicies previews VolumePolicies: the API rejects invalid ones, and a valid one moves nothing here.
func (h *fleetFixture) volumePolicies() {
	h.t.Helper()
	policy := func(spec string) string {
		return h.file("volumes.yaml", `{apiVersion: fleet.atoll.dev/v1alpha1, kind: VolumePolicy, metadata: {name: nfs}, spec: {`+spec+`}}`)
	}
	for spec, want := range map[string]string{
		"mode: Elsewhere":                             "spec.mode: Unsupported value",
		"storageClasses: [nfs]":                       "spec.mode: Required value",
		"mode: Shared, storageClasses: []":            "spec.storageClasses",
		`mode: Shared, storageClasses: ["NFS"]`:       "spec.storageClasses[0]",
		`mode: Shared, storageClasses: ["*", "fast"]`: "use it alone, or create a second policy for it",
	} {
		code, _, stderr := run(h.t, "atoll", "preview", "policy", "-f", policy(spec), "--atoll-kubeconfig", h.kubeconfig)
		if code == 0 || !strings.Contains(stderr, want) {
			h.t.Errorf("%s: exit code %d, %s, want %s", spec, code, stderr, want)
		}
	}
	if code, _, stderr := run(h.t, "atoll", "preview", "policy", "-f", policy("mode: Shared, storageClasses: [nfs]"), "--atoll-kubeconfig", h.kubeconfig, "--detailed-exitcode"); code != 0 {
		h.t.Errorf("a valid policy: exit code %d, %s", code, stderr)
	}
}
